"""`foreman serve` with a certificate: as clients, silent strangers and whoever renews it meet it."""

import asyncio
import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import ROOT, TEMPLATE, Server, _create_database, _drop_database, free_port
from tests.patience import wait_until
from tests.server.test_tls import Files, made

# uvloop by itself gives a handshake a minute.
SOONER_THAN_UVLOOP = 45


@dataclass
class TlsServer(Server):
    files: Files | None = None

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.log()}"
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=30, context=self.trusting())
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def trusting(self) -> ssl.SSLContext:
        assert self.files is not None
        return self.files.trusting()

    def visitor(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, verify=self.trusting(), timeout=60)

    def shown(self) -> bytes:
        """The certificate that whoever comes now is shown."""
        anybody = ssl.create_default_context()
        anybody.check_hostname = False
        anybody.verify_mode = ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=60) as plain,
            anybody.wrap_socket(plain) as connection,
        ):
            return connection.getpeercert(binary_form=True) or b""


@contextlib.contextmanager
def serving_tls(postgres: EmbeddedPostgres, folder: Path, **environment: str) -> Iterator[TlsServer]:
    name = f"tls_{uuid.uuid4().hex[:12]}"
    asyncio.run(_create_database(postgres.dsn, name, TEMPLATE))
    files = made(folder)
    given = {
        "FOREMAN_AUTH": "off",
        "FOREMAN_TLS_CERT": str(files.cert),
        "FOREMAN_TLS_KEY": str(files.key),
        **environment,
    }
    server = TlsServer(
        postgres.dsn_for(name), free_port(), given, log_path=folder / "server.log", files=files
    )
    try:
        server.start()
        yield server
    finally:
        if server.process is not None:
            server.stop()
        asyncio.run(_drop_database(postgres.dsn, name))


@pytest.fixture(scope="module")
def server(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    with serving_tls(postgres, tmp_path_factory.mktemp("tls")) as server:
        yield server


def test_a_job_is_submitted_and_waited_for(server: TlsServer) -> None:
    with server.visitor() as client:
        submitted = client.post("/jobs", json={"kind": "noop"})
        assert submitted.status_code == 202
        job_id = submitted.json()["job_id"]
        assert client.get(f"/jobs/{job_id}", params={"wait": 60}).json()["state"] == "done"


def test_an_answer_is_streamed(server: TlsServer) -> None:
    said = {"model": "echo", "messages": [{"role": "user", "content": "one two three"}]}
    with server.visitor() as client, client.stream("POST", "/api/chat", json=said) as answer:
        frames = [json.loads(line) for line in answer.iter_lines()]
    assert "".join(each["message"]["content"] for each in frames).strip() == "one two three"
    assert frames[-1]["done"] is True


def test_what_is_printed_at_the_start_says_https(server: TlsServer) -> None:
    wait_until(lambda: "Foreman listens on" in server.log())
    assert f"https://127.0.0.1:{server.port}" in server.log()
    assert "http://" not in server.log()


def test_the_command_line_trusts_whom_ssl_cert_file_names(server: TlsServer) -> None:
    def doctor(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "app", "doctor", "--server", server.url],
            cwd=ROOT,
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    assert server.files is not None
    trusted = doctor(SSL_CERT_FILE=str(server.files.cert))
    assert trusted.returncode == 0, trusted.stdout + trusted.stderr
    refused = doctor()
    assert refused.returncode == 4
    assert "certificate verify failed" in refused.stdout


def test_plain_http_is_hung_up_on_and_not_a_word_is_logged(server: TlsServer) -> None:
    wait_until(lambda: "Foreman listens on" in server.log())
    before = server.log()
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as stranger:
            stranger.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"HTTP/1.1" not in everything_from(stranger)
    with server.visitor() as client:
        assert client.get("/healthz").status_code == 200
    assert server.log() == before


def everything_from(connection: socket.socket) -> bytes:
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(4096):
            said += more
    return said


def client_hello() -> bytes:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(back, there, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return there.read()


def test_a_handshake_that_does_not_go_on_ends_with_the_time_for_a_request(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    hello = client_hello()
    with serving_tls(postgres, tmp_path, FOREMAN_REQUEST_TIMEOUT_SECONDS="1") as server:
        wait_until(lambda: "Foreman listens on" in server.log())
        before = server.log()
        strangers = [
            socket.create_connection(("127.0.0.1", server.port), timeout=SOONER_THAN_UVLOOP) for _ in range(3)
        ]
        for stranger, said in zip(strangers, (b"", hello[: len(hello) // 2], hello), strict=True):
            stranger.sendall(said)
        for stranger in strangers:
            # The last one is greeted, and then says nothing more.
            everything_from(stranger)
            stranger.close()
        assert server.log() == before


def test_a_silent_stranger_does_not_hold_up_the_end(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    with (
        serving_tls(postgres, tmp_path, FOREMAN_REQUEST_TIMEOUT_SECONDS="600") as server,
        socket.create_connection(("127.0.0.1", server.port)),
        server.visitor() as client,
    ):
        # And neither does one who keeps a connection, and does not look at it.
        assert client.get("/healthz").status_code == 200
        assert server.stop() == 0


def test_every_process_takes_a_renewed_certificate_and_keeps_it_over_a_broken_one(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with serving_tls(postgres, tmp_path, FOREMAN_PROCESSES="2") as server:
        assert server.files is not None
        wait_until(lambda: server.log().count("foreman.started") == 2)
        old = server.shown()
        new = server.files.renew()
        assert new != old
        wait_until(lambda: server.log().count("tls.renewed") == 2)
        assert {server.shown() for _ in range(20)} == {new}

        server.files.put(server.files.key, b"nothing")
        wait_until(lambda: server.log().count("tls.not_renewed") == 2)
        assert {server.shown() for _ in range(20)} == {new}
        assert "there is no private key (PEM)" in server.log()


def test_a_wrong_pair_ends_the_start_in_words_before_anything_is_started(tmp_path: Path) -> None:
    files, other = made(tmp_path / "one"), made(tmp_path / "two")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FOREMAN_")}
    ended = subprocess.run(
        [sys.executable, "-m", "app", "serve", "--tls-cert", str(files.cert), "--tls-key", str(other.key)],
        cwd=ROOT,
        env={**clean, "FOREMAN_PORT": "0", "FOREMAN_DATA_DIR": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 1
    assert "is not that of the certificate" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "data").exists()
