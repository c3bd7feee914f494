"""What a connection may say: no upgrade, one request at a time, no trailers, and never more than it may cost."""

import contextlib
import select
import socket
import time

import httpx
import pytest

from tests.api.test_limits import MIB, memory_grows_less_than
from tests.api.wire import Answer, connect, listen, say
from tests.conftest import Server

CLOSE = b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def segments(wire: socket.socket, *parts: bytes) -> Answer:
    """Send each part when the one before is surely a segment of its own; what is answered until the end."""
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for part in parts:
        wire.sendall(part)
        time.sleep(0.05)
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
            time.sleep(0.05)
            wire.sendall(body[:10])
            time.sleep(0.05)
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
        with contextlib.suppress(ConnectionError):
            for _ in range(30 * MIB // len(more)):
                wire.sendall(more)
            answer = listen(wire, time.monotonic(), 20)
            assert answer.closed
            assert set(answer.statuses) <= {431}
            return
    # Cut off while it was still sending.


# -- whose name it is ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /jobs HTTP/1.1\r\nhost: localhost\r\n", 200),
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
