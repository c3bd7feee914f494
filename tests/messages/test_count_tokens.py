"""How many tokens a request has: from a target that can tell, and else a clear no."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import MessageParam

from tests.conftest import Server, wait_until
from tests.fakes.openai_llama import MODEL

HELLO: list[MessageParam] = [{"role": "user", "content": "Hello, world"}]


def test_the_count_is_what_an_answer_reads(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=HELLO, system="Be kind.")
    answer = client.messages.create(model=MODEL, max_tokens=1, messages=HELLO, system="Be kind.")
    assert counted.input_tokens == answer.usage.input_tokens
    more = client.messages.count_tokens(
        model=MODEL, messages=HELLO, tools=[{"name": "look", "input_schema": {"type": "object"}}]
    )
    assert more.input_tokens > counted.input_tokens


def test_counting_makes_no_job(client: anthropic.Anthropic, caller: httpx.Client) -> None:
    before = caller.get("/jobs").json()["jobs"]
    client.messages.count_tokens(model=MODEL, messages=HELLO)
    assert caller.get("/jobs").json()["jobs"] == before


def test_a_target_that_cannot_count_is_named(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="'default' has no call for that"):
        client.messages.count_tokens(model="llama3.2", messages=HELLO)


def test_an_unknown_model_is_not_found(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="nothing", messages=HELLO)


def test_bad_input_is_refused_by_its_name(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"temperature: not supported here"):
        client.messages.count_tokens(model=MODEL, messages=HELLO, extra_body={"temperature": 1})


@contextmanager
def target(foreman: Server, name: str, status: int, body: bytes) -> Iterator[None]:
    """A target that has one model and answers whatever is posted in one way."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, b'{"data": [{"id": "%b"}]}' % name.encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.answer(status, body)

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with foreman.client() as admin:
            url = f"http://127.0.0.1:{server.server_port}"
            admin.put(f"/targets/{name}", json={"url": url, "dialect": "openai"}).raise_for_status()
            wait_until(lambda: admin.get(f"/targets/{name}").json()["state"] == "awake")
            yield
            admin.delete(f"/targets/{name}").raise_for_status()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (404, b"<html>", (400, "has no call for that")),
        (405, b"", (400, "has no call for that")),
        (501, b"", (400, "has no call for that")),
        (200, b'{"input_tokens": "many"}', (400, "has no call for that")),
        (200, b'{"input_tokens": true}', (400, "has no call for that")),
        (400, b'{"error": {"message": "no pictures"}}', (400, "no pictures")),
        (500, b'{"error": "out of memory"}', (500, "out of memory")),
        (200, b"<html>", (503, "can be reached")),
    ],
)
def test_what_targets_say_instead_of_a_count(
    foreman: Server, caller: httpx.Client, status: int, body: bytes, told: tuple[int, str]
) -> None:
    with target(foreman, "odd", status, body):
        answer = caller.post("/v1/messages/count_tokens", json={"model": "odd", "messages": HELLO})
    assert (answer.status_code, answer.json()["type"]) == (told[0], "error")
    assert told[1] in answer.json()["error"]["message"]


def test_a_count_is_taken_as_it_is(foreman: Server, caller: httpx.Client) -> None:
    with target(foreman, "counts", 200, b'{"input_tokens": 12}'):
        answer = caller.post("/v1/messages/count_tokens", json={"model": "counts", "messages": HELLO})
    assert answer.json() == {"input_tokens": 12}
