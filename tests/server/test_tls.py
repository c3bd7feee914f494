"""TLS: which files are taken and which refused, how they are renewed, and our protocol over TLS' transports."""

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import uvicorn
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs
from uvicorn.server import ServerState

from app.config import Settings, SettingsError, load_settings
from app.loops.batcher import Tell
from app.main import create_app
from app.server import ServeError, direct_submissions
from app.server.direct_submissions import DirectSubmissions, with_short_way
from app.server.protocol import PacedProtocol, paced
from app.server.tls import Tls, load
from app.store.idempotency import Receipt
from tests.patience import LONG_WAIT, until

CLEAR = NoEncryption()


@dataclass
class Files:
    """A certificate for this machine that vouches for itself, and its key, in files that can be replaced."""

    folder: Path

    @property
    def cert(self) -> Path:
        return self.folder / "cert.pem"

    @property
    def key(self) -> Path:
        return self.folder / "key.pem"

    def renew(self, encryption: KeySerializationEncryption = CLEAR) -> bytes:
        """As certbot does it: beside, then moved. The certificate, as it is seen by a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        cert = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.put(self.cert, cert.public_bytes(Encoding.PEM))
        self.put(self.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        return cert.public_bytes(Encoding.DER)

    def put(self, path: Path, content: bytes) -> None:
        beside = path.with_suffix(".new")
        beside.write_bytes(content)
        beside.replace(path)

    def trusting(self) -> ssl.SSLContext:
        """A client that believes this certificate alone."""
        return ssl.create_default_context(cafile=self.cert)


def made(folder: Path) -> Files:
    folder.mkdir(parents=True, exist_ok=True)
    files = Files(folder)
    files.renew()
    return files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return made(tmp_path)


# -- the settings, and the files that they name ----------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "missing"),
    [("FOREMAN_TLS_CERT", "FOREMAN_TLS_KEY"), ("FOREMAN_TLS_KEY", "FOREMAN_TLS_CERT")],
)
def test_a_certificate_without_a_key_or_the_other_way_round_is_refused(given: str, missing: str) -> None:
    with pytest.raises(SettingsError, match=f"{missing} is not set"):
        load_settings({given: "file.pem"})


def test_a_pair_is_taken_and_nothing_older_than_tls_1_2(files: Files) -> None:
    context = load(files.cert, files.key)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert shown_by(context)


def _missing_cert(files: Files) -> None:
    files.cert.unlink()


def _missing_key(files: Files) -> None:
    files.key.unlink()


def _unreadable(files: Files) -> None:
    # Root may read everything but a folder.
    files.key.unlink()
    files.key.mkdir()


def _swapped(files: Files) -> None:
    cert, key = files.cert.read_bytes(), files.key.read_bytes()
    files.put(files.cert, key)
    files.put(files.key, cert)


def _no_key(files: Files) -> None:
    files.put(files.key, files.cert.read_bytes())


def _of_another(files: Files) -> None:
    files.put(files.key, made(files.folder / "other").key.read_bytes())


def _encrypted(files: Files) -> None:
    files.renew(BestAvailableEncryption(b"secret"))


def _garbage(files: Files) -> None:
    files.put(files.cert, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_missing_cert, r"FOREMAN_TLS_CERT: cannot read .*cert\.pem: No such file or directory\."),
        (_missing_key, r"FOREMAN_TLS_KEY: cannot read .*key\.pem: No such file or directory\."),
        (_unreadable, r"FOREMAN_TLS_KEY: cannot read .*key\.pem: Is a directory\."),
        (_swapped, r"FOREMAN_TLS_CERT: there is no certificate \(PEM\) in .*cert\.pem\."),
        (_no_key, r"FOREMAN_TLS_KEY: there is no private key \(PEM\) in .*key\.pem\."),
        (
            _of_another,
            r"FOREMAN_TLS_KEY: the key in .*key\.pem is not that of the certificate in .*cert\.pem",
        ),
        (_encrypted, r"FOREMAN_TLS_KEY: the key in .*key\.pem is encrypted\."),
        (_garbage, r"The certificate in .*cert\.pem and the key in .*key\.pem cannot be used: "),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(
    files: Files, spoil: Callable[[Files], None], said: str
) -> None:
    spoil(files)
    with pytest.raises(ServeError, match=said):
        load(files.cert, files.key)


# -- renewal ---------------------------------------------------------------------------------------------


def shown_by(context: ssl.SSLContext, server_name: str | None = None) -> bytes:
    """The certificate that a client is shown, by a handshake without a network."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = anybody.wrap_bio(back, there, server_hostname=server_name)
    server = context.wrap_bio(there, back, server_side=True)
    for side in (client, server) * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    shown = client.getpeercert(binary_form=True)
    assert shown is not None
    return shown


@pytest.mark.parametrize("server_name", [None, "localhost"])
def test_a_renewed_certificate_is_shown_to_whoever_comes_next(files: Files, server_name: str | None) -> None:
    tls = Tls(files.cert, files.key)
    old = shown_by(tls.context, server_name)
    tls.look()
    assert shown_by(tls.context, server_name) == old
    for _ in range(2):
        new = files.renew()
        assert new != old
        tls.look()
        tls.look()
        assert shown_by(tls.context, server_name) == new


def test_a_pair_of_which_one_half_is_new_is_waited_for_without_a_word(files: Files) -> None:
    tls = Tls(files.cert, files.key)
    key = files.key.read_bytes()
    new = files.renew()
    new_key = files.key.read_bytes()
    files.put(files.key, key)
    with capture_logs() as said:
        tls.look()
        files.put(files.key, new_key)
        tls.look()
        tls.look()
    assert [each["event"] for each in said] == ["tls.renewed"]
    assert shown_by(tls.context) == new


@pytest.mark.parametrize("spoil", [_missing_cert, _of_another, _encrypted, _garbage])
def test_a_broken_renewal_leaves_the_old_certificate_and_is_said_once(
    files: Files, spoil: Callable[[Files], None]
) -> None:
    tls = Tls(files.cert, files.key)
    old = shown_by(tls.context)
    with capture_logs() as said:
        spoil(files)
        for _ in range(5):
            tls.look()
    assert [(each["event"], each["log_level"]) for each in said] == [("tls.not_renewed", "error")]
    assert shown_by(tls.context) == old
    new = files.renew()
    tls.look()
    tls.look()
    assert shown_by(tls.context) == new


def test_a_secret_that_is_swapped_by_its_link_is_noticed(files: Files, tmp_path: Path) -> None:
    """As Kubernetes does it: the files are links into a folder that is a link itself."""
    made(tmp_path / "one")
    new = made(tmp_path / "two").renew()
    (tmp_path / "data").symlink_to("one")
    for each in (files.cert, files.key):
        each.unlink()
        each.symlink_to(Path("data") / each.name)
    tls = Tls(files.cert, files.key)
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(tmp_path / "data")
    tls.look()
    tls.look()
    assert shown_by(tls.context) == new


# -- the protocol, on a loop and a transport as they are served with -------------------------------------

BODY = b'{"kind":"noop"}'
HEAD = b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(BODY)
LARGE = 8 * 1024 * 1024


@dataclass
class Served:
    """A server in this process, whose application is the test's, and a client of it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    state: ServerState
    taken: list[Tell[Receipt]] = field(default_factory=list)

    @property
    def protocol(self) -> PacedProtocol:
        [protocol] = self.state.connections
        assert isinstance(protocol, PacedProtocol)
        return protocol


async def _large_answer(_scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"%d" % LARGE)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(LARGE)})
    await receive()


async def _endless_answer(_scope: Scope, receive: Receive, send: Send) -> None:
    async def go_on() -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": bytes(16 * 1024), "more_body": True})

    stream = asyncio.create_task(go_on())
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.cancel()
    await asyncio.wait([stream])


async def _refusal(_scope: Scope, _receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body"})


async def _empty(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@contextlib.contextmanager
def _quiet(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Nothing is left for the loop to complain of."""
    complaints: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    yield
    assert not complaints


def serving(
    files: Files,
    app: Callable[[Scope, Receive, Send], Awaitable[None]],
    test: Callable[[Served], Awaitable[None]],
    reader_timeout: float = LONG_WAIT,
) -> None:
    edge = create_app(Settings(database_url="postgresql://nowhere/none", auth="off"))
    intake = edge.app.state.foreman.intake
    kind = with_short_way(paced(LONG_WAIT, reader_timeout), DirectSubmissions(edge, intake, 64))

    async def run() -> None:
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()
        loop, state = asyncio.get_running_loop(), ServerState()
        server = await loop.create_server(
            partial(kind, config, state, {}),
            "127.0.0.1",
            0,
            ssl=Tls(files.cert, files.key).context,
            ssl_shutdown_timeout=LONG_WAIT,
        )
        port = server.sockets[0].getsockname()[1]
        with _quiet(loop):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=files.trusting(), server_hostname="localhost"
            )
            served = Served(reader, writer, state)
            intake._plain.add = lambda _, tell: served.taken.append(tell)
            try:
                await until(lambda: state.connections)
                await test(served)
            finally:
                writer.transport.abort()
                for connection in [*state.connections]:
                    connection.transport.abort()
                server.close()
            await until(lambda: not state.connections and not state.tasks)

    uvloop.run(run())


@pytest.mark.parametrize("parts", [[HEAD + BODY], [HEAD, BODY]])
def test_a_small_submission_goes_the_short_way(
    files: Files, parts: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_submissions, "HELD_SECONDS", LONG_WAIT)

    async def test(served: Served) -> None:
        for _ in range(3):
            for part in parts:
                served.writer.write(part)
            await until(lambda: served.taken)
            served.taken.pop()(Receipt(["01ARZ3NDEKTSV4RRFFQ69G5FAV"]))
            head = await served.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 202 ")
            assert b"01ARZ3NDEKTSV4RRFFQ69G5FAV" in await served.reader.readuntil(b"}")

    serving(files, _refusal, test)


def test_a_last_answer_reaches_a_slow_reader_as_a_whole(files: Files) -> None:
    """Far more than all buffers hold is still to leave when the connection is ended."""

    async def test(served: Served) -> None:
        served.writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        served.writer.transport.pause_reading()  # type: ignore[attr-defined]
        protocol = served.protocol
        await until(protocol.transport.is_closing)
        served.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await served.reader.readuntil(b"\r\n\r\n")
        assert len(await served.reader.read(-1)) == LARGE

    serving(files, _large_answer, test)


def test_who_is_refused_while_still_sending_gets_to_read_why(files: Files) -> None:
    async def test(served: Served) -> None:
        served.writer.write(b"PUT / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % LARGE)
        assert (await served.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")

    async def late(served: Served) -> None:
        served.writer.transport.pause_reading()  # type: ignore[attr-defined]
        served.writer.write(b"PUT / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % LARGE)
        protocol = served.protocol
        await until(protocol.transport.is_closing)
        # It has not looked yet, and goes on.
        for _ in range(16):
            served.writer.write(bytes(64 * 1024))
        served.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await served.reader.read(-1)).startswith(b"HTTP/1.1 413 ")

    serving(files, _refusal, test)
    serving(files, _refusal, late)


def test_a_client_that_never_says_goodbye_does_not_keep_an_ended_connection(files: Files) -> None:
    async def test(served: Served) -> None:
        served.writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        protocol = served.protocol
        assert (await served.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204 ")
        # It does not read, so it does not answer.
        served.writer.transport.pause_reading()  # type: ignore[attr-defined]
        protocol.shutdown()
        await until(lambda: not served.state.connections)

    serving(files, _empty, test)


def test_a_reader_that_takes_nothing_is_hung_up_on(files: Files) -> None:
    async def test(served: Served) -> None:
        served.writer.transport.pause_reading()  # type: ignore[attr-defined]
        served.writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await until(lambda: not served.state.connections)

    serving(files, _endless_answer, test, reader_timeout=0.2)


def test_what_a_slow_reader_is_owed_stays_small(files: Files) -> None:
    async def test(served: Served) -> None:
        served.writer.transport.pause_reading()  # type: ignore[attr-defined]
        served.writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        protocol = served.protocol
        await until(lambda: protocol.flow.write_paused)
        assert protocol.transport.get_write_buffer_size() < 128 * 1024

    serving(files, _endless_answer, test)
