"""Requests for responses: what they ask a target for, and what is refused by its name."""

import json
from typing import Any

import pytest

from app.dialects import DIALECTS, TARGET_DIALECTS
from app.dialects.neutral import Request
from app.dialects.shapes import UntranslatableRequest
from app.dialects.translate import translate_request
from app.errors import InvalidRequest

RESPONSES = DIALECTS["responses"]
PNG = "data:image/png;base64,iVBORw0KGgo="
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


def asked(**body: Any) -> Request:
    return RESPONSES.read_request("chat", {"model": "m", "input": "hi", **body})


def sent(to: str, **body: Any) -> dict[str, Any]:
    return translate_request("chat", {"model": "m", "input": "hi", **body}, RESPONSES, TARGET_DIALECTS[to])


def test_a_text_is_one_message_behind_the_instructions() -> None:
    body = sent("openai", instructions="Be kind.")
    assert body["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi"},
    ]


def test_items_become_the_messages_of_a_conversation() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Rome"}'},
        {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": '{"city":"Oslo"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        {"role": "user", "content": "Thanks"},
    ]
    messages = sent("openai", input=items)["messages"]
    assert [message["role"] for message in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    spoken = messages[2]
    assert spoken["content"] == "I look."
    assert spoken["reasoning_content"] == "Hm"
    assert [call["id"] for call in spoken["tool_calls"]] == ["c1", "c2"]
    assert [(message["tool_call_id"], message["content"]) for message in messages[3:5]] == [
        ("c1", "sunny"),
        ("c2", "rain"),
    ]
    on_ollama = sent("ollama", input=items)["messages"]
    assert on_ollama[2]["thinking"] == "Hm"
    assert on_ollama[3]["tool_name"] == "get_weather"


def test_thoughts_go_to_the_next_answer_and_to_nobody_else() -> None:
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm"}]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    messages = asked(input=[thought, {"role": "user", "content": "a"}, call]).messages or []
    assert [(message.role, message.thinking) for message in messages] == [("user", None), ("assistant", None)]
    encrypted = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}
    messages = asked(input=[thought, encrypted, call]).messages or []
    assert [(message.role, message.thinking) for message in messages] == [("assistant", "Hm")]


def test_images_go_along() -> None:
    content = [
        {"type": "input_text", "text": "What?"},
        {"type": "input_image", "image_url": PNG, "detail": "auto"},
    ]
    body = sent("ollama", input=[{"role": "user", "content": content}])
    assert body["messages"][0]["images"] == ["iVBORw0KGgo="]
    body = sent("openai", input=[{"role": "user", "content": content}])
    assert body["messages"][0]["content"][1] == {"type": "image_url", "image_url": {"url": PNG}}


def test_functions_take_the_shape_that_targets_know() -> None:
    body = sent("openai", tools=[WEATHER], tool_choice={"type": "function", "name": "get_weather"})
    function = {name: value for name, value in WEATHER.items() if name != "type"}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}
    assert sent("ollama", tools=[WEATHER], tool_choice="none").get("tools") is None
    with pytest.raises(UntranslatableRequest) as refused:
        sent("ollama", tools=[WEATHER], tool_choice="required")
    assert refused.value.param == "tool_choice"


def test_allowed_tools_are_the_only_ones() -> None:
    tools = [WEATHER, {"type": "function", "name": "other", "parameters": None}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    request = asked(tools=tools, tool_choice=choice)
    assert [tool["function"]["name"] for tool in request.tools] == ["other"]
    assert request.tool_choice == "required"


def test_the_form_of_an_answer() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "thing", "schema": schema, "strict": True}
    assert sent("ollama", text={"format": form})["format"] == schema
    assert sent("openai", text={"format": form})["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "thing", "strict": True, "schema": schema},
    }
    assert sent("ollama", text={"format": {"type": "json_object"}})["format"] == "json"
    assert "format" not in sent("ollama", text={"format": {"type": "text"}, "verbosity": "medium"})


def test_limits_sampling_and_words_of_the_targets_own() -> None:
    body = sent(
        "ollama",
        max_output_tokens=7,
        temperature=0.5,
        top_p=None,
        seed=3,
        stop="x",
        options={"num_ctx": 4096, "top_k": 5},
        keep_alive="5m",
        reasoning={"effort": "high"},
        top_logprobs=2,
        include=["message.output_text.logprobs"],
    )
    assert body["options"] == {
        "temperature": 0.5,
        "top_p": 1.0,
        "num_ctx": 4096,
        "top_k": 5,
        "seed": 3,
        "stop": ["x"],
        "num_predict": 7,
    }
    assert body["keep_alive"] == "5m"
    assert body["think"] == "high"
    assert (body["logprobs"], body["top_logprobs"]) == (True, 2)
    body = sent("openai", max_output_tokens=7, top_k=5)
    assert (body["max_tokens"], body["top_k"], body["temperature"]) == (7, 5, 1.0)


def test_what_says_nothing_is_left_out() -> None:
    nothing = dict.fromkeys(
        ("instructions", "tools", "tool_choice", "text", "reasoning", "metadata", "include", "conversation")
    )
    assert sent("openai", **nothing) == sent("openai")


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "missing_required_parameter"),
    ({"input": []}, "input", "invalid_value"),
    ({"input": 5}, "input", "invalid_type"),
    ({"input": ["a"]}, "input[0]", "invalid_type"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "invalid_value"),
    ({"input": [{"role": "boss", "content": "a"}]}, "input[0].role", "invalid_value"),
    ({"input": [{"role": "user"}]}, "input[0].content", "invalid_type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        "input[0].content[0].type",
        "invalid_value",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        "input[0].content[0].file_id",
        "unsupported_parameter",
    ),
    (
        {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]},
        "input[0].call_id",
        "invalid_type",
    ),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output", "invalid_type"),
    ({"messages": []}, "messages", "unknown_parameter"),
    ({"max_tokens": 5}, "max_tokens", "unknown_parameter"),
    ({"text": {"form": 1}}, "text.form", "unknown_parameter"),
    ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_parameter"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "invalid_value"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "invalid_value"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "invalid_type"),
    ({"reasoning": {"effort": "lots"}}, "reasoning.effort", "invalid_value"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
    ({"tools": [WEATHER, {"type": "custom", "name": "a"}]}, "tools[1].type", "invalid_value"),
    ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools[0].defer_loading", "unsupported_parameter"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "invalid_type"),
    ({"tool_choice": "sometimes"}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "mcp"}}, "tool_choice.type", "invalid_value"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name", "invalid_value"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"temperature": "hot"}, "temperature", "invalid_type"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"include": ["file_search_call.results"]}, "include[0]", "invalid_value"),
    ({"metadata": {"a": 1}}, "metadata", "invalid_type"),
    ({"metadata": {str(number): "a" for number in range(17)}}, "metadata", "invalid_value"),
    ({"metadata": {"a": "x" * 513}}, "metadata", "invalid_value"),
    ({"service_tier": "priority"}, "service_tier", "unsupported_parameter"),
    ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
    ({"background": True, "store": False}, "store", "invalid_value"),
    ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
    ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
    ({"context_management": []}, "context_management", "unsupported_parameter"),
    ({"stream_options": {"include_usage": True}}, "stream_options.include_usage", "unknown_parameter"),
    ({"model": ""}, "model", "invalid_request"),
]


@pytest.mark.parametrize(("wrong", "param", "code"), WRONG, ids=[param for _, param, _ in WRONG])
def test_what_cannot_be_done_is_refused_by_its_name(wrong: dict[str, Any], param: str, code: str) -> None:
    body = {"model": "m", "input": "hi", **wrong}
    with pytest.raises(InvalidRequest) as refused:
        RESPONSES.read_body("chat", json.dumps(body).encode())
    assert refused.value.extra["param"] == param
    assert refused.value.extra.get("code", refused.value.code) == code


@pytest.mark.parametrize("wrong", [each for each, _, _ in WRONG if each.get("model") != ""], ids=str)
def test_a_payload_that_came_another_way_is_refused_as_well(wrong: dict[str, Any]) -> None:
    with pytest.raises(UntranslatableRequest):
        RESPONSES.read_request("chat", {"model": "m", "input": "hi", **wrong})
