"""The fake is faithful: the real clients of Ollama and OpenAI, which nobody here wrote, cannot tell."""

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import ollama
import openai
import pytest
from langchain_ollama import ChatOllama

from tests.fakes import FakeOllama

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 18},
        "mood": {"enum": ["good", "bad"]},
        "friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}, "minItems": 2},
    },
    "required": ["name", "age", "mood", "friends"],
    "$defs": {"friend": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}


@pytest.fixture
def client(fake: FakeOllama) -> Iterator[ollama.Client]:
    with ollama.Client(host=fake.url) as client:
        yield client


@pytest.fixture
def v1(fake: FakeOllama) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fake.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_ollama_chat_streams_words_and_ends_with_real_figures(client: ollama.Client) -> None:
    parts = list(client.chat("llama3.2", said("hello there"), stream=True))
    assert "".join(part.message.content or "" for part in parts) == "You said: hello there"
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert len(parts) == 5
    last = parts[-1]
    assert last.done_reason == "stop"
    assert last.prompt_eval_count == 2
    assert last.eval_count == 4
    assert last.total_duration is not None
    assert last.eval_duration is not None
    assert last.total_duration >= last.eval_duration > 0


def test_ollama_chat_without_stream_is_one_object(client: ollama.Client) -> None:
    answer = client.chat("llama3.2", said("hello"))
    assert answer.message.content == "You said: hello"
    assert answer.message.role == "assistant"
    assert answer.done is True


def test_ollama_chat_calls_a_tool_and_then_reads_its_result(client: ollama.Client) -> None:
    messages: list[Any] = said("please get_weather for me")
    answer = client.chat("llama3.2", messages, tools=[WEATHER])
    assert answer.message.tool_calls is not None
    call = answer.message.tool_calls[0]
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
    messages += [answer.message, {"role": "tool", "content": "sunny", "tool_name": "get_weather"}]
    assert client.chat("llama3.2", messages, tools=[WEATHER]).message.content == "The tool says: sunny"


def test_ollama_chat_with_tools_answers_in_words_when_no_tool_is_wanted(client: ollama.Client) -> None:
    answer = client.chat("llama3.2", said("hello"), tools=[WEATHER])
    assert answer.message.tool_calls is None
    assert answer.message.content == "You said: hello"


def test_ollama_takes_images(client: ollama.Client) -> None:
    answer = client.chat("llama3.2", [{"role": "user", "content": "look", "images": [PNG]}])
    assert answer.message.content == "You said: look I see 1 image."


def test_ollama_refuses_an_image_that_is_no_base64(fake: FakeOllama) -> None:
    message = {"role": "user", "content": "look", "images": ["not base64!"]}
    answer = httpx.post(f"{fake.url}/api/chat", json={"model": "llama3.2", "messages": [message]})
    assert answer.status_code == 400
    assert "illegal base64" in answer.json()["error"]


def test_ollama_answers_json_and_json_schema(client: ollama.Client) -> None:
    plain = client.chat("llama3.2", said("hello"), format="json")
    assert json.loads(plain.message.content or "") == {"answer": "hello"}
    formed = client.chat("llama3.2", said("hello"), format=SCHEMA)
    jsonschema_rs.validate(SCHEMA, json.loads(formed.message.content or ""))


def test_ollama_thinks_when_asked_and_refuses_where_the_model_cannot(client: ollama.Client) -> None:
    answer = client.chat("qwen3:8b", said("hello"), think=True)
    assert answer.message.thinking == "The user wants an answer. I will give one."
    assert answer.message.content == "You said: hello"
    assert client.chat("qwen3:8b", said("hello"), think=False).message.thinking is None
    with pytest.raises(ollama.ResponseError, match=r'"llama3\.2" does not support thinking') as refused:
        client.chat("llama3.2", said("hello"), think=True)
    assert refused.value.status_code == 400


def test_ollama_stops_at_num_predict_and_at_stop_words(client: ollama.Client) -> None:
    cut = client.chat("llama3.2", said("one two three"), options={"num_predict": 3})
    assert (cut.message.content, cut.done_reason) == ("You said: one", "length")
    stopped = client.chat("llama3.2", said("one two three"), options={"stop": [" two"]})
    assert (stopped.message.content, stopped.done_reason) == ("You said: one", "stop")


def test_ollama_generates_streamed_and_whole(client: ollama.Client) -> None:
    whole = client.generate("llama3.2", "hello there")
    assert whole.response == "You said: hello there"
    assert whole.context
    parts = list(client.generate("llama3.2", "hello there", stream=True))
    assert "".join(part.response or "" for part in parts) == whole.response
    assert parts[-1].done is True


def test_ollama_embeds_one_and_many_and_the_old_way(client: ollama.Client) -> None:
    many = client.embed("nomic-embed-text", ["one", "two"])
    assert len(many.embeddings) == 2
    assert len(many.embeddings[0]) == 8
    assert many.prompt_eval_count == 2
    one = client.embed("nomic-embed-text", "one", dimensions=4)
    assert len(one.embeddings[0]) == 4
    assert list(client.embeddings("nomic-embed-text", "one").embedding) == list(many.embeddings[0])


def test_ollama_lists_shows_and_reports_what_is_loaded(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == [
        "llama3.2:latest",
        "qwen3:8b",
        "nomic-embed-text:latest",
    ]
    assert client.ps().models == []
    client.generate("qwen3:8b", "")
    (running,) = client.ps().models
    assert (running.model, running.context_length) == ("qwen3:8b", 4096)
    assert "thinking" in (client.show("qwen3:8b").capabilities or [])


@pytest.mark.parametrize("call", ["chat", "generate", "embed", "show"])
def test_ollama_says_404_for_an_unknown_model_in_the_real_words(client: ollama.Client, call: str) -> None:
    arguments = {"chat": (said("x"),), "generate": ("x",), "embed": ("x",), "show": ()}[call]
    with pytest.raises(ollama.ResponseError) as failed:
        getattr(client, call)("nope", *arguments)
    assert failed.value.status_code == 404
    assert failed.value.error == "model 'nope' not found"


def test_openai_chat_streams_with_role_and_usage(v1: openai.OpenAI) -> None:
    chunks = list(
        v1.chat.completions.create(
            model="llama3.2",
            messages=[{"role": "user", "content": "hello there"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "You said: hello there"
    assert chunks[-2].choices[0].finish_reason == "stop"
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (2, 4, 6)


def test_openai_chat_without_stream_with_tools_images_and_schema(v1: openai.OpenAI) -> None:
    called = v1.chat.completions.create(
        model="llama3.2",
        messages=[{"role": "user", "content": "get_weather"}],
        tools=[WEATHER],  # type: ignore[list-item]  # the same tool, as a plain dict
    )
    assert called.choices[0].finish_reason == "tool_calls"
    calls = called.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert json.loads(calls[0].function.arguments) == {"city": "Paris"}
    picture = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    seen = v1.chat.completions.create(
        model="llama3.2",
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": picture}},
                ],
            }
        ],
    )
    assert seen.choices[0].message.content == "You said: look I see 1 image."
    formed = v1.chat.completions.create(
        model="llama3.2",
        messages=[{"role": "user", "content": "x"}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": dict(SCHEMA)}},
    )
    jsonschema_rs.validate(SCHEMA, json.loads(formed.choices[0].message.content or ""))


def test_openai_completions_embeddings_and_models(v1: openai.OpenAI) -> None:
    whole = v1.completions.create(model="llama3.2", prompt="hello")
    assert whole.choices[0].text == "You said: hello"
    chunks = list(v1.completions.create(model="llama3.2", prompt="hello", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "You said: hello"
    # The client asks for base64 on its own and decodes it.
    embedded = v1.embeddings.create(model="nomic-embed-text", input=["one", "two"])
    assert len(embedded.data[1].embedding) == 8
    assert next(model.id for model in v1.models.list()) == "llama3.2:latest"
    assert v1.models.retrieve("llama3.2").id == "llama3.2"


def test_openai_says_404_and_503_in_its_own_shape(v1: openai.OpenAI, fake: FakeOllama) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        v1.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
    assert missing.value.body == {
        "message": "model 'nope' not found",
        "type": "not_found_error",
        "param": None,
        "code": None,
    }
    fake.control(faults=[{"kind": "busy", "times": 1}])
    with pytest.raises(openai.InternalServerError) as busy:
        v1.chat.completions.create(model="llama3.2", messages=[{"role": "user", "content": "x"}])
    assert busy.value.status_code == 503


def test_langchain_invokes_and_streams(fake: FakeOllama) -> None:
    model = ChatOllama(model="llama3.2", base_url=fake.url)
    try:
        assert model.invoke("hello there").content == "You said: hello there"
        assert "".join(str(part.content) for part in model.stream("hello there")) == "You said: hello there"
    finally:
        # Neither is closed by anything that langchain offers.
        model._client.close()  # type: ignore[no-untyped-call]  # the library says no types
        asyncio.run(model._async_client.close())  # type: ignore[no-untyped-call]  # the library says no types
