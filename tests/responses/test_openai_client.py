"""The `openai` client's responses, against Foreman before a fake Ollama."""

import base64
import json
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import FunctionToolParam, Response, ResponseStreamEvent
from pydantic import BaseModel

from tests.conftest import Server, wait_until
from tests.fakes import FakeOllama
from tests.passthrough.conftest import job_of, jobs_of

MODEL = "llama3.2"
SAID = "You said: Hello, world"
PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(64)).decode()
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


def job_id(response: Response) -> str:
    return response.id.removeprefix("resp_")


def numbers(events: list[ResponseStreamEvent]) -> list[int]:
    return [event.sequence_number for event in events]


def ended(client: openai.OpenAI, response_id: str) -> Response:
    wait_until(lambda: client.responses.retrieve(response_id).status not in {"queued", "in_progress"})
    return client.responses.retrieve(response_id)


def test_a_response_is_a_job(client: openai.OpenAI, foreman: Server) -> None:
    response = client.responses.create(model=MODEL, input="Hello, world", metadata={"team": "a"})
    assert response.output_text == SAID
    assert response.status == "completed"
    assert response.usage
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens > 0
    assert response.metadata == {"team": "a"}
    job = job_of(foreman, job_id(response))
    assert job["state"] == "done"
    assert job["metadata"] == {"team": "a"}
    assert job["result"]["id"] == response.id
    assert job["payload"]["input"] == "Hello, world"
    assert [(each["name"], each["inline"]) for each in job["artifacts"]] == [("completion", SAID)]
    assert client.responses.retrieve(response.id) == response
    assert [each["job_id"] for each in jobs_of(foreman, **{"metadata.team": "a"})] == [job_id(response)]


def test_it_can_be_read_in_any_dialect(client: openai.OpenAI, foreman: Server) -> None:
    response = client.responses.create(model=MODEL, input="Hello, world")
    stream = f"{foreman.url}/jobs/{job_id(response)}/stream"
    lines = [json.loads(line) for line in httpx.get(stream).text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == SAID
    assert lines[-1]["done"]
    chunks = httpx.get(stream, params={"dialect": "openai"}).text
    assert chunks.endswith("data: [DONE]\n\n")
    assert "You said" in httpx.get(f"{foreman.url}/ui/jobs/{job_id(response)}").text


def test_its_events_come_one_by_one(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model=MODEL, input="Hello, world", stream=True))
    assert numbers(events) == list(range(len(events)))
    assert [events[0].type, events[1].type] == ["response.created", "response.in_progress"]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 2
    assert "".join(deltas) == SAID
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response == client.responses.retrieve(last.response.id)


def test_the_clients_own_helper_follows_a_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="use get_weather", tools=[WEATHER]) as stream:
        types = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.done" in types
    assert [item.type for item in final.output] == ["function_call"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_answered(client: openai.OpenAI, stream: bool) -> None:
    asked: Any = [{"role": "user", "content": "use get_weather please"}]
    if stream:
        *_, last = client.responses.create(model=MODEL, input=asked, tools=[WEATHER], stream=True)
        assert last.type == "response.completed"
        response = last.response
    else:
        response = client.responses.create(model=MODEL, input=asked, tools=[WEATHER])
    [call] = response.output
    assert call.type == "function_call"
    assert call.name == "get_weather"
    assert "city" in json.loads(call.arguments)
    answer: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    conversation: Any = [*asked, call.to_dict(), answer]
    told = client.responses.create(model=MODEL, input=conversation, tools=[WEATHER])
    assert told.output_text == "The tool says: sunny"


class City(BaseModel):
    name: str
    people: int


def test_an_answer_is_parsed_as_its_schema_says(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model=MODEL, input="A city", text_format=City)
    assert isinstance(parsed.output_parsed, City)


def test_images_are_seen(client: openai.OpenAI) -> None:
    content: Any = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": PNG}]
    response = client.responses.create(model=MODEL, input=[{"role": "user", "content": content}])
    assert "I see 1 image" in response.output_text


@pytest.mark.parametrize("summary", [None, "auto"])
def test_reasoning_is_an_item_before_the_answer(client: openai.OpenAI, summary: Any) -> None:
    response = client.responses.create(
        model="qwen3:8b", input="Hello, world", reasoning={"effort": "medium", "summary": summary}
    )
    thought, message = response.output
    assert thought.type == "reasoning"
    assert message.type == "message"
    shown = thought.summary if summary else thought.content
    assert shown
    assert "The user wants" in shown[0].text
    assert response.output_text == SAID
    conversation: Any = [thought.to_dict(), {"role": "user", "content": "a"}]
    again = client.responses.create(model="qwen3:8b", input=conversation)
    assert again.output_text == "You said: a"


def test_too_little_room_makes_it_incomplete(client: openai.OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="Hello, world", max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details
    assert response.incomplete_details.reason == "max_output_tokens"


def test_a_conversation_goes_on_although_its_beginning_is_deleted(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="one", instructions="Be kind.")
    second = client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    client.responses.delete(first.id)
    third = client.responses.create(
        model=MODEL, input=[{"role": "user", "content": "three"}], previous_response_id=second.id
    )
    assert third.previous_response_id == second.id
    assert third.instructions is None
    items = list(client.responses.input_items.list(third.id, order="asc", limit=2))
    texts = [part.text for item in items for part in item.content]  # type: ignore[union-attr]
    assert texts == ["one", "You said: one", "two", "You said: two", "three"]
    assert len({item.id for item in items}) == 5
    newest = client.responses.input_items.list(third.id, limit=1)
    assert newest.data[0].id == items[-1].id
    assert newest.has_more


def test_what_is_not_stored_cannot_be_had_again(client: openai.OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="secret", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(response.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="and?", previous_response_id=response.id)
    assert refused.value.code == "previous_response_not_found"
    assert refused.value.param == "previous_response_id"


def test_in_the_background_it_is_polled(client: openai.OpenAI, foreman: Server, fake: FakeOllama) -> None:
    fake.control(token_seconds=0.05)
    response = client.responses.create(model=MODEL, input="Hello, world", background=True)
    assert response.status == "queued"
    assert response.output == []
    assert not job_of(foreman, job_id(response)).get("interactive")
    done = ended(client, response.id)
    assert (done.status, done.output_text, done.background) == ("completed", SAID, True)


def test_a_background_stream_outlives_its_reader(client: openai.OpenAI, fake: FakeOllama) -> None:
    fake.control(token_seconds=0.1, reply_tokens=20)
    stream = client.responses.create(model=MODEL, input="Hello", background=True, stream=True)
    seen: list[ResponseStreamEvent] = []
    for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    stream.close()
    assert [event.type for event in seen[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert seen[0].type == "response.created"
    response_id = seen[0].response.id
    last_seen = seen[-1].sequence_number
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=last_seen))
    assert numbers(rest) == list(range(last_seen + 1, last_seen + 1 + len(rest)))
    every = list(client.responses.retrieve(response_id, stream=True))
    assert every == seen + rest
    assert every[-1].type == "response.completed"
    assert every[-1].response.output_text == " ".join(f"word{number}" for number in range(20))
    assert (
        list(client.responses.retrieve(response_id, stream=True, starting_after=every[-1].sequence_number))
        == []
    )


def test_a_background_response_is_cancelled(client: openai.OpenAI, fake: FakeOllama) -> None:
    fake.control(token_seconds=0.2, reply_tokens=1000)
    response = client.responses.create(model=MODEL, input="Hello", background=True)
    wait_until(lambda: client.responses.retrieve(response.id).status == "in_progress")
    cancelled = client.responses.cancel(response.id)
    assert (cancelled.status, cancelled.error) == ("cancelled", None)
    assert client.responses.cancel(response.id) == cancelled == client.responses.retrieve(response.id)
    *_, last = client.responses.retrieve(response.id, stream=True)
    assert last.type == "response.failed"
    assert last.response == cancelled
    wait_until(lambda: fake.stats()["running"] == 0)
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model=MODEL, input="and?", previous_response_id=response.id)


def test_only_what_is_in_the_background_is_cancelled(client: openai.OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="Hello")
    with pytest.raises(openai.BadRequestError, match="in the background"):
        client.responses.cancel(response.id)


def test_what_runs_is_stopped_and_deleted(client: openai.OpenAI, foreman: Server, fake: FakeOllama) -> None:
    fake.control(token_seconds=0.2, reply_tokens=1000)
    response = client.responses.create(model=MODEL, input="Hello", background=True)
    wait_until(lambda: client.responses.retrieve(response.id).status == "in_progress")
    answered = httpx.delete(f"{foreman.url}/v1/responses/{response.id}", timeout=60)
    assert answered.json() == {"id": response.id, "object": "response", "deleted": True}
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(response.id)


def test_whoever_hangs_up_on_a_response_cancels_it(
    client: openai.OpenAI, foreman: Server, fake: FakeOllama
) -> None:
    fake.control(token_seconds=0.1, reply_tokens=1000)
    stream = client.responses.create(model=MODEL, input="Hello", stream=True)
    next(iter(stream))
    stream.close()
    wait_until(lambda: [job["state"] for job in jobs_of(foreman)] == ["cancelled"])


def test_a_failure_is_told_in_the_response(client: openai.OpenAI, fake: FakeOllama) -> None:
    fake.control(faults=[{"kind": "error", "path": "/api/chat", "status": 400, "message": "no such thing"}])
    response = client.responses.create(model=MODEL, input="Hello", background=True)
    failed = ended(client, response.id)
    assert failed.status == "failed"
    assert failed.error
    assert (failed.error.code, failed.error.message) == ("invalid_prompt", "no such thing")
    *_, last = client.responses.retrieve(response.id, stream=True)
    assert last.type == "response.failed"
    assert last.response == failed
    with pytest.raises(openai.BadRequestError, match="no such thing"):
        client.responses.create(model=MODEL, input="Hello")


def test_what_a_target_cannot_do_is_refused_by_its_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="Hello", tools=[WEATHER], tool_choice="required")
    assert refused.value.param == "tool_choice"


def test_the_same_key_is_the_same_response(client: openai.OpenAI) -> None:
    key = {"Idempotency-Key": "once"}
    first = client.responses.create(model=MODEL, input="Hello", background=True, extra_headers=key)
    ended(client, first.id)
    again = client.responses.create(model=MODEL, input="Hello", background=True, extra_headers=key)
    assert (again.id, again.status) == (first.id, "completed")


def test_models_that_nobody_has_are_not_found(client: openai.OpenAI) -> None:
    for background in (False, True):
        with pytest.raises(openai.NotFoundError) as refused:
            client.responses.create(model="nobody", input="Hello", background=background)
        assert refused.value.code == "model_not_found"


def test_bad_queries_and_ids_have_openais_shape(client: openai.OpenAI, foreman: Server) -> None:
    response = client.responses.create(model=MODEL, input="Hello")
    url = f"{foreman.url}/v1/responses/{response.id}"
    for query, param in (
        ("stream=perhaps", "stream"),
        ("starting_after=3", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("include[]=file_search_call.results", "include[0]"),
        ("color=red", "color"),
    ):
        answered = httpx.get(f"{url}?{query}")
        assert answered.status_code == 400, query
        assert answered.json()["error"]["param"] == param
    for query, param in (
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("order=up", "order"),
        ("after=x", "after"),
    ):
        answered = httpx.get(f"{url}/input_items?{query}")
        assert answered.status_code == 400, query
        assert answered.json()["error"]["param"] == param
    for wrong in (
        "resp_1",
        "nothing",
        "resp_01ARZ3NDEKTSV4RRFFQ69G5FAV",
        response.id.lower(),
        job_id(response),
    ):
        answered = httpx.get(f"{foreman.url}/v1/responses/{wrong}")
        assert answered.status_code == 404, wrong
        assert set(answered.json()["error"]) == {"message", "type", "param", "code"}


def test_a_job_of_another_dialect_is_no_response(client: openai.OpenAI, foreman: Server) -> None:
    client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}])
    [job] = jobs_of(foreman)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(f"resp_{job['job_id']}")
