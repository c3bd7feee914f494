"""A real llama.cpp server, which nobody here wrote, answers jobs of both dialects."""

import json
from typing import Any

import httpx
import jsonschema_rs
import openai
import pytest

from tests.dialects.wire import run_on
from tests.fakes.openai_llama import FORCED_TOOL_CALL, MODEL, LlamaServer
from tests.patience import until

ASKED = [{"role": "user", "content": "Say something."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "age": {"type": "integer"},
        "mood": {"enum": ["good", "bad"]},
        "well": {"type": "boolean"},
    },
    "required": ["age", "mood", "well"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}


def test_an_ollama_chat_runs_on_it_and_streams(llama: LlamaServer) -> None:
    body = {"model": MODEL, "messages": ASKED, "options": {"num_predict": 12, "temperature": 0.5, "top_k": 5}}
    ran = run_on(llama.url, "chat", body, "ollama", "openai")
    assert ran.error is None
    assert len(ran.frames) > 10
    assert [frame["done"] for frame in ran.frames] == [False] * (len(ran.frames) - 1) + [True]
    final = ran.frames[-1]
    assert (final["done_reason"], final["eval_count"]) == ("length", 12)
    assert final["prompt_eval_count"] > 10
    assert final["total_duration"] > final["eval_duration"] > 0
    assert ran.response["message"]["content"].split()
    assert ran.response["model"] == MODEL
    assert ran.usage is not None
    assert ran.usage["completion_tokens"] == 12
    assert ran.usage["decode_seconds"] > 0


def test_an_ollama_generate_runs_on_it_templated_and_raw(llama: LlamaServer) -> None:
    for raw in (False, True):
        body = {"model": MODEL, "prompt": "Once upon", "raw": raw, "options": {"num_predict": 5}}
        ran = run_on(llama.url, "generate", body, "ollama", "openai")
        assert ran.error is None
        assert ran.response["response"].split()
        assert ran.response["eval_count"] == 5


def test_an_ollama_schema_is_kept_to(llama: LlamaServer) -> None:
    body = {"model": MODEL, "messages": ASKED, "format": SCHEMA, "options": {"num_predict": 300}}
    ran = run_on(llama.url, "chat", body, "ollama", "openai")
    jsonschema_rs.validate(SCHEMA, json.loads(ran.response["message"]["content"]))
    assert ran.response["done_reason"] == "stop"


def test_the_fragments_of_its_tool_calls_become_ollama_tool_calls(llama: LlamaServer) -> None:
    body = {"model": MODEL, "messages": ASKED, "tools": [WEATHER], "options": {"num_predict": 100}}
    ran = run_on(llama.url, "chat", body, "ollama", "openai", **FORCED_TOOL_CALL)
    assert ran.error is None
    call = ran.response["message"]["tool_calls"][0]
    assert call["function"]["name"] == "weather"
    assert call["function"]["arguments"] in ({"city": "Paris"}, {"city": "Rome"})
    assert call["id"]


def test_a_conversation_with_tool_results_is_accepted(llama: LlamaServer) -> None:
    messages = [
        *ASKED,
        {
            "role": "assistant",
            "content": "",
            "thinking": "a tool will know",
            "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}],
        },
        {"role": "tool", "content": "sunny", "tool_name": "weather"},
    ]
    body = {"model": MODEL, "messages": messages, "tools": [WEATHER], "options": {"num_predict": 4}}
    assert run_on(llama.url, "chat", body, "ollama", "openai").response["done"] is True


def test_ollama_embeddings_run_on_it(llama: LlamaServer) -> None:
    ran = run_on(llama.url, "embed", {"model": MODEL, "input": ["one", "two"]}, "ollama", "openai")
    assert [len(vector) for vector in ran.response["embeddings"]] == [64, 64]
    assert ran.response["prompt_eval_count"] > 0


def test_an_openai_job_reaches_it_untouched(llama: LlamaServer) -> None:
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": ASKED,
        "max_tokens": 6,
        "n": 2,
        "grammar": 'root ::= " it"',
    }
    ran = run_on(llama.url, "chat", body, "openai", "openai")
    assert ran.error is None
    assert [choice["message"]["content"] for choice in ran.response["choices"]] == [" it", " it"]
    assert ran.response["usage"]["completion_tokens"] > 0


def test_the_openai_client_likes_it(llama: LlamaServer) -> None:
    with openai.OpenAI(base_url=f"{llama.url}/v1", api_key="unused", max_retries=0) as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=5, stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream).split()


async def test_it_stops_when_its_client_goes_away(llama: LlamaServer) -> None:
    body = {"model": MODEL, "messages": ASKED, "max_tokens": 7000, "stream": True, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=llama.url, timeout=10) as client:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for _ in answer.aiter_lines():
                break

        async def it_writes_for_nobody_any_more() -> bool:
            return not any(slot["is_processing"] for slot in (await client.get("/slots")).json())

        await until(it_writes_for_nobody_any_more, 2)


def test_it_starts_and_stops_with_its_test() -> None:
    with LlamaServer() as server:
        assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"] == MODEL
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)
