"""Synchronous answers that stream take their place among the streams of a process."""

from typing import Any

import httpx
import pytest

from tests.conftest import MakeServer, Server, wait_until
from tests.fakes import FakeOllama
from tests.passthrough.conftest import jobs_of, started

HELLO = [{"role": "user", "content": "Hello, world"}]
CHAT: dict[str, Any] = {"model": "llama3.2", "messages": HELLO, "stream": True}
OPEN = 'foreman_streams_open{of="answers"}'


def metric(server: Server, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(name + " ")), 0.0)


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_when_all_places_are_taken_a_call_that_streams_is_refused_before_there_is_a_job(
    make_server: MakeServer, fake: FakeOllama, path: str
) -> None:
    server = started(make_server, fake, FOREMAN_MAX_STREAMS="1")
    fake.control(token_seconds=0.05, reply_tokens=400)
    with httpx.stream("POST", server.url + path, json=CHAT, timeout=60) as first:
        # Kept: an iterator that nobody holds any more hangs up.
        chunks = first.iter_raw()
        next(chunks)
        assert metric(server, OPEN) == 1
        refused = httpx.post(server.url + path, json=CHAT)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        error = refused.json()["error"]
        message = error if path.startswith("/api") else error["message"]
        assert message == "This server already serves 1 streams."
        assert len(jobs_of(server)) == 1
        fake.control(token_seconds=0.0, reply_tokens=2)
        # Who waits for the whole answer holds no stream open.
        whole = httpx.post(server.url + path, json={**CHAT, "stream": False}, timeout=60)
        assert whole.status_code == 200
    wait_until(lambda: metric(server, OPEN) == 0)
    assert httpx.post(server.url + path, json=CHAT, timeout=60).status_code == 200
