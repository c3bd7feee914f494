"""Whoever hangs up cancels the job, in whatever state; unless it said that the job shall go on."""

import socket
from typing import Any

import httpx
import ollama
import orjson
import pytest

from tests.conftest import Server, wait_until
from tests.fakes import FakeOllama
from tests.passthrough.conftest import job_of, jobs_of

HELLO = [{"role": "user", "content": "Hello, world"}]


class RawCaller:
    """A client that can be killed: a socket."""

    def __init__(self, server: Server, path: str, body: dict[str, Any], **headers: str) -> None:
        content = orjson.dumps(body)
        self.socket = socket.create_connection(("127.0.0.1", server.port))
        lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(content)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + content)

    def kill(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()


def the_job(server: Server) -> dict[str, Any]:
    wait_until(lambda: jobs_of(server))
    return job_of(server, jobs_of(server)[0]["job_id"])


SURFACES: list[tuple[str, dict[str, Any]]] = [
    ("/api/chat", {"model": "llama3.2", "messages": HELLO}),
    ("/api/chat", {"model": "llama3.2", "messages": HELLO, "stream": False}),
    ("/v1/chat/completions", {"model": "llama3.2", "messages": HELLO, "stream": True}),
    ("/v1/chat/completions", {"model": "llama3.2", "messages": HELLO}),
]


@pytest.mark.parametrize(("path", "body"), SURFACES)
def test_a_caller_killed_in_mid_answer_ends_the_targets_work_within_a_second(
    foreman: Server, fake: FakeOllama, path: str, body: dict[str, Any]
) -> None:
    fake.control(token_seconds=0.05, reply_tokens=400)
    caller = RawCaller(foreman, path, body)
    fake.wait_for(lambda stats: stats["running"] == 1)
    if body.get("stream", path.startswith("/api")):
        assert b"200 OK" in caller.socket.recv(4096)
    caller.kill()
    fake.wait_for(lambda stats: stats["aborted"] == 1 and stats["running"] == 0, timeout=1.0)
    # The answer would have taken 20 s.
    wait_until(lambda: the_job(foreman)["state"] == "cancelled", 5)
    assert the_job(foreman)["reason"] == "client_disconnected"


def test_a_caller_who_said_continue_leaves_its_job_running(foreman: Server, fake: FakeOllama) -> None:
    fake.control(token_seconds=0.02, reply_tokens=40)
    path, body = SURFACES[0]
    caller = RawCaller(foreman, path, body, x_foreman_on_disconnect="continue")
    fake.wait_for(lambda stats: stats["running"] == 1)
    caller.kill()
    job = job_of(foreman, the_job(foreman)["job_id"], 20)
    assert job["state"] == "done"
    assert fake.stats()["aborted"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_killed_while_the_model_loads_aborts_the_load(
    foreman: Server, fake: FakeOllama, stream: bool
) -> None:
    fake.control(swap_seconds=20)
    caller = RawCaller(foreman, "/api/chat", {"model": "qwen3:8b", "messages": HELLO, "stream": stream})
    wait_until(lambda: the_job(foreman)["state"] == "loading")
    fake.wait_for(lambda stats: stats["waiting"] == 1)
    caller.kill()
    fake.wait_for(lambda stats: stats["waiting"] == 0, timeout=1.0)
    wait_until(lambda: the_job(foreman)["state"] == "cancelled", 5)


@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_killed_while_its_job_is_queued_cancels_it(
    foreman: Server, fake: FakeOllama, stream: bool
) -> None:
    fake.stop()
    try:
        caller = RawCaller(foreman, "/api/chat", {"model": "llama3.2", "messages": HELLO, "stream": stream})
        wait_until(lambda: the_job(foreman)["reason"] == "target_asleep", 10)
        caller.kill()
        wait_until(lambda: the_job(foreman)["state"] == "cancelled", 5)
    finally:
        fake.start()


def test_the_same_key_again_attaches_to_the_running_job(foreman: Server, fake: FakeOllama) -> None:
    fake.control(token_seconds=0.05, reply_tokens=40)
    path, body = SURFACES[0]
    first = RawCaller(foreman, path, body, idempotency_key="once")
    fake.wait_for(lambda stats: stats["running"] == 1)
    first.kill()
    answer = httpx.post(f"{foreman.url}{path}", json=body, headers={"idempotency-key": "once"}, timeout=20)
    frames = [orjson.loads(line) for line in answer.text.splitlines()]
    assert frames[-1]["done"] is True
    assert "".join(frame["message"]["content"] for frame in frames).count(" ") >= 38
    assert len(jobs_of(foreman)) == 1
    assert fake.stats()["aborted"] == 0
    events = httpx.get(f"{foreman.url}/jobs/{answer.headers['x-foreman-job-id']}/events").json()["events"]
    assert "attached" in [event["type"] for event in events]


def test_a_job_cancelled_by_an_operator_ends_its_stream_with_an_error(
    foreman: Server, fake: FakeOllama
) -> None:
    fake.control(token_seconds=0.05, reply_tokens=400)
    with ollama.Client(host=foreman.url) as client:
        stream = client.chat("llama3.2", HELLO, stream=True)
        next(stream)
        httpx.post(f"{foreman.url}/jobs/{the_job(foreman)['job_id']}/cancel")
        with pytest.raises(ollama.ResponseError, match="cancelled"):
            list(stream)


def test_a_deadline_ends_a_waiting_call_in_its_surfaces_words(foreman: Server, fake: FakeOllama) -> None:
    fake.control(token_seconds=0.2, reply_tokens=400)
    answer = httpx.post(
        f"{foreman.url}/v1/chat/completions",
        json={"model": "llama3.2", "messages": HELLO, "stream": True},
        headers={"x-foreman-deadline-seconds": "0.5"},
        timeout=30,
    )
    assert '"error"' in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
