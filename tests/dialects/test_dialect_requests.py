"""Requests cross from one dialect to the other with everything that has a counterpart, and nothing else."""

import json
from typing import Any

import pytest

from app.dialects import TARGET_DIALECTS
from app.dialects.protocol import Dialect
from app.dialects.shapes import UntranslatableRequest, asks_for_usage
from tests.dialects.frames import translate_request

OLLAMA, OPENAI = TARGET_DIALECTS["ollama"], TARGET_DIALECTS["openai"]
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}},
]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
HELLO = [{"role": "user", "content": "hello"}]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def to_openai(kind: Any, body: dict[str, Any]) -> dict[str, Any]:
    return translate_request(kind, body, "ollama", "openai")


def to_ollama(kind: Any, body: dict[str, Any]) -> dict[str, Any]:
    return translate_request(kind, body, "openai", "ollama")


@pytest.mark.parametrize("dialect", ["ollama", "openai"])
@pytest.mark.parametrize("kind", ["chat", "generate", "embed"])
def test_within_a_dialect_the_very_same_object_goes_out(kind: Any, dialect: Any) -> None:
    body = {"model": "m", "unknown": {"kept": True}, "messages": "even nonsense"}
    assert translate_request(kind, body, dialect, dialect) is body


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, USAGE),
        ({"stream": True}, USAGE),
        ({"stream": False}, {"stream": False}),
        ({"keep_alive": "5m", "made_up": 1}, USAGE),
        ({"tools": TOOLS}, {"tools": TOOLS, **USAGE}),
        ({"format": "json"}, {"response_format": {"type": "json_object"}, **USAGE}),
        ({"format": ""}, USAGE),
        (
            {"format": SCHEMA},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "response", "schema": SCHEMA},
                },
                **USAGE,
            },
        ),
        ({"think": True}, {"reasoning_effort": "medium", **USAGE}),
        ({"think": False}, {"reasoning_effort": "none", **USAGE}),
        ({"think": "high"}, {"reasoning_effort": "high", **USAGE}),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3, **USAGE}),
        (
            {
                "options": {
                    "temperature": 0,
                    "top_p": 0.9,
                    "top_k": 20,
                    "seed": 7,
                    "stop": ["\n"],
                    "num_predict": 12,
                    "frequency_penalty": 0.1,
                    "presence_penalty": 0.2,
                    "repeat_penalty": 1.1,
                    "num_ctx": 8192,
                    "num_gpu": 1,
                    "min_p": None,
                }
            },
            {
                "temperature": 0,
                "top_p": 0.9,
                "top_k": 20,
                "seed": 7,
                "stop": ["\n"],
                "max_tokens": 12,
                "frequency_penalty": 0.1,
                "presence_penalty": 0.2,
                "repeat_penalty": 1.1,
                **USAGE,
            },
        ),
        ({"options": {"num_predict": -1}}, USAGE),
        ({"options": None}, USAGE),
    ],
)
def test_a_chat_to_openai(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    translated = to_openai("chat", {"model": "m", "messages": HELLO, **fields})
    assert translated == {"model": "m", "messages": HELLO, **expected}


OPENAI_DEFAULTS = {"temperature": 1.0, "top_p": 1.0}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"options": OPENAI_DEFAULTS, "stream": False}),
        (
            {"stream": True, "stream_options": {"include_usage": True}},
            {"options": OPENAI_DEFAULTS, "stream": True},
        ),
        ({"n": 1, "user": "me", "store": False}, {"options": OPENAI_DEFAULTS, "stream": False}),
        ({"tools": TOOLS}, {"tools": TOOLS, "options": OPENAI_DEFAULTS, "stream": False}),
        ({"tools": TOOLS, "tool_choice": "none"}, {"options": OPENAI_DEFAULTS, "stream": False}),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "time"}}},
            {"tools": TOOLS[1:], "options": OPENAI_DEFAULTS, "stream": False},
        ),
        (
            {"response_format": {"type": "json_object"}},
            {"format": "json", "options": OPENAI_DEFAULTS, "stream": False},
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            {"format": SCHEMA, "options": OPENAI_DEFAULTS, "stream": False},
        ),
        ({"response_format": {"type": "text"}}, {"options": OPENAI_DEFAULTS, "stream": False}),
        ({"reasoning_effort": "none"}, {"think": False, "options": OPENAI_DEFAULTS, "stream": False}),
        ({"reasoning_effort": "minimal"}, {"think": "low", "options": OPENAI_DEFAULTS, "stream": False}),
        ({"reasoning": {"effort": "high"}}, {"think": "high", "options": OPENAI_DEFAULTS, "stream": False}),
        (
            {"logprobs": True, "top_logprobs": 2},
            {"logprobs": True, "top_logprobs": 2, "options": OPENAI_DEFAULTS, "stream": False},
        ),
        (
            {
                "temperature": 0.5,
                "top_p": 0.4,
                "seed": 1,
                "stop": "END",
                "max_tokens": 5,
                "max_completion_tokens": 9,
                "presence_penalty": 0.3,
                "repetition_penalty": 1.2,
            },
            {
                "options": {
                    "temperature": 0.5,
                    "top_p": 0.4,
                    "seed": 1,
                    "stop": ["END"],
                    "num_predict": 9,
                    "presence_penalty": 0.3,
                    "repeat_penalty": 1.2,
                },
                "stream": False,
            },
        ),
        (
            {"options": {"num_ctx": 8192, "temperature": 0.1}, "keep_alive": "1h", "temperature": 0.2},
            {
                "options": {"num_ctx": 8192, "temperature": 0.2, "top_p": 1.0},
                "keep_alive": "1h",
                "stream": False,
            },
        ),
    ],
)
def test_a_chat_to_ollama(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    translated = to_ollama("chat", {"model": "m", "messages": HELLO, **fields})
    assert translated == {"model": "m", "messages": HELLO, **expected}


def test_generate_becomes_a_chat_since_ollama_applies_the_template() -> None:
    body = {"model": "m", "prompt": "look", "system": "be brief", "images": [PNG], "stream": False}
    translated = to_openai("generate", body)
    assert translated == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be brief"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
                ],
            },
        ],
        "stream": False,
    }
    assert OPENAI.endpoint("generate", translated) == "/v1/chat/completions"


@pytest.mark.parametrize("extra", [{"raw": True}, {"suffix": "end"}])
def test_raw_generate_and_infilling_become_completions(extra: dict[str, Any]) -> None:
    translated = to_openai("generate", {"model": "m", "prompt": "begin", "stream": False, **extra})
    expected = {"model": "m", "prompt": "begin", "stream": False}
    assert translated == (expected | {"suffix": "end"} if "suffix" in extra else expected)
    assert OPENAI.endpoint("generate", translated) == "/v1/completions"


def test_completions_become_generate() -> None:
    body = {"model": "m", "prompt": ["only"], "suffix": "end", "max_tokens": 4, "stream": True}
    assert to_ollama("generate", body) == {
        "model": "m",
        "prompt": "only",
        "suffix": "end",
        "options": {**OPENAI_DEFAULTS, "num_predict": 4},
        "stream": True,
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"input": "x"}, {"input": "x", "encoding_format": "float"}),
        (
            {"input": ["x", "y"], "dimensions": 4},
            {"input": ["x", "y"], "dimensions": 4, "encoding_format": "float"},
        ),
        (
            {"prompt": "old way", "keep_alive": 1, "options": {}},
            {"input": "old way", "encoding_format": "float"},
        ),
    ],
)
def test_embed_to_openai(body: dict[str, Any], expected: dict[str, Any]) -> None:
    assert to_openai("embed", {"model": "m", **body}) == {"model": "m", **expected}


def test_embeddings_to_ollama() -> None:
    body = {"model": "m", "input": ["x"], "encoding_format": "base64", "dimensions": 4, "user": "me"}
    assert to_ollama("embed", body) == {"model": "m", "input": ["x"], "dimensions": 4}


@pytest.mark.parametrize(
    ("kind", "source", "body", "message"),
    [
        (
            "chat",
            "openai",
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{oops"}}]}
                ]
            },
            "invalid tool call arguments",
        ),
        (
            "chat",
            "openai",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}],
                    }
                ]
            },
            "invalid image input",
        ),
        (
            "chat",
            "openai",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,*"}}],
                    }
                ]
            },
            "not base64",
        ),
        (
            "chat",
            "openai",
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "input_audio",
        ),
        ("chat", "openai", {"messages": [{"role": "user", "content": 5}]}, "invalid message content type"),
        ("chat", "openai", {"messages": HELLO, "reasoning_effort": "enormous"}, "invalid reasoning value"),
        ("chat", "ollama", {"messages": [{"role": "user", "images": [5]}]}, "invalid image input"),
        ("generate", "openai", {"prompt": ["one", "two"]}, "single text"),
        ("generate", "openai", {"prompt": [1, 2]}, "single text"),
        ("generate", "ollama", {"prompt": "x", "context": [1]}, "context is not supported"),
        ("generate", "ollama", {"prompt": "x", "template": "{{ .Prompt }}"}, "template is not supported"),
        ("generate", "ollama", {"prompt": "x", "raw": True, "images": [PNG]}, "images cannot"),
        ("embed", "openai", {"input": [[1, 2]]}, "invalid input"),
    ],
)
def test_what_cannot_be_said_is_refused_with_a_reason(
    kind: Any, source: Any, body: dict[str, Any], message: str
) -> None:
    to: Any = "ollama" if source == "openai" else "openai"
    with pytest.raises(UntranslatableRequest, match=message):
        translate_request(kind, {"model": "m", **body}, source, to)


@pytest.mark.parametrize(
    ("kind", "dialect", "body", "path"),
    [
        ("chat", "ollama", {}, "/api/chat"),
        ("chat", "openai", {}, "/v1/chat/completions"),
        ("generate", "ollama", {"prompt": "x"}, "/api/generate"),
        ("generate", "openai", {"prompt": "x"}, "/v1/completions"),
        ("embed", "ollama", {"input": "x"}, "/api/embed"),
        ("embed", "ollama", {"prompt": "x"}, "/api/embeddings"),
        ("embed", "openai", {"input": "x"}, "/v1/embeddings"),
    ],
)
def test_every_body_has_its_endpoint(kind: Any, dialect: Any, body: dict[str, Any], path: str) -> None:
    assert TARGET_DIALECTS[dialect].endpoint(kind, body) == path


def test_ollama_streams_unless_told_not_to_and_openai_only_when_told_to() -> None:
    said = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert asks_to_stream(OLLAMA, "chat", said)
    assert not asks_to_stream(OLLAMA, "chat", {**said, "stream": False})
    assert not asks_to_stream(OPENAI, "chat", said)
    assert asks_to_stream(OPENAI, "chat", {**said, "stream": True})
    assert not asks_to_stream(OLLAMA, "embed", {"model": "m", "input": "x", "stream": True})
    assert asks_for_usage({"stream_options": {"include_usage": True}})
    assert not asks_for_usage({"stream_options": None})


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"keep_alive": 0}])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("chat", {}),
        ("chat", {"messages": []}),
        ("chat", {"messages": None}),
        ("generate", {}),
        ("generate", {"prompt": ""}),
        ("generate", {"prompt": None}),
    ],
)
def test_what_only_loads_or_unloads_is_never_streamed(kind: Any, body: Any, more: Any) -> None:
    given = {"model": "m", **body, **more}
    assert OLLAMA.only_loads(kind, given) == ("unload" if more == {"keep_alive": 0} else "load")
    assert not asks_to_stream(OLLAMA, kind, given)
    assert asks_to_stream(OLLAMA, "generate", {**given, "prompt": " "})


def asks_to_stream(dialect: Dialect, kind: Any, body: Any) -> bool:
    return dialect.asks_to_stream(kind, dialect.read_body(kind, json.dumps(body).encode()))


def test_on_the_wire_every_answer_is_streamed_with_usage_and_the_rest_is_untouched() -> None:
    body = {"model": "m", "stream": False, "odd": 1, "stream_options": {"x": 1}}
    assert OLLAMA.streaming_request("chat", body, "M") == body | {"stream": True}
    assert OPENAI.streaming_request("chat", body, "M") == body | {
        "model": "M",
        "stream": True,
        "stream_options": {"x": 1, "include_usage": True},
    }
    assert OLLAMA.streaming_request("embed", body, "M") is body
    assert OPENAI.streaming_request("embed", body, "M") == body | {"model": "M"}
    assert body["stream"] is False
