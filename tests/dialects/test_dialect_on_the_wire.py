"""A job gets the same answer on a target of either dialect: the fake serves both, and shares no code."""

import json
from typing import Any

import httpx
import pytest

from tests.dialects.wire import run_on
from tests.fakes import FakeOllama

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
    for name in ("weather", "tides")
]
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}, "tags": {"type": "array"}}}


def asked(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content} for content in contents]


PICTURE = [
    {"type": "text", "text": "look"},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
]
OLLAMA_JOBS = [
    ("chat", {"messages": asked("hello there")}),
    ("chat", {"messages": [{"role": "user", "content": "look", "images": [PNG]}]}),
    ("chat", {"messages": asked("weather and tides please"), "tools": TOOLS}),
    ("chat", {"messages": asked("x"), "format": SCHEMA}),
    ("chat", {"messages": asked("x"), "format": "json"}),
    ("chat", {"messages": asked("one two three"), "options": {"num_predict": 3}}),
    ("chat", {"model": "qwen3:8b", "messages": asked("x"), "think": True}),
    ("chat", {"model": "qwen3:8b", "messages": asked("x"), "think": False}),
    ("generate", {"prompt": "hello there"}),
    ("generate", {"prompt": "hello there", "raw": True}),
    ("embed", {"input": ["one", "two"]}),
    ("embed", {"prompt": "one"}),
]
OPENAI_JOBS = [
    ("chat", {"messages": asked("hello there")}),
    ("chat", {"messages": asked(PICTURE)}),
    ("chat", {"messages": asked("weather and tides please"), "tools": TOOLS}),
    ("chat", {"messages": asked("weather"), "tools": TOOLS, "tool_choice": "none"}),
    (
        "chat",
        {
            "messages": asked("x"),
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        },
    ),
    ("chat", {"messages": asked("one two three"), "max_completion_tokens": 3}),
    ("chat", {"model": "qwen3:8b", "messages": asked("x"), "reasoning_effort": "low"}),
    ("generate", {"prompt": "hello there", "max_tokens": 3}),
    ("embed", {"input": "one", "encoding_format": "base64"}),
]

# Moments, ids and measured times differ from call to call; nothing else may.
FLEETING = {"created_at", "created", "id", "context"}


def lasting(answer: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in answer.items() if k not in FLEETING and not k.endswith("_duration")}


@pytest.mark.parametrize(("kind", "fields"), OLLAMA_JOBS)
def test_an_ollama_job_gets_the_same_answer_everywhere(
    fake: FakeOllama, kind: Any, fields: dict[str, Any]
) -> None:
    body = {"model": "llama3.2", "stream": False, **fields}
    path = {"chat": "chat", "generate": "generate", "embed": "embed" if "input" in body else "embeddings"}[
        kind
    ]
    direct = httpx.post(f"{fake.url}/api/{path}", json=body).json()
    on_ollama = run_on(fake.url, kind, body, "ollama", "ollama")
    on_openai = run_on(fake.url, kind, body, "ollama", "openai")
    assert on_ollama.error is None
    assert on_openai.error is None
    assert lasting(on_ollama.response) == lasting(direct)
    if kind == "embed":
        # A vector may have come as 32-bit floats.
        approximate = pytest.approx
        name = "embeddings" if "input" in body else "embedding"
        flat = [v for row in direct["embeddings"] for v in row] if name == "embeddings" else direct[name]
        got = on_openai.response[name]
        assert ([v for row in got for v in row] if name == "embeddings" else got) == approximate(flat)
    else:
        assert lasting(on_openai.response) == lasting(direct)
        assert on_openai.usage is not None
        assert on_openai.usage["completion_tokens"] == direct["eval_count"]
        assert on_openai.usage["prompt_tokens"] == direct["prompt_eval_count"]


@pytest.mark.parametrize(("kind", "fields"), OPENAI_JOBS)
def test_an_openai_job_gets_the_same_answer_everywhere(
    fake: FakeOllama, kind: Any, fields: dict[str, Any]
) -> None:
    body = {"model": "llama3.2", **fields}
    path = {"chat": "chat/completions", "generate": "completions", "embed": "embeddings"}[kind]
    direct = httpx.post(f"{fake.url}/v1/{path}", json=body).json()
    on_openai = run_on(fake.url, kind, body, "openai", "openai")
    on_ollama = run_on(fake.url, kind, body, "openai", "ollama")
    assert on_ollama.error is None
    assert on_openai.error is None
    if kind == "embed":
        assert on_openai.response == direct
        assert on_ollama.response == direct
        return
    for ran in (on_openai, on_ollama):
        assert essence(ran.response) == essence(direct)
        assert ran.response["usage"] == direct["usage"]
        assert ran.response["object"] == direct["object"]


def essence(answer: dict[str, Any]) -> dict[str, Any]:
    """A choice without the ways in which servers differ and clients do not care."""
    (choice,) = answer["choices"]
    message = choice.get("message") or {}
    return {
        "finish_reason": choice["finish_reason"],
        "text": choice.get("text") or message.get("content") or "",
        "reasoning": message.get("reasoning"),
        "calls": [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", [])
        ],
    }


@pytest.mark.parametrize("dialect", ["ollama", "openai"])
@pytest.mark.parametrize("target", ["ollama", "openai"])
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("error", "llama runner process has terminated: exit status 2"),
        ("truncate", "the answer was cut short"),
    ],
)
def test_what_goes_wrong_in_mid_stream_reaches_the_reader(
    fake: FakeOllama, dialect: Any, target: Any, fault: str, error: str
) -> None:
    fake.control(faults=[{"kind": fault, "after": 2, "times": 1}])
    ran = run_on(fake.url, "chat", {"model": "llama3.2", "messages": asked("a b c d")}, dialect, target)
    assert ran.error == error
    assert ran.response == {}
    assert error in json.dumps(ran.frames[-1])
    assert len(ran.frames) == 3
