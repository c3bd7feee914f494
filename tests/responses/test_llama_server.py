"""Responses on a real llama.cpp server, which nobody here wrote."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from app.embedded import EmbeddedPostgres
from tests.conftest import Server, wait_until
from tests.fakes.openai_llama import MODEL, LlamaServer
from tests.passthrough.conftest import target_of
from tests.responses.conftest import client_of
from tests.responses.test_openai_client import WEATHER
from tests.serving import serving


@pytest.fixture(scope="module")
def before_llama(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("llama")
    with LlamaServer() as llama:
        targets = folder / "targets.toml"
        targets.write_text(f'[targets.llama]\nurl = "{llama.url}"\ndialect = "openai"\nslots = 2\n')
        with serving(postgres, folder, FOREMAN_TARGETS=str(targets)) as server:
            wait_until(lambda: target_of(server, "llama")["state"] == "awake")
            yield server


@pytest.fixture
def llama_client(before_llama: Server) -> Iterator[openai.OpenAI]:
    with client_of(before_llama) as made:
        yield made


def test_it_answers_whole_and_in_a_stream(llama_client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": "Hello", "max_output_tokens": 12, "temperature": 0}
    whole = llama_client.responses.create(**asked)
    assert whole.status in {"completed", "incomplete"}
    assert whole.usage
    assert whole.usage.output_tokens > 0
    events = list(llama_client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type in {"response.completed", "response.incomplete"}
    assert last.response.output_text == whole.output_text
    assert list(llama_client.responses.retrieve(last.response.id, stream=True)) == events


def test_it_reads_a_conversation_with_tools(llama_client: openai.OpenAI) -> None:
    conversation: Any = [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I must look."}]},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Rome"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    asked: dict[str, Any] = {"model": MODEL, "max_output_tokens": 5, "tools": [WEATHER]}
    short = llama_client.responses.create(input=conversation[:1], **asked)
    whole = llama_client.responses.create(
        input=conversation, tool_choice="auto", parallel_tool_calls=False, **asked
    )
    assert short.usage
    assert whole.usage
    assert whole.usage.input_tokens > short.usage.input_tokens
    assert whole.usage.output_tokens > 0


class Answer(BaseModel):
    is_true: bool


def test_it_keeps_to_a_schema(llama_client: openai.OpenAI) -> None:
    parsed = llama_client.responses.parse(
        model=MODEL, input="True?", text_format=Answer, max_output_tokens=200
    )
    assert isinstance(parsed.output_parsed, Answer)


def test_it_tells_how_sure_it_was(llama_client: openai.OpenAI) -> None:
    response = llama_client.responses.create(
        model=MODEL,
        input="Hello",
        max_output_tokens=5,
        top_logprobs=2,
        include=["message.output_text.logprobs"],
    )
    message = response.output[-1]
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert part.logprobs
    assert len(part.logprobs[0].top_logprobs) == 2


def test_it_speaks_in_the_background(llama_client: openai.OpenAI) -> None:
    response = llama_client.responses.create(
        model=MODEL, input="Hello", max_output_tokens=12, background=True
    )
    *_, last = llama_client.responses.retrieve(response.id, stream=True)
    assert last.type in {"response.completed", "response.incomplete"}
    assert llama_client.responses.retrieve(response.id) == last.response
