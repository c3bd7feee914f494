"""Clients that nobody here wrote, against Foreman before a fake Ollama: none may notice the difference."""

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import openai
import pytest
from langchain_ollama import ChatOllama, OllamaEmbeddings
from openai.types.chat import (
    ChatCompletionContentPartParam,
    ChatCompletionFunctionToolParam,
    ChatCompletionUserMessageParam,
)
from pydantic import BaseModel

from app.targets.prober import FRESH_SECONDS
from tests.conftest import Server
from tests.fakes import FakeOllama
from tests.passthrough.conftest import jobs_of, target_of
from tests.patience import outlast

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Hello, world"}]
SAID = "You said: Hello, world"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(64)).decode()
WEATHER: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
def client(foreman: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=foreman.url) as made:
        yield made


@pytest.fixture
def spoken(foreman: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{foreman.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def the_job(server: Server) -> dict[str, Any]:
    jobs = jobs_of(server)
    assert len(jobs) == 1
    answered: dict[str, Any] = httpx.get(f"{server.url}/jobs/{jobs[0]['job_id']}").json()
    return answered


def test_ollama_chats_in_a_stream(client: ollama.Client, foreman: Server) -> None:
    frames = list(client.chat("llama3.2", HELLO, stream=True))
    assert "".join(frame.message.content or "" for frame in frames) == SAID
    assert [frame.done for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert len(frames) > 3
    assert frames[-1].done_reason == "stop"
    assert frames[-1].eval_count
    assert frames[-1].prompt_eval_count
    job = the_job(foreman)
    assert job["state"] == "done"
    assert job["target"] == "default"
    assert job["usage"]["completion_tokens"] == frames[-1].eval_count
    assert job["artifacts"][0]["inline"] == SAID
    assert job["payload"]["messages"] == HELLO


def test_ollama_chats_without_a_stream(client: ollama.Client, foreman: Server) -> None:
    answer = client.chat("llama3.2", HELLO)
    assert answer.message.content == SAID
    assert answer.done
    assert answer.total_duration
    assert the_job(foreman)["result"]["message"]["content"] == SAID


@pytest.mark.parametrize("stream", [False, True])
def test_ollama_calls_tools(client: ollama.Client, foreman: Server, stream: bool) -> None:
    asked = [{"role": "user", "content": "use get_weather please"}]
    if stream:
        frames = list(client.chat("llama3.2", asked, tools=[WEATHER], stream=True))
    else:
        frames = [client.chat("llama3.2", asked, tools=[WEATHER])]
    calls = [call for frame in frames for call in frame.message.tool_calls or []]
    assert [call.function.name for call in calls] == ["get_weather"]
    assert "city" in calls[0].function.arguments
    assert the_job(foreman)["state"] == "done"


def test_ollama_sends_images(client: ollama.Client, foreman: Server) -> None:
    answer = client.chat("llama3.2", [{"role": "user", "content": "what is this?", "images": [PNG]}])
    assert answer.message.content
    assert the_job(foreman)["payload"]["messages"][0]["images"] == [PNG]


def test_ollama_thinks_aloud(client: ollama.Client, foreman: Server) -> None:
    frames = list(client.chat("qwen3:8b", HELLO, think=True, stream=True))
    assert "".join(frame.message.thinking or "" for frame in frames)
    assert "".join(frame.message.content or "" for frame in frames) == SAID
    assert the_job(foreman)["result"]["message"]["thinking"]


@pytest.mark.parametrize("stream", [False, True])
def test_ollama_generates(client: ollama.Client, foreman: Server, stream: bool) -> None:
    if stream:
        frames = list(client.generate("llama3.2", "Hello, world", stream=True))
    else:
        frames = [client.generate("llama3.2", "Hello, world")]
    assert "".join(frame.response or "" for frame in frames) == SAID
    assert frames[-1].done
    assert the_job(foreman)["kind"] == "generate"


def test_ollama_embeds_both_ways(client: ollama.Client, foreman: Server) -> None:
    assert len(client.embed("nomic-embed-text", ["one", "two"]).embeddings) == 2
    assert len(client.embeddings("nomic-embed-text", "one").embedding) == 8
    assert [job["kind"] for job in jobs_of(foreman)] == ["embed", "embed"]


def test_ollama_lists_shows_and_tells_what_is_running(
    client: ollama.Client, foreman: Server, fake: FakeOllama
) -> None:
    with ollama.Client(host=fake.url) as direct:
        assert client.list() == direct.list()
        assert client.show("llama3.2") == direct.show("llama3.2")
        client.chat("llama3.2", HELLO)
        # The inventory is asked for anew when something is unknown.
        with pytest.raises(ollama.ResponseError):
            client.show("nobody")
        assert client.ps() == direct.ps()


def test_ollama_loads_and_unloads_with_an_empty_request(client: ollama.Client, fake: FakeOllama) -> None:
    assert client.generate("llama3.2", "").done_reason == "load"
    assert [each["model"] for each in fake.stats()["resident"]] == ["llama3.2:latest"]
    assert client.chat("llama3.2", [], keep_alive=0).done_reason == "unload"
    assert fake.stats()["resident"] == []
    # Nor does a stream of it have more than the one object.
    assert [each.done_reason for each in client.chat("llama3.2", [], stream=True)] == ["load"]
    assert [each.done_reason for each in client.generate("llama3.2", stream=True)] == ["load"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {}),
        ("/api/chat", {"messages": []}),
        ("/api/chat", {"messages": [], "keep_alive": 0}),
        ("/api/generate", {}),
        ("/api/generate", {"prompt": "", "stream": True}),
        ("/api/generate", {"prompt": "", "keep_alive": "0s"}),
    ],
)
def test_the_answer_to_an_empty_request_is_one_object_as_the_target_s(
    foreman: Server, fake: FakeOllama, path: str, body: dict[str, Any]
) -> None:
    asked = {"model": "llama3.2", **body}
    direct, answer = (httpx.post(f"{each}{path}", json=asked) for each in (fake.url, foreman.url))
    assert answer.status_code == direct.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == "application/json"
    assert answer.headers["x-foreman-job-id"]
    assert {**answer.json(), "created_at": ""} == {**direct.json(), "created_at": ""}


def test_the_model_is_loaded_with_the_jobs_own_runner_options(
    client: ollama.Client, fake: FakeOllama
) -> None:
    client.chat("llama3.2", HELLO, options={"num_ctx": 8192, "temperature": 0.1})
    client.chat("llama3.2", HELLO, options={"num_ctx": 8192, "temperature": 0.9})
    stats = fake.stats()
    assert stats["loads"] == 1
    assert fake.log("load")[0]["options"] == {"num_ctx": 8192}
    assert fake.log("chat")[0]["options"]["temperature"] == 0.1


def test_openai_chats_in_a_stream_with_usage(spoken: openai.OpenAI, foreman: Server) -> None:
    chunks = list(
        spoken.chat.completions.create(
            model="llama3.2", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == SAID
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens
    assert {chunk.id for chunk in chunks} == {f"chatcmpl-{the_job(foreman)['job_id']}"}
    assert the_job(foreman)["result"]["object"] == "chat.completion"
    assert the_job(foreman)["artifacts"][0]["inline"] == SAID


def test_openai_gets_no_usage_unless_it_asks(spoken: openai.OpenAI) -> None:
    chunks = list(spoken.chat.completions.create(model="llama3.2", messages=HELLO, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_openai_chats_without_a_stream(spoken: openai.OpenAI, foreman: Server) -> None:
    answer = spoken.chat.completions.create(model="llama3.2", messages=HELLO)
    assert answer.choices[0].message.content == SAID
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert the_job(foreman)["state"] == "done"


@pytest.mark.parametrize("stream", [False, True])
def test_openai_calls_tools(spoken: openai.OpenAI, foreman: Server, stream: bool) -> None:
    asked: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "use get_weather please"}]
    answer = spoken.chat.completions.create(model="llama3.2", messages=asked, tools=[WEATHER], stream=stream)
    assert isinstance(answer, openai.Stream) is stream
    if isinstance(answer, openai.Stream):
        chunks = list(answer)
        calls: list[Any] = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        reason = chunks[-1].choices[0].finish_reason
    else:
        calls = [*(answer.choices[0].message.tool_calls or [])]
        reason = answer.choices[0].finish_reason
    assert [call.function.name for call in calls] == ["get_weather"]
    assert "city" in json.loads(calls[0].function.arguments)
    assert calls[0].id
    assert reason == "tool_calls"


class City(BaseModel):
    name: str
    people: int


def test_openai_follows_a_json_schema(spoken: openai.OpenAI) -> None:
    answer = spoken.chat.completions.parse(model="llama3.2", messages=HELLO, response_format=City)
    assert isinstance(answer.choices[0].message.parsed, City)


def test_openai_sends_images(spoken: openai.OpenAI, foreman: Server, fake: FakeOllama) -> None:
    content: list[ChatCompletionContentPartParam] = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    ]
    answer = spoken.chat.completions.create(model="llama3.2", messages=[{"role": "user", "content": content}])
    assert answer.choices[0].message.content
    assert the_job(foreman)["state"] == "done"


def test_openai_completes_embeds_and_lists(spoken: openai.OpenAI, foreman: Server) -> None:
    assert spoken.completions.create(model="llama3.2", prompt="Hello, world").choices[0].text == SAID
    vectors = spoken.embeddings.create(model="nomic-embed-text", input=["one", "two"]).data
    assert [len(each.embedding) for each in vectors] == [8, 8]
    assert {model.id for model in spoken.models.list()} >= {"llama3.2:latest", "qwen3:8b"}
    assert spoken.models.retrieve("llama3.2").id == "llama3.2"
    assert sorted(job["kind"] for job in jobs_of(foreman)) == ["embed", "generate"]


def test_langchain_invokes_streams_and_embeds(foreman: Server) -> None:
    model = ChatOllama(model="llama3.2", base_url=foreman.url)
    embeddings = OllamaEmbeddings(model="nomic-embed-text", base_url=foreman.url)
    assert model.invoke("Hello, world").content == SAID
    assert "".join(str(chunk.content) for chunk in model.stream("Hello, world")) == SAID
    assert len(embeddings.embed_query("one")) == 8
    for each in (model, embeddings):
        # Neither is closed by anything that langchain offers.
        assert each._client is not None
        assert each._async_client is not None
        each._client.close()  # type: ignore[no-untyped-call]  # the library says no types
        asyncio.run(each._async_client.close())  # type: ignore[no-untyped-call]  # the library says no types
    assert [job["state"] for job in jobs_of(foreman)] == ["done"] * 3


def test_an_unknown_model_is_a_404_in_the_words_of_each_surface(
    client: ollama.Client, spoken: openai.OpenAI, foreman: Server
) -> None:
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat("nobody", HELLO)
    assert (refused.value.status_code, refused.value.error) == (404, "model 'nobody' not found")
    with pytest.raises(openai.NotFoundError) as missing:
        spoken.chat.completions.create(model="nobody", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(ollama.ResponseError):
        client.show("nobody")
    with pytest.raises(openai.NotFoundError):
        spoken.models.retrieve("nobody")
    assert jobs_of(foreman) == []


def test_a_model_pulled_a_moment_ago_is_found(
    client: ollama.Client, foreman: Server, fake: FakeOllama
) -> None:
    assert "new:latest" not in target_of(foreman)["models"]
    fake.control(models=["llama3.2", "new"])
    outlast(2 * FRESH_SECONDS)  # what was looked at within that time is not looked at again
    assert client.chat("new", HELLO).message.content == SAID


def test_a_refusal_of_the_target_keeps_its_status_and_words(
    client: ollama.Client, spoken: openai.OpenAI
) -> None:
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat("nomic-embed-text", HELLO)
    assert refused.value.status_code == 400
    assert "does not support chat" in refused.value.error
    with pytest.raises(openai.BadRequestError):
        spoken.chat.completions.create(model="nomic-embed-text", messages=HELLO)


def test_every_answer_names_its_job(foreman: Server) -> None:
    for stream in (True, False):
        answer = httpx.post(
            f"{foreman.url}/api/chat", json={"model": "llama3.2", "messages": HELLO, "stream": stream}
        )
        job_id = answer.headers["x-foreman-job-id"]
        assert httpx.get(f"{foreman.url}/jobs/{job_id}").json()["state"] == "done"
