"""GET /jobs/{id}/events as server-sent events: complete, live, resumable, bounded."""

import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.conftest import MakeServer, Server, wait_until
from tests.events.helpers import chat, claim, held, job, post_event, read, running, settle, words
from tests.events.sse import STREAM, Block, Parser, all_blocks, blocks


def url_of(server: Server, job_id: str) -> str:
    return f"{server.url}/jobs/{job_id}/events"


class Listener:
    """Follows a stream in a thread."""

    def __init__(self, stream: Iterator[Block]) -> None:
        self.blocks: list[Block] = []
        self.ended = threading.Event()
        self._stream = stream
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for block in self._stream:
                self.blocks.append(block)
        except httpx.TransportError:
            # The server was killed at the end of the test; `ended` is for streams that were.
            return
        self.ended.set()

    def seqs(self) -> list[int]:
        return [block.json["seq"] for block in self.blocks]

    def until(self, count: int, seconds: float = 10) -> None:
        wait_until(lambda: len(self.blocks) >= count, seconds, lambda: f"only {self.seqs()}")


def metric(server: Server, name: str) -> float:
    for line in httpx.get(f"{server.url}/metrics").text.splitlines():
        if line.startswith(name + " "):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def test_a_stream_tells_a_finished_jobs_whole_story_and_ends(shared: Server) -> None:
    job_id = chat(shared, words(10), delay_ms=20)
    done = job(shared, job_id, wait=20)
    told = all_blocks(url_of(shared, job_id))
    page = read(shared, job_id)
    assert [block.json for block in told] == page["events"]
    assert [block.id for block in told] == [str(seq) for seq in range(1, done["seq"] + 1)]
    assert [block.event for block in told] == [event["type"] for event in page["events"]]


def test_a_stream_goes_on_live_and_ends_after_the_terminal_event(shared: Server) -> None:
    claimed = running(shared)
    listener = Listener(blocks(url_of(shared, claimed["job_id"])))
    listener.until(2)
    post_event(shared, claimed["job_id"], "approve", 1)
    listener.until(3)
    settle(shared, claimed, "start")
    settle(shared, claimed, "progress", fraction=0.5)
    listener.until(5)
    assert not listener.ended.is_set()
    settle(shared, claimed, "complete", result={"ok": True})
    assert listener.ended.wait(60)
    assert [block.event for block in listener.blocks] == [
        "queued",
        "loading",
        "approve",
        "working",
        "progress",
        "done",
    ]


@pytest.mark.parametrize("how", ["after", "Last-Event-ID"])
def test_a_stream_resumes_right_behind_the_cursor(shared: Server, how: str) -> None:
    job_id = chat(shared, words(10), delay_ms=20)
    done = job(shared, job_id, wait=20)
    for seen in range(done["seq"]):
        query = {"after": seen} if how == "after" else {}
        headers = {"Last-Event-ID": str(seen)} if how == "Last-Event-ID" else {}
        told = all_blocks(url_of(shared, job_id), params=query, headers=headers)
        assert [block.json["seq"] for block in told] == list(range(seen + 1, done["seq"] + 1))


def test_last_event_id_is_newer_than_the_urls_after(shared: Server) -> None:
    job_id = chat(shared, "a b c")
    done = job(shared, job_id, wait=20)
    told = all_blocks(url_of(shared, job_id), params={"after": 1}, headers={"Last-Event-ID": "3"})
    assert [block.json["seq"] for block in told] == list(range(4, done["seq"] + 1))


def test_a_browser_that_has_seen_everything_is_told_not_to_come_back(shared: Server) -> None:
    job_id = chat(shared, "a b c")
    done = job(shared, job_id, wait=20)
    answer = httpx.get(url_of(shared, job_id), headers={**STREAM, "Last-Event-ID": str(done["seq"])})
    assert answer.status_code == 204
    # Who only says where to begin gets an empty stream.
    assert all_blocks(url_of(shared, job_id), params={"after": done["seq"]}) == []


@pytest.mark.parametrize("seen", ["x", "-1", "1.2", "99", "1" * 30])
def test_a_last_event_id_that_was_never_given_out_is_refused(shared: Server, seen: str) -> None:
    answer = httpx.get(url_of(shared, held(shared)), headers={**STREAM, "Last-Event-ID": seen})
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid_request"


def test_only_the_wanted_types_are_told_and_the_stream_still_ends(shared: Server) -> None:
    claimed = running(shared)
    listener = Listener(blocks(url_of(shared, claimed["job_id"]), params={"types": "approve,working"}))
    post_event(shared, claimed["job_id"], "note")
    post_event(shared, claimed["job_id"], "approve")
    settle(shared, claimed, "complete", result=1)
    assert listener.ended.wait(60)
    assert [block.event for block in listener.blocks] == ["approve", "working"]


def test_a_stream_on_which_nothing_happens_says_so(shared: Server) -> None:
    """The shared server keeps alive every 0.3 s instead of every 15."""
    parser = Parser()
    listener = Listener(blocks(url_of(shared, held(shared)), parser=parser))
    listener.until(1)
    wait_until(lambda: parser.comments >= 3)
    assert len(listener.blocks) == 1


def test_line_breaks_in_a_payload_do_not_break_the_framing(shared: Server) -> None:
    job_id = held(shared)
    body = b'{"type":"note","payload":{\r\n"a":\n\n[1,\r2]}}'
    assert httpx.post(url_of(shared, job_id), content=body).status_code == 201
    listener = Listener(blocks(url_of(shared, job_id)))
    listener.until(2)
    assert listener.blocks[1].json["data"] == {"a": [1, 2]}
    assert listener.blocks[1].id == "2"


def test_a_revived_job_is_followed_past_its_failure(shared: Server) -> None:
    claimed = running(shared)
    job_id = claimed["job_id"]
    first = Listener(blocks(url_of(shared, job_id)))
    settle(shared, claimed, "fail", error={"code": "x", "message": "x"}, retryable=False)
    assert first.ended.wait(60)
    assert first.blocks[-1].event == "failed"
    assert httpx.post(f"{shared.url}/jobs/{job_id}/retry").status_code == 200
    second = Listener(blocks(url_of(shared, job_id), headers={"Last-Event-ID": first.blocks[-1].id or ""}))
    second.until(1)
    again = claim(shared, claimed["kind"])
    settle(shared, again, "complete", result=1)
    assert second.ended.wait(60)
    assert [block.event for block in second.blocks] == ["queued", "loading", "working", "done"]
    whole = all_blocks(url_of(shared, job_id))
    assert [block.json["seq"] for block in whole] == list(range(1, len(whole) + 1))
    assert whole[-1].event == "done"


def test_what_came_after_the_end_is_told_to_those_who_come_later(shared: Server) -> None:
    claimed = running(shared)
    settle(shared, claimed, "complete", result=1)
    settle(shared, claimed, "complete", result=2)
    told = all_blocks(url_of(shared, claimed["job_id"]))
    assert [block.event for block in told] == ["queued", "loading", "working", "done", "late_settlement"]


def test_the_stream_of_a_deleted_job_ends(shared: Server) -> None:
    job_id = held(shared)
    listener = Listener(blocks(url_of(shared, job_id)))
    listener.until(1)
    # Cancelled and deleted in one breath: the stream may or may not see the first of it.
    httpx.post(f"{shared.url}/jobs/{job_id}/cancel")
    httpx.delete(f"{shared.url}/jobs/{job_id}")
    assert listener.ended.wait(60)


def test_a_reader_that_hangs_up_is_forgotten(make_server: MakeServer) -> None:
    server = make_server()
    job_id = held(server)
    with httpx.stream("GET", url_of(server, job_id), headers=STREAM) as response:
        pieces = response.iter_bytes()
        next(pieces)
        assert metric(server, 'foreman_streams_open{of="events"}') == 1
        assert metric(server, "foreman_watches") == 1
    wait_until(lambda: metric(server, 'foreman_streams_open{of="events"}') == 0)
    assert metric(server, "foreman_watches") == 0


def test_more_streams_than_the_cap_are_refused_with_429(make_server: MakeServer) -> None:
    server = make_server(FOREMAN_MAX_STREAMS="3")
    job_id = held(server)
    listeners = [Listener(blocks(url_of(server, job_id))) for _ in range(3)]
    for listener in listeners:
        listener.until(1)
    for path in (f"/jobs/{job_id}/events", "/events"):
        answer = httpx.get(server.url + path, headers=STREAM)
        assert answer.status_code == 429
        assert answer.json()["code"] == "rate_limited"
        assert int(answer.headers["retry-after"]) >= 1
    # Reading without holding on is no stream.
    assert read(server, job_id)["next_after"] == 1
    httpx.post(f"{server.url}/jobs/{job_id}/cancel")
    for listener in listeners:
        assert listener.ended.wait(60)
    assert [block.event for block in all_blocks(url_of(server, job_id))] == ["queued", "cancelled"]


def test_a_reader_that_does_not_read_is_hung_up_on_and_can_resume(make_server: MakeServer) -> None:
    server = make_server(FOREMAN_SLOW_READER_SECONDS="0.5")
    job_id = held(server)
    for number in range(60):
        post_event(server, job_id, "large", [number, "x" * 60_000])
    with socket.socket() as line:
        # Small, or the kernel takes it all.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", server.port))
        line.sendall(
            f"GET /jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        wait_until(lambda: metric(server, "foreman_slow_readers_total") == 1)
        wait_until(lambda: metric(server, 'foreman_streams_open{of="events"}') == 0)
    listener = Listener(blocks(url_of(server, job_id), headers={"Last-Event-ID": "1"}))
    listener.until(60, 30)
    assert listener.seqs() == list(range(2, 62))


def test_streams_end_when_the_server_stops_and_the_next_one_goes_on(make_server: MakeServer) -> None:
    server = make_server()
    job_id = held(server)
    listener = Listener(blocks(url_of(server, job_id)))
    listener.until(1)
    assert server.stop() == 0
    assert listener.ended.wait(60)
    successor = make_server()
    post_event(successor, job_id, "note")
    resumed = Listener(
        blocks(url_of(successor, job_id), headers={"Last-Event-ID": listener.blocks[-1].id or ""})
    )
    resumed.until(1)
    assert resumed.seqs() == [2]


def test_an_open_stream_holds_no_database_connection(make_server: MakeServer) -> None:
    server = make_server(FOREMAN_DATABASE_CONNECTIONS="2")
    jobs = [held(server) for _ in range(5)]
    listeners = [Listener(blocks(url_of(server, jobs[n % 5]))) for n in range(40)]
    for listener in listeners:
        listener.until(1, 20)
    # With as many connections held as there are streams, this would be a 503.
    claimed = running(server)
    assert settle(server, claimed, "complete", result=1).status_code == 200
    for job_id in jobs:
        httpx.post(f"{server.url}/jobs/{job_id}/cancel")
    for listener in listeners:
        assert listener.ended.wait(60)
        assert listener.blocks[-1].event == "cancelled"


def ask_for_stream(job_id: str) -> bytes:
    return (
        f"GET /jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode()
    )


def test_a_crowd_of_streams_is_let_in_while_others_submit(shared: Server) -> None:
    """They wait their turn; the ones that hang up meanwhile, or come in pieces, harm nobody."""
    job_id = chat(shared, "hello")
    wait_until(lambda: job(shared, job_id)["state"] == "done")
    request = ask_for_stream(job_id)
    crowd = [socket.create_connection(("127.0.0.1", shared.port), 20) for _ in range(120)]
    for number, each in enumerate(crowd):
        # Whole; in two pieces; and whole with the beginning of what would be the next one.
        each.sendall({0: request, 1: request[:70], 2: request + request[:20]}[number % 3])
    assert httpx.post(f"{shared.url}/jobs", json={"kind": "noop"}, timeout=20).status_code == 202
    for each in crowd[1::3]:
        each.sendall(request[70:])
    for each in crowd[::10]:
        each.close()
    for each in (each for number, each in enumerate(crowd) if number % 10):
        heard = b""
        while b"event: done" not in heard:
            data = each.recv(65536)
            assert data, heard
            heard += data
        each.close()


def test_a_request_for_a_stream_that_never_ends_is_refused(shared: Server) -> None:
    """Nobody can wait for its turn to be read and pile up memory meanwhile."""
    with socket.create_connection(("127.0.0.1", shared.port), 20) as line:
        line.sendall(b"GET /events HTTP/1.1\r\nAccept: text/event-stream\r\n")
        answer = b""
        try:
            for _ in range(200):
                line.sendall(b"X-Padding: " + b"x" * 1000 + b"\r\n")
            while data := line.recv(65536):
                answer += data
        except ConnectionError:
            pass
        # The answer may be lost when it is hung up on while still sending.
        assert answer == b"" or answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
    assert httpx.get(f"{shared.url}/healthz").status_code == 200
