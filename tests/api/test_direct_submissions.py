"""`POST /jobs` by the short way, on the wire: whatever is sent is answered as the ordinary way answers it.

A request whose head comes in two parts goes the ordinary way, so each is sent once in one and once in two.
"""

import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.api.wire import Answer, connect, listen, unread
from tests.conftest import MakeServer, Server, free_port, wait_until
from tests.patience import AT_ONCE, until

BODY = b'{"kind":"noop","payload":{"a": 1.0}}'
TRACE = b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
POST = b"POST /jobs HTTP/1.1"


def request(
    *headers: bytes, body: bytes = BODY, line: bytes = POST, host: bytes | None = b"host: localhost"
) -> bytes:
    """With a length, unless the headers say how long it is."""
    said = [line] if host is None else [line, host]
    if not any(re.match(rb"(?i)content-length|transfer-encoding", each) for each in headers):
        said.append(b"content-length: %d" % len(body))
    return b"\r\n".join([*said, *headers, b"", body])


def send(server: Server, *parts: bytes) -> Answer:
    """Each part is read before the next one comes. What is answered, or all if the connection is to end."""
    with connect(server) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts[:-1]:
            wire.sendall(part)
            wait_until(lambda: not unread(server.port), every=0.001)
        wire.sendall(parts[-1])
        ends = b"connection: close\r\n" in b"".join(parts)
        return listen(wire, time.monotonic(), AT_ONCE, until_answered=not ends)


def alike(raw: bytes) -> bytes:
    """An answer without what differs each time: ids, the date, the number of the request."""
    raw = re.sub(rb"[0-7][0-9A-HJKMNP-TV-Z]{25}", b"ID", raw)
    raw = re.sub(rb"date: [^\r]+", b"date: now", raw)
    return re.sub(rb"x-request-id: [0-9a-f]{12}-[0-9a-f]+\r", b"x-request-id: made\r", raw)


def both(server: Server, raw: bytes) -> tuple[bytes, bytes]:
    """What is answered by the short way, or what it leaves to the other; and by the ordinary one."""
    return alike(send(server, raw).raw), alike(send(server, raw[:5], raw[5:]).raw)


ORDINARY = {
    "plain": request(),
    "a chat": request(body=b'{"model":"echo","messages":[]}'),
    "content type": request(b"content-type: text/plain"),
    "all that clients say": request(
        b"Accept: */*", b"Accept-Encoding: gzip", b"User-Agent: x/1", b"Connection: keep-alive"
    ),
    "trace": request(TRACE, b"tracestate: a=1"),
    "no trace": request(b"traceparent: 00-x"),
    "request id": request(b"x-request-id: mine"),
    "authorization": request(b"authorization: Bearer fmn_x"),
    "proxied": request(b"x-forwarded-for: 10.0.0.1", b"x-forwarded-host: evil.example"),
    "blanks": request(body=b' {"kind" : "noop"}\n'),
    "delayed": request(body=b'{"kind":"noop","delay_seconds":60,"metadata":{"a":"b"}}'),
    "same key twice in the body": request(body=b'{"kind":"own","kind":"noop"}'),
}
UNUSUAL = {
    "prefer": request(b"prefer: wait=0", body=b'{"kind":"own.k"}'),
    "prefer nothing": request(b"prefer: handling=lenient"),
    "expect": request(b"expect: 100-continue", b"connection: close"),
    "close": request(b"connection: close"),
    "upgrade": request(b"connection: upgrade", b"upgrade: h2c"),
    "own page": request(b"origin: http://localhost", b"content-type: application/json"),
    "own page, simple body": request(b"origin: http://localhost"),
    "foreign page": request(b"origin: http://evil.example", b"content-type: application/json"),
    "cross-site": request(b"sec-fetch-site: cross-site"),
    "foreign host": request(host=b"host: evil.example"),
    "odd host": request(host=b"host: local host"),
    "no host": request(host=None),
    "empty host": request(host=b"host:"),
    "two hosts": request(b"host: localhost"),
    "odd request id": request(b"x-request-id: a b"),
    "long request id": request(b"x-request-id: " + b"x" * 200),
    "blanks around": request(b"x-request-id:  mine \t"),
    "two request ids": request(b"x-request-id: a", b"x-request-id: b"),
    "two traces": request(TRACE, b"traceparent: x"),
    "two lengths": request(b"content-length: 36", b"content-length: 36"),
    "lengths that differ": request(b"content-length: 36", b"content-length: 37"),
    "odd length": request(b"content-length: +36"),
    "length with blanks": request(b"content-length:  36 "),
    "no length": request(b"content-length: 0", body=b""),
    "chunked": request(b"transfer-encoding: chunked", body=b"24\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "chunked with a length": request(b"transfer-encoding: chunked", b"content-length: 36"),
    "header without a colon": request(b"accept"),
    "header without a value": request(b"accept:"),
    "blank before the colon": request(b"accept : x"),
    "folded": request(b"accept: x\r\n y"),
    "tab": request(b"accept: x\ty"),
    "not ascii": request(b"user-agent: \xe9"),
    "a NUL": request(b"user-agent: \x00"),
    "a bare line feed": request(b"accept: x\nhost: evil.example"),
    "a bare carriage return": request(b"accept: x\rhost: evil.example"),
    "large head": request(b"user-agent: " + b"x" * 20_000),
    "key of nothing": request(b'idempotency-key: ""'),
    "key that is not ascii": request(b"idempotency-key: \xe9"),
    "HTTP/1.0": request(line=b"POST /jobs HTTP/1.0"),
    "HTTP/1.0 kept": request(b"connection: keep-alive", line=b"POST /jobs HTTP/1.0"),
    "PUT": request(line=b"PUT /jobs HTTP/1.1"),
    "query": request(line=b"POST /jobs?x=1 HTTP/1.1"),
    "slash": request(line=b"POST /jobs/ HTTP/1.1"),
    "absolute": request(line=b"POST http://localhost/jobs HTTP/1.1"),
    "lower case": request(line=b"post /jobs HTTP/1.1"),
}
BODIES = {
    "not json": b"{",
    "same key twice, once wrong": b'{"kind":1,"kind":"noop"}',
    "an array": b"[]",
    "bad utf-8": b'{"kind":"noop","payload":{"a":"\xff"}}',
    "nan": b'{"kind":"noop","payload":{"a":NaN}}',
    "lone surrogate": b'{"kind":"noop","payload":{"a":"\\ud800"}}',
    "nul": b'{"kind":"noop","metadata":{"a":"\\u0000"}}',
    "deep": b'{"kind":"noop","payload":' + b'{"a":' * 70 + b"1" + b"}" * 71,
    "unknown field": b'{"kind":"noop","x":1}',
    "several wrong fields": b'{"kind":"","priority":999,"run_at":"x"}',
    "pairs": b'{"kind":"noop","deadline_seconds":1,"deadline":"2030-01-01T00:00:00Z"}',
    "payload is no object": b'{"kind":"noop","payload":[1]}',
    "no model": b'{"kind":"chat"}',
    "no parent": b'{"kind":"noop","parent_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV"}',
    "no such job to wait for": b'{"kind":"noop","depends_on":["01ARZ3NDEKTSV4RRFFQ69G5FAV"]}',
    "http without url": b'{"kind":"http"}',
    "webhook to nowhere": b'{"kind":"noop","state_webhook_url":"ftp://x"}',
    "large": b'{"kind":"noop","payload":{"a":"' + b"x" * 100_000 + b'"}}',
}


def head_and_body(server: Server, raw: bytes) -> bytes:
    """The same to a client that sends them one after the other."""
    head, end, body = raw.partition(b"\r\n\r\n")
    return alike(send(server, head + end, body).raw)


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_submission_is_answered_alike(api: Server, name: str) -> None:
    short, ordinary = both(api, ORDINARY[name])
    assert short == ordinary == head_and_body(api, ORDINARY[name])
    assert short.startswith(b"HTTP/1.1 202 Accepted\r\ndate: now\r\ncontent-length: 77\r\n")
    assert short.endswith(b'\r\n\r\n{"job_id":"ID","state":"queued","outcome":"accepted"}')


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_one_is_answered_alike(api: Server, name: str) -> None:
    short, ordinary = both(api, UNUSUAL[name])
    assert short == ordinary
    assert short.startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_not_just_a_job_is_answered_alike(api: Server, name: str) -> None:
    raw = request(body=BODIES[name])
    short, ordinary = both(api, raw)
    assert short == ordinary == head_and_body(api, raw)
    assert short.startswith(b"HTTP/1.1 ")


def job_of(answer: Answer) -> str:
    found = re.search(rb'"job_id":"(\w{26})"', answer.raw)
    assert found, answer.raw
    return found[1].decode()


def test_the_job_is_the_same_whichever_way_it_came(api: Server, client: httpx.Client) -> None:
    body = b'{"kind":"own.k","queue":"ways","priority":7,"metadata":{"a":"b"},"payload":{"b": 1.50,"a":"\\u00e4"}}'
    raw = request(TRACE, b"tracestate: a=1", b"x-request-id: mine", body=body)
    jobs = [
        client.get(f"/jobs/{job_of(each)}").text for each in (send(api, raw), send(api, raw[:9], raw[9:]))
    ]
    moments = re.compile(r'"\d{4}-\d\d-\d\dT[^"]+"|"queue_position":\d+|seconds":[\d.e-]+|[0-9A-Z]{26}')
    short, ordinary = (moments.sub("", each) for each in jobs)
    assert short == ordinary
    assert '"payload":{"b": 1.50,"a":"\\u00e4"}' in short
    assert '"request_id":"mine"' in short


def test_the_first_answer_is_given_again_whichever_way_it_is_asked(api: Server, queue: str) -> None:
    key = b"idempotency-key: " + queue.encode()
    raw = request(key)
    first = send(api, raw)
    assert b"idempotency-replayed" not in first.raw
    again, other = send(api, raw), send(api, raw[:5], raw[5:])
    assert job_of(first) == job_of(again) == job_of(other)
    assert alike(again.raw) == alike(other.raw)
    assert b"idempotency-replayed: true\r\n" in again.raw
    short, ordinary = both(api, request(key, body=b'{"kind":"noop"}'))
    assert short == ordinary
    assert b'"code":"idempotency_mismatch"' in short


def test_a_queue_with_rules_is_asked_whichever_way(api: Server, client: httpx.Client, queue: str) -> None:
    settings = {"key": ["k"], "when_full": "coalesce"}
    assert client.put(f"/queues/{queue}", json=settings).status_code in {200, 201}
    raw = request(body=b'{"kind":"own.k","queue":"%b"}' % queue.encode())
    assert send(api, raw).statuses == [202]
    short, ordinary = both(api, raw)
    assert short == ordinary
    assert b'"outcome":"coalesced"' in short


def test_it_may_be_split_anywhere(api: Server) -> None:
    raw = request()
    with connect(api) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(raw)):
            wire.sendall(raw[:at])
            wait_until(lambda: not unread(api.port), every=0.001)
            wire.sendall(raw[at:])
            answer = listen(wire, time.monotonic(), AT_ONCE, until_answered=True)
            assert answer.statuses == [202], at


CLOSE = request(b"connection: close")


@pytest.mark.parametrize(
    "behind", [CLOSE, request(b"prefer: x"), b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"]
)
def test_what_comes_behind_it_is_answered_after_it(api: Server, behind: bytes) -> None:
    for parts in ([request() + behind + CLOSE], [request(), behind, CLOSE], [request(), behind + CLOSE]):
        with connect(api) as wire:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for part in parts:
                wire.sendall(part)
            answer = listen(wire, time.monotonic(), AT_ONCE)
        assert answer.closed
        expected = [202, 202] if behind == CLOSE else [202, 200 if behind.startswith(b"GET") else 202, 202]
        assert answer.statuses == expected, answer.raw
        ids = re.findall(rb'"job_id":"(\w+)"', answer.raw)
        assert len(set(ids)) == len(ids)


def test_rubbish_behind_it_does_not_spoil_its_answer(api: Server) -> None:
    with connect(api) as wire:
        wire.sendall(request())
        wire.sendall(b"\x00\x01\x02\r\n\r\n")
        answer = listen(wire, time.monotonic(), AT_ONCE)
    assert (answer.statuses, answer.closed) == ([202, 400], True)


def test_whoever_leaves_without_waiting_has_submitted_all_the_same(
    api: Server, client: httpx.Client, queue: str
) -> None:
    raw = request(body=b'{"kind":"own.k","queue":"%b"}' % queue.encode())
    for reset in (False, True) * 5:
        with connect(api) as wire:
            wire.sendall(raw)
            if reset:
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            wait_until(lambda: not unread(api.port), every=0.001)
    wait_until(lambda: len(client.get("/jobs", params={"queue": queue}).json()["jobs"]) == 10)
    assert send(api, raw).statuses == [202]


def test_whoever_says_that_he_says_no_more_is_answered_alike(api: Server) -> None:
    answers = []
    for parts in ([request()], [request()[:5], request()[5:]]):
        with connect(api) as wire:
            for part in parts:
                wire.sendall(part)
            wire.shutdown(socket.SHUT_WR)
            answers.append(listen(wire, time.monotonic(), AT_ONCE))
    assert all(each.closed for each in answers)


def counted(client: httpx.Client, status: int) -> float:
    line = f'foreman_request_seconds_count{{method="POST",route="/jobs",status="{status}"}} '
    found = re.search(re.escape(line) + r"(\S+)", client.get("/metrics").text)
    return float(found[1]) if found else 0.0


def test_each_is_counted_once_whichever_way_it_came(api: Server, client: httpx.Client) -> None:
    before, refused = counted(client, 202), counted(client, 422)
    for _ in range(3):
        both(api, request())
        both(api, request(body=b'{"kind":"noop","x":1}'))
    wait_until(lambda: counted(client, 202) == before + 6)
    wait_until(lambda: counted(client, 422) == refused + 6)


# -- the database away, and the end ----------------------------------------------------------------------


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path / "postgres", durable=False) as server:
        yield server


def test_a_database_that_is_away_is_said_alike(own_postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    server = Server(own_postgres.dsn, free_port(), {"FOREMAN_ROLE": "api"}, log_path=tmp_path / "log")
    server.start()
    try:
        assert both(server, request())[0].startswith(b"HTTP/1.1 202 ")
        own_postgres.stop()
        short, ordinary = both(server, request())
        assert short == ordinary
        assert short.startswith(b"HTTP/1.1 503 ")
        assert re.search(rb"\r\nretry-after: \d+\r\n", short)
        assert b"content-type: application/problem+json\r\n" in short
        own_postgres.start()
        wait_until(lambda: both(server, request())[0].startswith(b"HTTP/1.1 202 "), 20)
    finally:
        server.stop()


WAITS_FOR_THE_LOCK = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%WITH input AS%'"
)


async def test_what_is_being_written_when_the_server_ends_is_answered_first(
    make_server: MakeServer, database_url: str
) -> None:
    server = make_server(FOREMAN_ROLE="api", FOREMAN_SHUTDOWN_GRACE_SECONDS="100")
    assert server.process is not None
    holder, observer = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    with connect(server) as short, connect(server) as ordinary:
        try:
            async with holder.transaction():
                await holder.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
                ordinary.sendall(request()[:5])
                await until(lambda: not unread(server.port))
                ordinary.sendall(request()[5:])
                short.sendall(request())
                await until(lambda: observer.fetchval(WAITS_FOR_THE_LOCK))
                await until(lambda: not unread(server.port))
                server.process.send_signal(signal.SIGTERM)
                await until(lambda: _refuses(server))
            answers = [listen(wire, time.monotonic(), AT_ONCE) for wire in (short, ordinary)]
        finally:
            await holder.close()
    assert server.process.wait(120) == 0
    assert alike(answers[0].raw) == alike(answers[1].raw)
    for answer in answers:
        assert (answer.statuses, answer.closed) == ([202], True)
        assert b"\r\nconnection: close\r\n" in answer.raw
    there = {row["id"] for row in await observer.fetch("SELECT id FROM jobs")}
    await observer.close()
    assert there == {job_of(answer) for answer in answers}


def _refuses(server: Server) -> bool:
    try:
        connect(server).close()
    except OSError:
        return True
    return False
