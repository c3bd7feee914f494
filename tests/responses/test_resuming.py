"""A reader goes on behind any event: after a restart, on another replica, and never with another answer."""

import openai
import pytest
from openai.types.responses import ResponseStreamEvent

from tests.conftest import MakeServer, Server, wait_until
from tests.fakes import FakeOllama
from tests.passthrough.conftest import job_of, started
from tests.responses.conftest import client_of

MODEL = "llama3.2"
QUICK = {
    "FOREMAN_LEASE_SECONDS": "1",
    "FOREMAN_SWEEP_SECONDS": "0.2",
    "FOREMAN_POLL_SECONDS": "0.2",
    "FOREMAN_KEEP_ALIVE_SECONDS": "0.3",
}
WORDS = 15
TEXT = " ".join(f"word{number}" for number in range(WORDS))


def begun(client: openai.OpenAI, words: int) -> tuple[str, list[ResponseStreamEvent]]:
    """A response in the background, read until so many of its words are there."""
    stream = client.responses.create(model=MODEL, input="Hello", background=True, stream=True)
    events: list[ResponseStreamEvent] = []
    for event in stream:
        events.append(event)
        if sum(each.type == "response.output_text.delta" for each in events) == words:
            break
    stream.close()
    first = events[0]
    assert first.type == "response.created"
    return first.response.id, events


def is_logged(server: Server, response_id: str) -> bool:
    """Some of its output stands in the log."""
    return int(job_of(server, response_id.removeprefix("resp_"))["seq"]) > 3


def test_it_goes_on_where_it_was_after_the_server_was_killed(
    make_server: MakeServer, fake: FakeOllama
) -> None:
    fake.control(token_seconds=0.1, reply_tokens=WORDS)
    server = started(make_server, fake, **QUICK)
    with client_of(server) as client:
        response_id, seen = begun(client, 5)
        wait_until(lambda: is_logged(server, response_id))
        server.kill()
        server.start()
        rest = list(
            client.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number)
        )
        assert [event.sequence_number for event in seen + rest] == list(range(len(seen + rest)))
        text = "".join(event.delta for event in seen + rest if event.type == "response.output_text.delta")
        assert text == TEXT
        assert rest[-1].type == "response.completed"
        assert rest[-1].response.output_text == TEXT
        # Once more, now that it is over: the same numbers mean the same.
        server.kill()
        server.start()
        assert list(client.responses.retrieve(response_id, stream=True)) == seen + rest
        assert job_of(server, response_id.removeprefix("resp_"))["attempt"] == 2


def test_another_answer_than_the_readers_is_never_put_behind_it(
    make_server: MakeServer, fake: FakeOllama
) -> None:
    fake.control(token_seconds=0.1, reply_tokens=WORDS)
    server = started(make_server, fake, **QUICK)
    with client_of(server) as client:
        response_id, seen = begun(client, 5)
        wait_until(lambda: is_logged(server, response_id))
        server.kill()
        fake.control(reply="something else than before, and at some length", reply_tokens=None)
        server.start()
        after = seen[-1].sequence_number
        [error] = client.responses.retrieve(response_id, stream=True, starting_after=after)
        assert error.type == "error"
        assert error.sequence_number == after
        assert "anew" in error.message
        # From its start, it is whole.
        *_, last = client.responses.retrieve(response_id, stream=True)
        assert last.type == "response.completed"
        assert last.response.output_text == "something else than before, and at some length"


def test_any_replica_tells_the_same_events(make_server: MakeServer, fake: FakeOllama) -> None:
    fake.control(token_seconds=0.05, reply_tokens=WORDS)
    here = started(make_server, fake, **QUICK)
    there = make_server(FOREMAN_ROLE="api", FOREMAN_OLLAMA_URL=fake.url, **QUICK)
    with client_of(here) as client, client_of(there) as other:
        response_id, seen = begun(client, 3)
        after = seen[-1].sequence_number
        rest = list(other.responses.retrieve(response_id, stream=True, starting_after=after))
        assert rest[0].sequence_number == after + 1
        assert rest[-1].type == "response.completed"
        assert list(client.responses.retrieve(response_id, stream=True)) == seen + rest
        assert list(other.responses.retrieve(response_id, stream=True)) == seen + rest
        assert other.responses.retrieve(response_id) == client.responses.retrieve(response_id)
        again = other.responses.create(model=MODEL, input="And?", background=True)
        assert other.responses.cancel(again.id).status in {"cancelled", "completed"}


def test_a_number_beyond_the_end_is_no_place_to_go_on_from(make_server: MakeServer, fake: FakeOllama) -> None:
    server = started(make_server, fake, **QUICK)
    with client_of(server) as client:
        response = client.responses.create(model=MODEL, input="Hello")
        [error] = client.responses.retrieve(response.id, stream=True, starting_after=1000)
        assert error.type == "error"
        assert "beyond the end" in error.message


def test_a_stream_tells_that_its_response_was_deleted(make_server: MakeServer, fake: FakeOllama) -> None:
    fake.control(token_seconds=0.2, reply_tokens=1000)
    server = started(make_server, fake, **QUICK)
    with client_of(server) as client:
        response_id, _ = begun(client, 1)
        stream = client.responses.retrieve(response_id, stream=True)
        events = iter(stream)
        next(events)
        client.responses.delete(response_id)
        *_, last = events
        assert last.type in {"response.failed", "error"}
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response_id)
