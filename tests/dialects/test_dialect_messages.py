"""Messages of a chat cross with their images, tool calls, results and thoughts."""

import base64
from typing import Any

from tests.dialects.frames import translate_request

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0 jpeg").decode()


def to_openai(kind: Any, body: dict[str, Any]) -> dict[str, Any]:
    return translate_request(kind, body, "ollama", "openai")


def to_ollama(kind: Any, body: dict[str, Any]) -> dict[str, Any]:
    return translate_request(kind, body, "openai", "ollama")


def test_ollama_images_become_data_uris_of_the_right_type() -> None:
    message = {"role": "user", "content": "look", "images": [PNG, JPEG]}
    (translated,) = to_openai("chat", {"model": "m", "messages": [message]})["messages"]
    assert translated["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{JPEG}"}},
    ]


def test_data_uris_become_ollama_images_and_text_parts_one_text() -> None:
    content = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image_url", "image_url": f"data:;base64,{JPEG}"},
        {"type": "text", "text": "well?"},
    ]
    (translated,) = to_ollama("chat", {"model": "m", "messages": [{"role": "user", "content": content}]})[
        "messages"
    ]
    assert translated == {"role": "user", "content": "look\nwell?", "images": [PNG, JPEG]}


CONVERSATION_OF_OLLAMA = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "weather and time?"},
    {
        "role": "assistant",
        "content": "",
        "thinking": "two tools",
        "tool_calls": [
            {"function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}},
            {"function": {"name": "time", "arguments": {}}},
        ],
    },
    {"role": "tool", "content": "noon", "tool_name": "time"},
    {"role": "tool", "content": "sunny", "tool_name": "weather"},
]
CONVERSATION_OF_OPENAI = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "weather and time?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city":"Zürich","days":2}'},
            },
            {"id": "call_2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
        ],
        "reasoning_content": "two tools",
    },
    {"role": "tool", "content": "noon", "tool_call_id": "call_2"},
    {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
]


def test_tool_calls_get_ids_and_results_find_their_call_by_name() -> None:
    translated = to_openai("chat", {"model": "m", "messages": CONVERSATION_OF_OLLAMA})
    assert translated["messages"] == CONVERSATION_OF_OPENAI


def test_tool_results_get_the_name_of_the_call_they_answer() -> None:
    translated = to_ollama("chat", {"model": "m", "messages": CONVERSATION_OF_OPENAI})["messages"]
    assert [m.get("tool_name") for m in translated] == [None, None, None, "time", "weather"]
    assert translated[2] == {
        "role": "assistant",
        "content": "",
        "thinking": "two tools",
        "tool_calls": [
            {"id": "call_1", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}},
            {"id": "call_2", "function": {"name": "time", "arguments": {}}},
        ],
    }


def test_two_results_of_one_tool_answer_its_two_calls_in_order() -> None:
    calls = [{"function": {"name": "a", "arguments": {"n": n}}} for n in range(2)]
    results = [{"role": "tool", "content": text, "tool_name": "a"} for text in ("first", "second", "stray")]
    messages = [{"role": "assistant", "content": "", "tool_calls": calls}, *results]
    translated = to_openai("chat", {"model": "m", "messages": messages})["messages"]
    assert [m["tool_call_id"] for m in translated[1:]] == ["call_1", "call_2", "call_3"]


def test_given_call_ids_are_kept_and_made_up_ones_avoid_them() -> None:
    calls = [
        {"function": {"name": "a", "arguments": {}}},
        {"id": "call_1", "function": {"name": "a", "arguments": {}}},
    ]
    messages = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "second", "tool_call_id": "call_1"},
        {"role": "tool", "content": "first"},
    ]
    translated = to_openai("chat", {"model": "m", "messages": messages})["messages"]
    assert [call["id"] for call in translated[0]["tool_calls"]] == ["call_2", "call_1"]
    assert [m["tool_call_id"] for m in translated[1:]] == ["call_1", "call_2"]


def test_roles_that_ollama_does_not_know_are_renamed() -> None:
    messages = [{"role": "developer", "content": "x"}, {"role": "function", "name": "f", "content": "y"}]
    assert to_ollama("chat", {"model": "m", "messages": messages})["messages"] == [
        {"role": "system", "content": "x"},
        {"role": "tool", "content": "y", "tool_name": "f"},
    ]
