"""The `anthropic` client, which nobody here wrote, against Foreman before a fake Ollama and a real llama.cpp."""

import asyncio
import base64
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import MessageParam, ToolParam

from tests.conftest import Server, wait_until
from tests.dashboard.visitor import Visitor
from tests.dashboard.visitor import text_of as text_of_page
from tests.fakes import FakeOllama
from tests.fakes.openai_llama import MODEL

HELLO: list[MessageParam] = [{"role": "user", "content": "Hello, world"}]
SAID = "You said: Hello, world"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(64)).decode()
WEATHER: ToolParam = {
    "name": "get_weather",
    "description": "The weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def job_of(caller: httpx.Client, message_id: str) -> dict[str, Any]:
    found: dict[str, Any] = caller.get(f"/jobs/{message_id.removeprefix('msg_')}").json()
    return found


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


@pytest.mark.parametrize("model", ["llama3.2", MODEL])
def test_a_message_is_a_job(client: anthropic.Anthropic, caller: httpx.Client, model: str) -> None:
    answer = client.messages.create(model=model, max_tokens=30, messages=HELLO)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", model)
    assert answer.stop_reason in {"end_turn", "max_tokens"}
    assert answer.usage.input_tokens
    assert answer.usage.output_tokens
    assert answer._request_id
    job = job_of(caller, answer.id)
    assert (job["state"], job["kind"], job["payload"]["messages"]) == ("done", "chat", HELLO)
    assert job["usage"]["completion_tokens"] == answer.usage.output_tokens
    assert job["artifacts"][0]["inline"] == text_of(answer)
    assert anthropic.types.Message.model_validate(job["result"]) == answer
    if model != MODEL:
        assert (text_of(answer), answer.stop_reason) == (SAID, "end_turn")


@pytest.mark.parametrize("model", ["llama3.2", MODEL])
def test_a_stream_adds_up_to_the_answer_of_its_job(
    client: anthropic.Anthropic, caller: httpx.Client, model: str
) -> None:
    with client.messages.stream(model=model, max_tokens=30, messages=HELLO) as stream:
        texts = list(stream.text_stream)
        answer = stream.get_final_message()
    assert len(texts) > 3
    assert "".join(texts) == text_of(answer)
    kept = anthropic.types.Message.model_validate(job_of(caller, answer.id)["result"])
    assert (answer.usage, answer.stop_reason) == (kept.usage, kept.stop_reason)
    assert text_of(answer) == text_of(kept)


def test_events_come_in_the_order_that_is_promised(client: anthropic.Anthropic) -> None:
    events = [
        event.type
        for event in client.messages.create(model="llama3.2", max_tokens=30, messages=HELLO, stream=True)
    ]
    assert events[:2] == ["message_start", "content_block_start"]
    assert events[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(events[2:-3]) == {"content_block_delta"}


def test_callers_who_do_not_block_are_answered_side_by_side(foreman: Server) -> None:
    async def ask() -> list[str]:
        async with anthropic.AsyncAnthropic(
            base_url=foreman.url, api_key=foreman.admin_key, max_retries=0
        ) as client:

            async def one(number: int) -> str:
                asked: list[MessageParam] = [{"role": "user", "content": f"number {number}"}]
                if number % 2:
                    return text_of(
                        await client.messages.create(model="llama3.2", max_tokens=9, messages=asked)
                    )
                async with client.messages.stream(model="llama3.2", max_tokens=9, messages=asked) as stream:
                    return "".join([text async for text in stream.text_stream])

            return await asyncio.gather(*(one(number) for number in range(6)))

    assert asyncio.run(ask()) == [f"You said: number {number}" for number in range(6)]


@pytest.mark.parametrize("streams", [False, True])
def test_tools_are_called_and_answered(client: anthropic.Anthropic, streams: bool) -> None:
    asked: list[MessageParam] = [{"role": "user", "content": "use get_weather please"}]
    given: dict[str, Any] = {"model": "llama3.2", "max_tokens": 99, "tools": [WEATHER]}
    if streams:
        with client.messages.stream(messages=asked, **given) as stream:
            answer: anthropic.types.Message = stream.get_final_message()
    else:
        answer = client.messages.create(messages=asked, **given)
    assert answer.stop_reason == "tool_use"
    [call] = [block for block in answer.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("get_weather", {"city": "text"})
    followed: list[MessageParam] = [
        *asked,
        {"role": "assistant", "content": answer.content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny, 21 degrees"}],
        },
    ]
    last = client.messages.create(messages=followed, **given)
    assert (text_of(last), last.stop_reason) == ("The tool says: sunny, 21 degrees", "end_turn")


def test_a_tool_can_be_demanded_where_the_target_can_be_made_to(client: anthropic.Anthropic) -> None:
    # Neither refused, nor lost: this model says a tool's name or nothing sensible at all.
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 20, "messages": HELLO, "tools": [WEATHER]}
    assert client.messages.create(tool_choice={"type": "auto"}, **asked).type == "message"
    assert client.messages.create(tool_choice={"type": "none"}, **asked).type == "message"
    with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
        client.messages.create(tool_choice={"type": "any"}, **{**asked, "model": "llama3.2"})


def test_thoughts_are_blocks(client: anthropic.Anthropic, fake: FakeOllama) -> None:
    asked: dict[str, Any] = {"model": "qwen3:8b", "max_tokens": 99, "messages": HELLO}
    thinking: Any = {"type": "enabled", "budget_tokens": 2000}
    with client.messages.stream(thinking=thinking, **asked) as stream:
        events = [event.type for event in stream]
        answer = stream.get_final_message()
    assert {"thinking", "signature", "text"} < set(events)
    thought, text = answer.content
    assert thought.type == "thinking"
    assert thought.thinking == "The user wants an answer. I will give one."
    assert text.type == "text"
    assert text.text == SAID
    whole = client.messages.create(thinking=thinking, **asked)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    silent = client.messages.create(thinking={"type": "disabled"}, **asked)
    assert [block.type for block in silent.content] == ["text"]
    followed: list[MessageParam] = [*HELLO, {"role": "assistant", "content": whole.content}, *HELLO]
    assert text_of(client.messages.create(**{**asked, "messages": followed})) == SAID


def test_pictures_and_system_blocks_get_there(client: anthropic.Anthropic, fake: FakeOllama) -> None:
    answer = client.messages.create(
        model="llama3.2",
        max_tokens=99,
        system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                ],
            }
        ],
    )
    assert text_of(answer) == "You said: What is this? I see 1 image."
    # The words of both.
    assert answer.usage.input_tokens == 5


def test_an_answer_ends_at_a_stop_sequence_or_at_its_limit(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "llama3.2", "messages": HELLO}
    stopped = client.messages.create(max_tokens=99, stop_sequences=["Hello"], **asked)
    # Ollama does not tell which one struck.
    assert (text_of(stopped), stopped.stop_reason, stopped.stop_sequence) == ("You said: ", "end_turn", None)
    limited = client.messages.create(max_tokens=2, **asked)
    assert (text_of(limited), limited.stop_reason) == ("You said:", "max_tokens")
    with client.messages.stream(max_tokens=2, **asked) as stream:
        assert stream.get_final_message().stop_reason == "max_tokens"


@pytest.mark.parametrize("model", ["llama3.2", MODEL])
def test_an_answer_can_be_made_to_fit_a_schema(client: anthropic.Anthropic, model: str) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 3}},
        "required": ["n"],
        "additionalProperties": False,
    }
    answer = client.messages.create(
        model=model,
        max_tokens=60,
        messages=HELLO,
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    assert text_of(answer).replace(" ", "").startswith('{"n":')


@pytest.mark.parametrize("model", ["llama3.2", MODEL])
def test_a_caller_who_leaves_cancels_the_job(
    client: anthropic.Anthropic, caller: httpx.Client, fake: FakeOllama, model: str
) -> None:
    fake.control(token_seconds=0.05, reply_tokens=4000)
    with client.messages.stream(model=model, max_tokens=4000, messages=HELLO) as stream:
        next(stream.text_stream)
        job_id = stream.current_message_snapshot.id
    wait_until(lambda: job_of(caller, job_id)["state"] == "cancelled")
    assert job_of(caller, job_id)["reason"] == "client_disconnected"


def test_a_caller_who_waits_for_long_hears_pings(
    client: anthropic.Anthropic, caller: httpx.Client, fake: FakeOllama
) -> None:
    fake.control(prefill_seconds=1.5)
    body = {"model": "llama3.2", "max_tokens": 9, "messages": HELLO, "stream": True}
    with caller.stream("POST", "/v1/messages", json=body) as answer:
        lines = list(answer.iter_lines())
    assert lines[:2] == ["event: ping", 'data: {"type":"ping"}']
    assert lines[-3:] == ["event: message_stop", 'data: {"type":"message_stop"}', ""]
    with client.messages.stream(model="llama3.2", max_tokens=9, messages=HELLO) as stream:
        assert "".join(stream.text_stream) == SAID


@pytest.mark.parametrize("dialect", ["ollama", "openai"])
def test_who_attaches_later_reads_it_in_another_dialect(
    client: anthropic.Anthropic, caller: httpx.Client, dialect: str
) -> None:
    job_id = client.messages.create(model="llama3.2", max_tokens=30, messages=HELLO).id.removeprefix("msg_")
    told = caller.get(f"/jobs/{job_id}/stream", params={"dialect": dialect}).text
    assert told.count("world") == 1
    assert '"done":true' in told if dialect == "ollama" else told.endswith("data: [DONE]\n\n")
    assert '"total_tokens"' not in told
    assert caller.get(f"/jobs/{job_id}/artifacts/completion").text == SAID


def test_people_find_the_answer_on_its_page_and_in_its_events(
    client: anthropic.Anthropic, caller: httpx.Client, fake: FakeOllama, foreman: Server
) -> None:
    # Long enough that the log is written before the result.
    fake.control(token_seconds=0.05, reply_tokens=40)
    with client.messages.stream(model="llama3.2", max_tokens=99, messages=HELLO) as stream:
        job_id = stream.get_final_message().id.removeprefix("msg_")
    rows = caller.get(f"/jobs/{job_id}/events").json()["events"]
    told = [row["data"]["text"] for row in rows if row["type"] == "output"]
    assert len(told) > 1
    assert "".join(told) == " ".join(f"word{number}" for number in range(40))
    visitor = Visitor(foreman.url)
    with visitor.http:
        visitor.sign_in(foreman.admin_key)
        page = text_of_page(visitor.get(f"/ui/jobs/{job_id}"))
    assert "word38 word39" in page
    assert "/v1/messages" in page
