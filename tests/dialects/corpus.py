"""Requests for an OpenAI-compatible server, by name: what its clients send, and what they should not."""

import base64
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from tests.fakes.openai_llama import FORCED_TOOL_CALL, MODEL

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
RESPONSES = "/v1/responses"


@dataclass(frozen=True)
class Case:
    name: str
    path: str
    body: dict[str, Any] | bytes

    @property
    def streams(self) -> bool:
        return isinstance(self.body, dict) and self.body.get("stream") is True


def _png() -> str:
    """One red dot."""

    def block(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    dot = block(b"IHDR", head) + block(b"IDAT", zlib.compress(b"\x00\xff\x00\x00")) + block(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + dot).decode()


_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
_JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": _SCHEMA}}
_USER = {"role": "user", "content": "How are you?"}
_CALL = {"id": "call_7", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
_IMAGE = {"type": "image_url", "image_url": {"url": _png()}}

# What every answer would otherwise differ in from one call to the next: chance, and what is still in a cache.
_SURE = {"temperature": 0, "seed": 7, "cache_prompt": False}
_TOO_LONG = "many words " * 3000

# Sampling and the like, which chats and completions have in common.
_SHARED: dict[str, dict[str, Any]] = {
    "plain": {},
    "stop as a text": {"stop": " model"},
    "stops": {"stop": [" model", " at"]},
    "seed": {"seed": 3, "temperature": 1.3},
    "top_p": {"top_p": 0.5, "temperature": 0.9},
    "top_k and min_p": {"top_k": 3, "min_p": 0.2, "temperature": 0.9},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": 1.5},
    "repeat_penalty": {"repeat_penalty": 1.5, "repeat_last_n": 8},
    "logit_bias by id": {"logit_bias": {"276": -100}},
    "logit_bias by word": {"logit_bias": [[" at", -100]]},
    "user": {"user": "somebody"},
    "unknown fields": {"x_unknown": {"deep": [1, 2.5, None]}, "metadata": {"a": "b"}, "store": False},
    "nulls": {"stop": None, "logit_bias": None, "user": None, "stream_options": None},
    "a grammar": {"grammar": 'root ::= "yes" | "no"'},
    "no limit but a stop": {"max_tokens": None, "n_predict": 4},
    "one token": {"max_tokens": 1},
    "timings per token": {"timings_per_token": True},
    "progress": {"return_progress": True},
    "several choices": {"n": 2},
    "samplers": {"samplers": ["top_k", "temperature"], "top_k": 1},
    "ignore_eos": {"ignore_eos": True},
    # What is wrong.
    "a grammar that is none": {"grammar": "root ::= ("},
    "too many choices": {"n": 99},
    "no choices": {"n": 0},
    "a limit below zero": {"max_tokens": -5},
    "a limit that is a text": {"max_tokens": "many"},
    "a temperature that is a text": {"temperature": "hot"},
    "penalties that are lists": {"presence_penalty": [1]},
}

_CHATS: dict[str, dict[str, Any]] = {
    "system": {"messages": [{"role": "system", "content": "Be brief."}, _USER]},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, _USER]},
    "an unknown role": {"messages": [{"role": "robot", "content": "Beep."}]},
    "content in parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
    "names": {"messages": [{**_USER, "name": "ann"}]},
    "a long talk": {"messages": [_USER, {"role": "assistant", "content": "Fine."}, _USER]},
    "an answer to go on with": {"messages": [_USER, {"role": "assistant", "content": "I am"}]},
    "other letters": {"messages": [{"role": "user", "content": 'Grüße 🌍 日本 \u2028 "quoted" \\ /'}]},
    "max_completion_tokens": {"max_tokens": None, "max_completion_tokens": 2},
    "logprobs": {"logprobs": True},
    "top_logprobs": {"logprobs": True, "top_logprobs": 3},
    "tools": {"tools": [_TOOL]},
    "tools, none chosen": {"tools": [_TOOL], "tool_choice": "none"},
    "tools, called": {"tools": [_TOOL], **FORCED_TOOL_CALL, "max_tokens": 60},
    "tools, one at a time": {"tools": [_TOOL], "parallel_tool_calls": False},
    "results of tools": {
        "tools": [_TOOL],
        "messages": [
            _USER,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_7", "content": "Rain."},
        ],
    },
    "json_object": {"response_format": {"type": "json_object"}, "max_tokens": 12},
    "json_schema": {"response_format": _JSON_SCHEMA, "max_tokens": 20},
    "a schema in json_object": {"response_format": {"type": "json_object", "schema": _SCHEMA}},
    "text": {"response_format": {"type": "text"}},
    "reasoning_effort": {"reasoning_effort": "low"},
    "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
    "service_tier": {"service_tier": "auto"},
    # What is wrong.
    "no messages": {"messages": []},
    "messages that are a text": {"messages": "hello"},
    "messages that are numbers": {"messages": [5]},
    "messages left out": {"messages": None},
    "a message without content": {"messages": [{"role": "user"}]},
    "an image": {"messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, _IMAGE]}]},
    "sound": {
        "messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": ""}}]}]
    },
    "an unknown part": {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
    "too long": {"messages": [{"role": "user", "content": _TOO_LONG}]},
    "an unknown format": {"response_format": {"type": "odd"}},
    "a schema that is none": {
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}
    },
    "top_logprobs alone": {"top_logprobs": 2},
    "tools that are none": {"tools": "weather"},
    "a tool that is not there": {"tool_choice": {"type": "function", "function": {"name": "nobody"}}},
}

_PROMPTS: dict[str, dict[str, Any]] = {
    "several prompts": {"prompt": ["a", "the model"]},
    "one prompt in a list": {"prompt": ["a"]},
    "tokens": {"prompt": [1, 5, 9]},
    "tokens and texts": {"prompt": [1, "a", 9]},
    "lists of tokens": {"prompt": [[1, 5], [9]]},
    "an empty prompt": {"prompt": ""},
    "echo": {"echo": True},
    "suffix": {"suffix": "the end"},
    "best_of": {"best_of": 1},
    "logprobs": {"logprobs": 2},
    "logprobs of the chosen": {"logprobs": 0},
    "n_probs": {"n_probs": 2},
    "json_schema": {"json_schema": _SCHEMA, "max_tokens": 20},
    "id_slot": {"id_slot": 0},
    # What is wrong.
    "no prompt": {"prompt": None},
    "a prompt that is an object": {"prompt": {"text": "a"}},
    "too long": {"prompt": _TOO_LONG},
    "tokens that are none": {"prompt": [-1, 10**9]},
}

_INPUTS: dict[str, dict[str, Any]] = {
    "a text": {"input": "a"},
    "texts": {"input": ["a", "the model", "Grüße 🌍"]},
    "many texts": {"input": [f"number {number}" for number in range(40)]},
    "tokens": {"input": [1, 2]},
    "lists of tokens": {"input": [[1, 2], [3]]},
    "an empty text": {"input": ""},
    "base64": {"input": ["a", "b"], "encoding_format": "base64"},
    "float": {"input": "a", "encoding_format": "float"},
    "dimensions": {"input": "a", "dimensions": 3},
    "unknown fields": {"input": "a", "user": "somebody", "x_unknown": [1]},
    # What is wrong.
    "nothing": {},
    "an empty list": {"input": []},
    "an object": {"input": {"text": "a"}},
    "an unknown format": {"input": "a", "encoding_format": "odd"},
    "too long": {"input": _TOO_LONG},
}

_ANSWERABLE: dict[str, dict[str, Any]] = {
    "a text": {"input": "How are you?"},
    "messages": {"input": [{"role": "user", "content": "How are you?"}]},
    "instructions": {"input": "How are you?", "instructions": "Be brief."},
    "parts": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]},
    "a talk": {
        "input": [
            {"role": "user", "content": "Hello"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]},
            {"role": "user", "content": "How are you?"},
        ]
    },
    "a schema": {
        "input": "How are you?",
        "text": {"format": {"type": "json_schema", "name": "person", "schema": _SCHEMA}},
    },
}


def _chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [_USER], "max_tokens": 4, **_SURE, **fields}


def _completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4, **_SURE, **fields}


def _streamed(made: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same, streamed; every other one with the counts."""
    streamed = {}
    for number, (name, body) in enumerate(made.items()):
        counts: dict[str, Any] = {"stream_options": {"include_usage": True}} if number % 2 else {}
        streamed[f"{name}, streamed{' with counts' if counts else ''}"] = {**body, "stream": True, **counts}
    return streamed


def _whole_and_streamed(path: str, made: dict[str, dict[str, Any]]) -> list[Case]:
    return [Case(f"{path} {name}", path, body) for name, body in {**made, **_streamed(made)}.items()]


def chats() -> list[Case]:
    made = {name: _chat(**fields) for name, fields in {**_SHARED, **_CHATS}.items()}
    odd = {
        "counts for nobody": _chat(stream_options={"include_usage": True}),
        "counts, but not now": _chat(stream=True, stream_options={"include_usage": False}),
        "counts with several choices": _chat(stream=True, n=2, stream_options={"include_usage": True}),
        "stream that is a text": _chat(stream="yes"),
        "stream said to be off": _chat(stream=False),
        "an unknown model": {**_chat(), "model": "nobody"},
    }
    return [
        *_whole_and_streamed(CHAT, made),
        *[Case(f"{CHAT} {name}", CHAT, body) for name, body in odd.items()],
        *_broken(CHAT),
    ]


def completions() -> list[Case]:
    made = {name: _completion(**fields) for name, fields in {**_SHARED, **_PROMPTS}.items()}
    return [*_whole_and_streamed(COMPLETIONS, made), *_broken(COMPLETIONS)]


def embeddings() -> list[Case]:
    made = {name: {"model": MODEL, **fields} for name, fields in _INPUTS.items()}
    return [
        *[Case(f"{EMBEDDINGS} {name}", EMBEDDINGS, body) for name, body in made.items()],
        *_broken(EMBEDDINGS),
    ]


def _broken(path: str) -> list[Case]:
    texts = {"no JSON": b"{no json", "a list": b"[]", "no model": b"{}", "nothing at all": b""}
    return [Case(f"{path} {name}", path, text) for name, text in texts.items()]


def responses() -> list[Case]:
    return _responses(_ANSWERABLE)


def streamed_responses() -> list[Case]:
    return _responses(
        {f"{name}, streamed": {**fields, "stream": True} for name, fields in _ANSWERABLE.items()}
    )


def _responses(made: dict[str, dict[str, Any]]) -> list[Case]:
    sure = {"model": MODEL, "max_output_tokens": 4, "temperature": 0}
    return [Case(f"{RESPONSES} {name}", RESPONSES, {**sure, **fields}) for name, fields in made.items()]
