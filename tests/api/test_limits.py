"""Size and pace are bounded while a request comes in: nothing too large is buffered, nobody slow is waited for."""

import asyncio
import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import ollama
import openai
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from app.embedded import EmbeddedPostgres
from app.server.protocol import paced
from tests.api.conftest import problem_of
from tests.api.wire import Answer, connect, listen, say
from tests.conftest import Server, free_port, wait_until
from tests.patience import AT_ONCE
from tests.serving import serving

MIB = 1024 * 1024
TIMEOUT = 1.0


@pytest.fixture(scope="module")
def strict(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with little patience."""
    with serving(
        postgres,
        tmp_path_factory.mktemp("strict"),
        FOREMAN_REQUEST_TIMEOUT_SECONDS=str(TIMEOUT),
        FOREMAN_ROLE="api",
    ) as server:
        yield server


def memory(server: Server, field: str = "VmRSS") -> int:
    """Of the serving process, in bytes."""
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


@contextlib.contextmanager
def memory_grows_less_than(server: Server, limit: int) -> Iterator[None]:
    before = memory(server)
    highest = before
    over = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not over.wait(0.005):
            highest = max(highest, memory(server))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    assert highest - before < limit, f"it grew by {(highest - before) / MIB:.1f} MiB"


def body_of(size: int) -> bytes:
    """A JSON object of exactly this many bytes."""
    frame = b'{"kind":"own-kind","queue":"%b","payload":{"x":"%b"}}'
    return frame % (b"limits", b"x" * (size - len(frame % (b"limits", b""))))


def pieces(total: int, size: int = 64 * 1024) -> Iterator[bytes]:
    piece = b"x" * size
    for _ in range(total // size):
        yield piece


def test_sixteen_mebibytes_are_taken(client: httpx.Client) -> None:
    answer = client.post("/jobs", content=body_of(16 * MIB))
    assert answer.status_code == 202


def test_one_byte_more_is_too_large(client: httpx.Client) -> None:
    problem_of(client.post("/jobs", content=body_of(16 * MIB + 1)), 413, "payload_too_large")


@pytest.mark.parametrize(
    "path", ["/jobs", "/jobs/batch", "/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV/cancel", "/nowhere"]
)
def test_seventeen_mebibytes_are_refused_before_they_are_read(strict: Server, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {17 * MIB}\r\n\r\n".encode()
    with memory_grows_less_than(strict, 4 * MIB):
        answer = say(strict, head)
    assert answer.statuses == [413]  # at once: when the patience is over it is a 408
    assert answer.closed
    assert b"application/problem+json" in answer.raw
    assert b'"payload_too_large"' in answer.body


def test_a_large_body_sent_all_the_same_is_refused_without_being_kept(strict: Server) -> None:
    with memory_grows_less_than(strict, 6 * MIB), httpx.Client(base_url=strict.url, timeout=60) as client:
        for _ in range(3):
            problem_of(client.post("/jobs", content=body_of(17 * MIB)), 413, "payload_too_large")
    assert httpx.get(f"{strict.url}/healthz").status_code == 200


@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch", "/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV/cancel"])
def test_a_chunked_body_is_counted_while_it_is_read(strict: Server, path: str) -> None:
    """It says no length; what has been read of it until the limit may be kept, what comes after may not."""
    with memory_grows_less_than(strict, 60 * MIB), httpx.Client(base_url=strict.url, timeout=60) as client:
        answer = client.post(path, content=pieces(200 * MIB))
    problem_of(answer, 413, "payload_too_large")


def test_many_large_bodies_at_once_do_not_add_up(strict: Server) -> None:
    head = f"POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: {1000 * MIB}\r\n\r\n".encode()
    with memory_grows_less_than(strict, 10 * MIB):
        for _ in range(20):
            assert say(strict, head, patience=5).statuses == [413]


# -- all bodies together ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with room for three bodies."""
    with serving(
        postgres,
        tmp_path_factory.mktemp("narrow"),
        FOREMAN_MAX_BODY_BYTES=str(MIB),
        FOREMAN_MAX_ARTIFACT_BYTES=str(MIB),
        FOREMAN_MAX_BYTES_IN_FLIGHT=str(3 * MIB),
        FOREMAN_ROLE="api",
    ) as server:
        yield server


def bytes_in_flight(server: Server) -> int:
    found = re.search(
        r"^foreman_request_body_bytes (\S+)", httpx.get(f"{server.url}/metrics").text, re.MULTILINE
    )
    assert found is not None
    return int(float(found[1]))


def test_all_bodies_together_are_bounded_and_small_ones_still_pass(narrow: Server) -> None:
    large = body_of(MIB - 1000)
    head = f"POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(large)}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connect(narrow)).sendall(head + large[:-100])
        wait_until(lambda: bytes_in_flight(narrow) == 3 * (len(large) - 100))
        answer = say(narrow, head + large, patience=20)
        assert (answer.statuses, answer.closed) == ([503], True)
        assert b'"code":"unavailable"' in answer.body
        assert b"retry-after: 1" in answer.raw
        dialect = say(narrow, head.replace(b"/jobs", b"/v1/chat/completions") + large, patience=20)
        assert dialect.statuses == [503]
        assert b'{"error":{' in dialect.body
        # Announced only, it takes no room from anybody.
        stack.enter_context(connect(narrow)).sendall(head)
        assert httpx.post(f"{narrow.url}/jobs", content=body_of(1000)).status_code == 202
    # Broken off, they are let go of.
    wait_until(lambda: bytes_in_flight(narrow) == 0)
    assert httpx.post(f"{narrow.url}/jobs", content=large, timeout=30).status_code == 202
    assert bytes_in_flight(narrow) == 0


# -- refused while it still comes ------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
def test_who_sends_all_of_a_large_body_before_it_reads_is_told_that_it_is_too_large(
    narrow: Server, chunked: bool
) -> None:
    piece = b"x" * 64 * 1024
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % (17 * MIB)
    if chunked:
        piece = b"%x\r\n%b\r\n" % (len(piece), piece)
    for _ in range(40):
        with connect(narrow) as wire:
            wire.sendall(b"POST /jobs HTTP/1.1\r\nhost: localhost\r\n%b\r\n\r\n" % framing)
            for _ in range(17 * MIB // (64 * 1024)):
                wire.sendall(piece)
            answer = listen(wire, time.monotonic(), 60)
        assert (answer.statuses, answer.closed) == ([413], True)
        assert b'"payload_too_large"' in answer.body


@pytest.mark.parametrize("chunked", [False, True])
def test_httpx_hears_that_its_body_is_too_large(narrow: Server, chunked: bool) -> None:
    with httpx.Client(base_url=narrow.url, timeout=60) as client:
        for _ in range(20):
            content = pieces(17 * MIB) if chunked else b"x" * (17 * MIB)
            problem_of(client.post("/jobs", content=content), 413, "payload_too_large")


def test_real_clients_hear_that_their_body_is_too_large(narrow: Server) -> None:
    """Also those that send all of it before they listen, and take a broken pipe for the end."""
    large = "x" * (40 * MIB)
    asked: list[Any] = [{"role": "user", "content": large}]
    with (
        openai.OpenAI(base_url=f"{narrow.url}/v1", api_key="x", max_retries=0, timeout=60) as by_openai,
        ollama.Client(host=narrow.url, timeout=60) as by_ollama,
    ):
        with pytest.raises(openai.APIStatusError) as refused:
            by_openai.chat.completions.create(model="m", messages=asked)
        assert refused.value.status_code == 413
        assert refused.value.code == "payload_too_large"
        for stream in (False, True):
            with pytest.raises(ollama.ResponseError, match="at most 1048576 bytes") as unheard:
                list(by_ollama.chat("m", asked, stream=stream))
            assert unheard.value.status_code == 413
    for path in ("/api/generate", "/v1/embeddings", "/jobs", "/jobs/x/artifacts/y"):
        connection = http.client.HTTPConnection("127.0.0.1", narrow.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("PUT" if "artifacts" in path else "POST", path, body=large)
            answer = connection.getresponse()
            assert answer.status == 413, path
            assert surface_error(path, answer.read())


def surface_error(path: str, body: bytes) -> bool:
    document = json.loads(body)
    if path.startswith("/api/"):
        return isinstance(document["error"], str)
    problem = document["error"] if path.startswith("/v1/") else document
    return bool(problem["code"] == "payload_too_large")


def test_who_asks_first_whether_it_may_send_a_large_body_is_spared_it(narrow: Server) -> None:
    head = b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
    answer = say(narrow, head + b"content-length: %d\r\n\r\n" % (17 * MIB))
    assert (answer.statuses, answer.closed) == ([413], True)
    assert answer.body == b'{"error":"The body may have at most 1048576 bytes."}'


def test_a_large_body_behind_other_requests_is_refused_after_they_are_answered(narrow: Server) -> None:
    first = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (17 * MIB)
    with connect(narrow) as wire:
        wire.sendall(first + first + head)
        for piece in pieces(17 * MIB):
            wire.sendall(piece)
        answer = listen(wire, time.monotonic(), 60)
    assert (answer.statuses, answer.closed) == ([200, 200, 413], True)


@contextlib.contextmanager
def refusing(heard: list[str]) -> Iterator[int]:
    """The protocol with an application that listens and never answers; its port."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        heard.append("")
        while heard[-1] != "http.disconnect":
            heard.append((await receive())["type"])

    config = uvicorn.Config(
        app, port=free_port(), http=paced(1000, 1000), lifespan="off", log_config=None, loop="uvloop"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield config.port
    finally:
        server.should_exit = True
        thread.join(AT_ONCE)
    assert not thread.is_alive()


BROKEN = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\nno length\r\n"


def test_who_was_refused_and_stays_holds_up_neither_the_application_nor_the_server_s_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.server.connection.LINGER_SECONDS", 10_000)
    monkeypatch.setattr("app.server.connection.LINGER_IDLE_SECONDS", 10_000)
    heard: list[str] = []
    with contextlib.ExitStack() as stack:
        with refusing(heard) as port:
            wire = stack.enter_context(connect(Server("", port)))
            wire.sendall(BROKEN)
            answer = listen(wire, time.monotonic(), 60)
            assert (answer.statuses, answer.closed) == ([400], True)
            wait_until(lambda: heard[-1:] == ["http.disconnect"])
            wire.sendall(b"x" * MIB)
        # The server is gone, and with it the connection that was still open.
        wait_until(lambda: is_cut_off(wire))


@pytest.mark.parametrize(("bound", "value"), [("LINGER_SECONDS", 0.1), ("LINGER_BYTES", MIB)])
def test_who_was_refused_and_goes_on_sending_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: float
) -> None:
    monkeypatch.setattr("app.server.connection.LINGER_SECONDS", 10_000)
    monkeypatch.setattr("app.server.connection.LINGER_IDLE_SECONDS", 10_000)
    monkeypatch.setattr(f"app.server.connection.{bound}", value)
    with refusing([]) as port, connect(Server("", port)) as wire:
        wire.sendall(BROKEN)
        assert listen(wire, time.monotonic(), 60).statuses == [400]
        wait_until(lambda: is_cut_off(wire), 60)


def is_cut_off(wire: socket.socket) -> bool:
    try:
        wire.sendall(b"x" * 64 * 1024)
    except ConnectionError:
        return True
    return False


def test_who_waits_for_the_answer_does_not_hold_the_body(narrow: Server) -> None:
    with httpx.Client(base_url=narrow.url, timeout=60) as client, ThreadPoolExecutor(1) as pool:
        queue = f"waits-{time.monotonic_ns()}"
        body = body_of(MIB // 2).replace(b'"limits"', f'"{queue}"'.encode())
        waiting = pool.submit(client.post, "/jobs", content=body, headers={"prefer": "wait=60"})

        def submitted() -> list[str]:
            found = httpx.get(f"{narrow.url}/jobs", params={"queue": queue}).json()["jobs"]
            return [job["job_id"] for job in found]

        wait_until(lambda: len(submitted()) == 1)
        wait_until(lambda: bytes_in_flight(narrow) == 0)
        assert not waiting.done()
        httpx.post(f"{narrow.url}/jobs/{submitted()[0]}/cancel")
        assert waiting.result().status_code == 200


def test_others_are_answered_while_a_large_body_is_read(strict: Server) -> None:
    """What makes it slow is in it twice: deep nesting, and at its very end something that must be explained."""
    body = b'{"kind":"own-kind","payload":{"a":[' + (b"[" * 60 + b"]" * 60 + b",") * 50_000 + b"NaN]}}"
    seen = 0
    with ThreadPoolExecutor(1) as pool:
        posting = pool.submit(httpx.post, f"{strict.url}/jobs", content=body, timeout=100)
        while not posting.done():
            # Whoever is told that all of it has come asks between its last byte and its answer.
            seen += bytes_in_flight(strict) >= len(body)
    assert posting.result().status_code == 422
    assert seen > 0


# -- slow clients ----------------------------------------------------------------------------------------


def test_a_connection_that_says_nothing_is_closed(strict: Server) -> None:
    answer = say(strict)
    check_too_slow(answer)


@pytest.mark.parametrize(
    "half",
    [
        b"G",
        b"POST /jobs HT",
        b"POST /jobs HTTP/1.1\r\nhost: localhost\r\n",
        b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n",
        b'POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"kind"',
        b'POST /jobs HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n7\r\n{"kind"\r\n',
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\nGET /heal",
    ],
)
def test_a_half_sent_request_is_closed_after_the_time_out(strict: Server, half: bytes) -> None:
    answer = say(strict, half)
    check_too_slow(answer)


def check_too_slow(answer: Answer) -> None:
    assert answer.closed, "it is still open"
    assert answer.seconds > TIMEOUT * 0.8
    assert answer.statuses[-1] == 408
    assert b'"request_timeout"' in answer.raw


def drip(server: Server, head: bytes, drop: Callable[[int], bytes], every: float) -> Answer:
    """Send a little again and again; what the server says to that."""
    began = time.monotonic()
    with connect(server) as wire:
        wire.sendall(head)
        stop = threading.Event()

        def send() -> None:
            n = 0
            with contextlib.suppress(OSError):
                while not stop.wait(every):
                    wire.sendall(drop(n))
                    n += 1

        sender = threading.Thread(target=send)
        sender.start()
        try:
            return listen(wire, began, AT_ONCE)
        finally:
            stop.set()
            sender.join()


def test_headers_that_drip_in_are_not_waited_for(strict: Server) -> None:
    answer = drip(strict, b"GET /healthz HTTP/1.1\r\n", lambda n: f"x-{n}: y\r\n".encode(), 0.2)
    check_too_slow(answer)


@pytest.fixture
def hasty() -> Iterator[int]:
    """The protocol alone, with a time-out so short that ten of them can be waited for; its port."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(
        app, port=free_port(), http=paced(0.2, 5), lifespan="off", log_config=None, loop="uvloop"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started)
    yield config.port
    server.should_exit = True
    thread.join()


def test_a_body_that_drips_in_ends_after_ten_time_outs_at_the_latest(hasty: int) -> None:
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n"
    answer = drip(Server("", hasty), head, lambda _: b"x", 0.05)
    assert answer.closed
    assert answer.statuses == [408]


def test_a_body_in_steady_parts_is_taken_though_it_takes_longer_than_the_time_out(strict: Server) -> None:
    def send_steadily() -> Answer:
        body = body_of(400)
        began = time.monotonic()
        with connect(strict) as wire, contextlib.suppress(ConnectionError):
            wire.sendall(
                b"POST /jobs HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 400\r\n\r\n"
            )
            for start in range(0, 400, 100):
                threading.Event().wait(TIMEOUT * 0.5)
                wire.sendall(body[start : start + 100])
            return listen(wire, began, AT_ONCE)
        return Answer(b"", True, 0)

    # On a machine that stalls the parts may not be steady: it tries again, and one that is must be taken.
    for _ in range(10):
        answer = send_steadily()
        if answer.statuses != [408] and answer.closed and answer.raw:
            break
    assert answer.seconds > TIMEOUT * 1.5
    assert answer.statuses == [202], answer.raw


def test_waiting_for_a_job_is_not_being_slow(strict: Server) -> None:
    with httpx.Client(base_url=strict.url, timeout=20) as client:
        job_id = client.post("/jobs", json={"kind": "own-kind", "queue": "limits"}).json()["job_id"]
        answer = client.get(f"/jobs/{job_id}", params={"wait": TIMEOUT * 2.5})
        assert (answer.status_code, answer.json()["state"]) == (200, "queued")


def test_an_idle_connection_between_two_requests_is_kept(strict: Server) -> None:
    with connect(strict) as wire:
        for _ in range(2):
            wire.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            answer = listen(wire, time.monotonic(), AT_ONCE, until_answered=True)
            assert answer.statuses == [200]
            threading.Event().wait(TIMEOUT * 1.5)


def test_hundreds_of_stuck_connections_do_not_keep_others_from_being_served(strict: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connect(strict)).sendall(b"POST /jobs HTTP/1.1\r\n")
        assert httpx.get(f"{strict.url}/healthz", timeout=60).status_code == 200
        assert httpx.post(f"{strict.url}/jobs", json={"kind": "own-kind"}, timeout=60).status_code == 202

    def forgotten() -> bool:
        return len(list(Path(f"/proc/{strict.pid}/fd").iterdir())) < 150

    wait_until(forgotten, 10)


# -- headers ---------------------------------------------------------------------------------------------


def test_large_headers_are_taken_up_to_a_bound(strict: Server) -> None:
    fine = say(
        strict,
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: " + b"y" * 30_000 + b"\r\n\r\n",
    )
    assert fine.statuses == [200]


def test_headers_that_are_too_large_are_a_431(strict: Server) -> None:
    answer = say(strict, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 600_000)
    assert answer.statuses == [431]
    assert b'"status":431' in answer.body
    assert b'"payload_too_large"' in answer.body


@pytest.mark.parametrize(
    "line",
    [b"x-%d: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n", b"yyyyyyyyyyyyyyyyyyyyyyyyyyyyyy%d"],
)
def test_headers_without_end_are_refused(strict: Server, line: bytes) -> None:
    async def send() -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", strict.port)
        began = time.monotonic()
        writer.write(
            b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + (b"" if line.endswith(b"\n") else b"x: ")
        )
        raw = b""
        with contextlib.suppress(ConnectionError):
            for n in range(200_000):
                writer.write(line % n)
                await writer.drain()
                if reader.at_eof():
                    break
        with contextlib.suppress(ConnectionError, TimeoutError):
            raw = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return Answer(raw, True, time.monotonic() - began)

    with memory_grows_less_than(strict, 4 * MIB):
        answer = asyncio.run(send())
    # The answer may be lost with the connection; what counts is that it is closed.
    if answer.statuses:
        assert answer.statuses == [431]
        assert b'"status":431' in answer.body


def test_a_client_that_hangs_up_in_the_middle_of_its_body_leaves_nothing_behind(strict: Server) -> None:
    for _ in range(20):
        with connect(strict) as wire:
            wire.sendall(
                b'POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"kind":"noop"'
            )
    assert httpx.get(f"{strict.url}/healthz").status_code == 200
    assert "request.failed" not in strict.log()
    assert "Traceback" not in strict.log()
