"""What a connection may say: no upgrade, one request at a time, no trailers, and never more than it may cost."""

import asyncio
import contextlib
import select
import socket
import time

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from app.server.protocol import CHUNKED_AT_ONCE, paced
from tests.api.test_limits import MIB, memory_grows_less_than
from tests.api.wire import Answer, connect, listen, say, unread
from tests.conftest import Server, wait_until
from tests.patience import until

CLOSE = b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def segments(wire: socket.socket, *parts: bytes) -> Answer:
    """Send each part when the one before was read, as a segment of its own; what is answered until the end."""
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    port = wire.getpeername()[1]
    for part in parts:
        wire.sendall(part)
        wait_until(lambda: not unread(port))
    return listen(wire, time.monotonic(), 20)


# -- upgrades --------------------------------------------------------------------------------------------

OFFERS = [
    b"connection: upgrade\r\nupgrade: websocket\r\n",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n",
]
SMUGGLED = b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("chunked", [True, False])
def test_the_body_of_a_request_that_offers_an_upgrade_is_its_body(
    api: Server, offer: bytes, apart: bool, chunked: bool
) -> None:
    """As a second request it would be answered with a 404."""
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: " + str(len(SMUGGLED)).encode()
    head = b"POST /jobs HTTP/1.1\r\nhost: localhost\r\n%b%b\r\n\r\n" % (offer, framing)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED) if chunked else SMUGGLED
    with connect(api) as wire:
        wire.sendall(head if apart else head + body)
        if apart:
            wait_until(lambda: not unread(api.port))
            wire.sendall(body[:10])
            wait_until(lambda: not unread(api.port))
            wire.sendall(body[10:])
        first = listen(wire, time.monotonic(), 20, until_answered=True)
        wire.sendall(CLOSE)
        second = listen(wire, time.monotonic(), 20)
    assert (first.statuses, second.statuses) == ([400], [200]), (first.raw, second.raw)
    assert b"is not JSON" in first.body


def test_java_s_client_submits_a_job(api: Server) -> None:
    body = b'{"kind":"noop"}'
    head = b"POST /jobs HTTP/1.1\r\n%bhost: localhost\r\ncontent-length: %d\r\n\r\n" % (OFFERS[1], len(body))
    with connect(api) as wire:
        assert segments(wire, head, body, CLOSE).statuses == [202, 200]


def test_this_is_no_proxy(api: Server) -> None:
    answer = say(api, b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost:80\r\n\r\n" + SMUGGLED)
    assert (answer.statuses, answer.closed) == ([405], True)


# -- pipelining ------------------------------------------------------------------------------------------


def test_thousands_of_pipelined_requests_are_all_answered(api: Server) -> None:
    count = 1500
    unsent = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n" * count
    answered = 0
    with memory_grows_less_than(api, 4 * MIB), connect(api) as wire:
        wire.setblocking(False)
        ends = time.monotonic() + 60
        while answered < count and time.monotonic() < ends:
            readable, writable, _ = select.select([wire], [wire] if unsent else [], [], 1)
            if writable:
                unsent = unsent[wire.send(unsent[: 1 << 16]) :]
            if readable:
                answered += wire.recv(1 << 20).count(b"HTTP/1.1 200 OK")
    assert answered == count


def test_what_is_pipelined_behind_a_request_that_waits_is_not_all_read(
    api: Server, client: httpx.Client
) -> None:
    job_id = client.post("/jobs", json={"kind": "own-kind", "queue": "pipelined"}).json()["job_id"]
    waits = f"GET /jobs/{job_id}?wait=30 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    flood = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1000
    # Eight megabytes of these once cost 790.
    with memory_grows_less_than(api, 10 * MIB), connect(api) as wire:
        wire.sendall(waits)
        wire.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(200):
                wire.sendall(flood)
        assert client.post(f"/jobs/{job_id}/cancel").status_code == 200
        assert listen(wire, time.monotonic(), 20, until_answered=True).statuses[0] == 200


def test_bodies_and_requests_without_are_answered_in_order_however_they_are_cut(api: Server) -> None:
    job = b'{"kind":"noop"}'
    post = b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(job), job)
    lost = b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n"
    whole = post + lost + post + post + lost + CLOSE
    for size in (len(whole), 1, 7, 61):
        with connect(api) as wire:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for start in range(0, len(whole), size):
                wire.sendall(whole[start : start + size])
            answer = listen(wire, time.monotonic(), 20)
        assert answer.statuses == [202, 404, 202, 202, 404, 200], (size, answer.raw)


def test_what_follows_a_chunked_request_too_early_is_not_answered_and_the_answer_says_so(api: Server) -> None:
    chunked = b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    chunked += b'f\r\n{"kind":"noop"}\r\n0\r\n\r\n'
    together = say(api, chunked + SMUGGLED, patience=20)
    assert (together.statuses, together.closed) == ([202], True)
    assert b"connection: close" in together.raw
    with connect(api) as wire:
        for _ in range(2):
            wire.sendall(chunked)
            assert listen(wire, time.monotonic(), 20, until_answered=True).statuses == [202]


def test_a_client_that_hangs_up_with_requests_unanswered_is_forgotten(
    api: Server, client: httpx.Client
) -> None:
    before = len(api.log())
    job_id = client.post("/jobs", json={"kind": "own-kind", "queue": "pipelined"}).json()["job_id"]
    waits = f"GET /jobs/{job_id}?wait=60 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    for _ in range(5):
        with connect(api) as wire:
            wire.sendall(waits + SMUGGLED * 3)
    client.post(f"/jobs/{job_id}/cancel")
    assert "Traceback" not in api.log()[before:]


# -- heads and trailers ----------------------------------------------------------------------------------


def test_a_head_of_seventy_kilobytes_in_one_piece_is_too_large(api: Server) -> None:
    head = b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: %b\r\n\r\n"
    assert say(api, head % (b"y" * 70_000)).statuses == [431]
    assert say(api, head % (b"y" * 60_000)).statuses == [200]


def test_the_body_does_not_count_as_head(api: Server) -> None:
    body = b'{"kind":"own-kind","queue":"wire","payload":{"x":"%b"}}' % (b"x" * 100_000)
    head = b"POST /jobs HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    assert say(api, head % len(body) + body).statuses == [202]


CHUNKED = b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\nconnection: close\r\n"


def test_a_trailer_is_never_a_header(api: Server) -> None:
    body = b'\r\nf\r\n{"kind":"noop"}\r\n0\r\nIdempotency-Key: from-a-trailer\r\nX-Request-Id: t\r\n\r\n'
    first, second = say(api, CHUNKED + body), say(api, CHUNKED + body)
    assert (first.statuses, second.statuses) == ([202], [202])
    assert first.body != second.body
    assert b"idempotency-replayed" not in second.raw
    assert b"x-request-id: t\r\n" not in first.raw


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param(b"0\r\n" + b"x-trailer: yyyyyyyyyyyyyyyyyyyyyyyy\r\n" * 1000, id="many"),
        pytest.param(b"0\r\nx-trailer: " + b"y" * 40_000, id="one-without-end"),
        pytest.param(b"1;" + b"y" * 40_000, id="extension-without-end"),
    ],
)
def test_trailers_without_end_are_refused(api: Server, piece: bytes) -> None:
    """Thirty megabytes of them cost the server some buffers."""
    more = piece.partition(b"\r\n")[2] or b"y" * 40_000
    with memory_grows_less_than(api, 10 * MIB), connect(api) as wire:
        wire.sendall(CHUNKED + b"\r\n" + piece)
        for _ in range(30 * MIB // len(more)):
            wire.sendall(more)
        answer = listen(wire, time.monotonic(), 20)
    assert (answer.statuses, answer.closed) == ([431], True)


@pytest.mark.parametrize("length", [b"0" * 5000 + b"15", b"0" * 17 + b"15", b"1" * 19, b"9" * 5000])
def test_a_length_of_more_digits_than_any_body_has_is_refused(api: Server, length: bytes) -> None:
    before = len(api.log())
    head = b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: %b\r\n\r\n" % length
    answer = say(api, head + b'{"kind":"noop"}', patience=20)
    assert (answer.statuses, answer.closed) == ([400], True)
    assert b"application/problem+json" in answer.raw
    # Said again, so that what is logged of the first is surely there.
    say(api, CLOSE)
    assert "Exception" not in api.log()[before:]


def test_zeros_before_a_length_and_blanks_after_it_do_no_harm(api: Server) -> None:
    head = b"POST /jobs HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0015%b\r\n\r\n"
    assert say(api, head % (b" " * 30) + b'{"kind":"noop"}').statuses == [202]


# -- crumbs ----------------------------------------------------------------------------------------------


class Dry(asyncio.Transport):
    """A connection without a network."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.paused = self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


@pytest.mark.parametrize("size", [1, 2, 700, 5000])
def test_many_chunks_of_one_read_are_handed_on_together_and_in_turn_with_others(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    handed_on: list[int] = []
    on_body = HttpToolsProtocol.on_body

    def count(protocol: HttpToolsProtocol, body: bytes) -> None:
        handed_on.append(len(body))
        on_body(protocol, body)

    monkeypatch.setattr(HttpToolsProtocol, "on_body", count)
    whole = b"".join(b"%x." % n for n in range(30_000))
    parts = [whole[start : start + size] for start in range(0, len(whole), size)]
    wire_form = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    taken: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            taken.append(message["body"])
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def receive_all() -> None:
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()
        protocol = paced(1000, 1000)(config, ServerState(), {}, asyncio.get_running_loop())
        transport = Dry()
        protocol.connection_made(transport)
        protocol.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        protocol.data_received(wire_form)
        # Of crumbs the rest has to wait, and no more of them is read meanwhile.
        assert (sum(handed_on) < len(whole)) is (size < 100)
        assert transport.paused
        await until(lambda: transport.written)
        assert not transport.paused
        transport.close()
        protocol.connection_lost(None)

    asyncio.run(receive_all())
    assert b"".join(taken) == whole
    assert len(handed_on) <= len(wire_form) / CHUNKED_AT_ONCE + 1


# -- whose name it is ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /jobs HTTP/1.1\r\nhost: localhost\r\n", 200),
        (b"GET /jobs HTTP/1.1\r\nhost: localhost \t\r\n", 200),
        (b"GET /jobs HTTP/1.1\r\n", 400),
        (b"GET /jobs HTTP/1.0\r\n", 200),
        (b"GET /jobs HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n", 400),
        (b"GET /jobs HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n", 400),
        (b"GET /jobs HTTP/1.1\r\nhost:\r\n", 403),
        (b"GET http://evil.example/jobs HTTP/1.1\r\nhost: localhost\r\n", 403),
        (b"GET http://localhost/jobs HTTP/1.1\r\nhost: evil.example\r\n", 200),
        (b"GET http://[::1]:80/jobs HTTP/1.1\r\nhost: x\r\n", 200),
        (b"GET http://localhost HTTP/1.1\r\nhost: x\r\n", 200),
        (b"GET http://user@localhost:80/jobs HTTP/1.1\r\n", 200),
    ],
)
def test_a_request_names_one_host_and_the_target_comes_first(api: Server, head: bytes, status: int) -> None:
    assert say(api, head + b"connection: close\r\n\r\n").statuses == [status]
