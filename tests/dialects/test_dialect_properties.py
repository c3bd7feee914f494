"""For any input at all: no crash, one honest end, and what went over and came back is what it was."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.dialects import TARGET_DIALECTS
from app.dialects.shapes import GarbledAnswer, UntranslatableRequest, error_message
from tests.dialects.frames import (
    FINAL,
    PAIRS,
    chunk,
    fold,
    folder_of,
    is_complete,
    is_error,
    make,
    ollama_chat,
    run,
    translate_request,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from(["chat", "generate", "embed"])

# Names that mean something, with values that may not.
FIELDS = st.sampled_from(
    [
        "model",
        "messages",
        "prompt",
        "input",
        "tools",
        "tool_choice",
        "format",
        "response_format",
        "think",
        "reasoning",
        "reasoning_effort",
        "options",
        "stop",
        "stream",
        "stream_options",
        "images",
        "keep_alive",
        "suffix",
        "raw",
        "logprobs",
        "max_tokens",
    ]
)
MESSAGES = st.lists(
    st.dictionaries(
        st.sampled_from(
            ["role", "content", "images", "tool_calls", "tool_name", "tool_call_id", "thinking", "name"]
        ),
        JSON
        | st.sampled_from(["user", "tool", "assistant"])
        | st.lists(st.fixed_dictionaries({"function": JSON})),
        max_size=5,
    )
    | JSON,
    max_size=4,
)
BODIES = st.dictionaries(FIELDS, JSON | MESSAGES, max_size=6)


@given(KINDS, BODIES, st.sampled_from(PAIRS))
def test_any_body_is_translated_or_refused(kind: Any, body: dict[str, Any], pair: Any) -> None:
    before = json.dumps(body)
    try:
        translated = translate_request(kind, body, *pair)
    except UntranslatableRequest:
        return
    finally:
        assert json.dumps(body) == before
    assert isinstance(json.loads(json.dumps(translated)), dict)


ARGUMENTS = st.dictionaries(TEXT, JSON, max_size=3)
NAMES = st.sampled_from(["weather", "time", "search"])


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Chats as Ollama's clients send them: each tool call is answered, by name, in some order."""
    messages: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        user: dict[str, Any] = {"role": "user", "content": draw(TEXT)}
        if draw(st.booleans()):
            user["images"] = ["aGVsbG8="]
        messages.append(user)
        assistant: dict[str, Any] = {"role": "assistant", "content": draw(TEXT)}
        if draw(st.booleans()):
            assistant["thinking"] = draw(TEXT.filter(bool))
        names = draw(st.lists(NAMES, max_size=3, unique=True))
        if names:
            assistant["tool_calls"] = [
                {"function": {"name": name, "arguments": draw(ARGUMENTS)}} for name in names
            ]
        messages.append(assistant)
        messages += [
            {"role": "tool", "content": draw(TEXT), "tool_name": name}
            for name in draw(st.permutations(names))
        ]
    return messages


def without_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    plain: list[dict[str, Any]] = json.loads(json.dumps(messages))
    for message in plain:
        message.pop("tool_call_id", None)
        for call in message.get("tool_calls", []):
            call.pop("id", None)
    return plain


@given(
    conversations(),
    st.fixed_dictionaries(
        {"temperature": st.floats(0, 2), "top_p": st.floats(0, 1)},
        optional={"seed": st.integers(0, 9), "num_predict": st.integers(1, 99), "stop": st.lists(TEXT)},
    ),
    st.sampled_from([None, "json", {"type": "object"}]),
    st.sampled_from([None, False, "low", "medium", "high"]),
)
def test_a_chat_comes_back_from_openai_as_it_went(
    messages: list[dict[str, Any]], options: dict[str, Any], form: Any, think: Any
) -> None:
    body = {"model": "m", "messages": messages, "options": options, "stream": False}
    body |= {"format": form} if form else {}
    body |= {"think": think} if think is not None else {}
    there = translate_request("chat", body, "ollama", "openai")
    back = translate_request("chat", there, "openai", "ollama")
    assert without_ids(back["messages"]) == messages
    assert {name: value for name, value in back.items() if name != "messages"} == {
        name: value for name, value in body.items() if name != "messages"
    }


@given(conversations())
def test_every_tool_result_answers_a_call_that_was_made(messages: list[dict[str, Any]]) -> None:
    translated = translate_request("chat", {"model": "m", "messages": messages}, "ollama", "openai")[
        "messages"
    ]
    asked: list[str] = []
    for message in translated:
        asked += [call["id"] for call in message.get("tool_calls", [])]
        if message["role"] == "tool":
            asked.remove(message["tool_call_id"])
    assert asked == []


@given(st.lists(TEXT), st.lists(TEXT), st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3))
def test_an_answer_comes_back_from_openai_as_it_went(
    thoughts: list[str], words: list[str], calls: list[tuple[str, dict[str, Any]]]
) -> None:
    made = [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    frames = [
        *(ollama_chat(thinking=text) for text in thoughts),
        *(ollama_chat(text) for text in words),
        *([ollama_chat(tool_calls=made)] if made else []),
        ollama_chat(done=FINAL),
    ]
    there = run(make("chat", "ollama", "openai"), *frames)
    back = fold("chat", "ollama", run(make("chat", "openai", "ollama"), *there))
    message = back["message"]
    assert message["content"] == "".join(words)
    assert message.get("thinking", "") == "".join(thoughts)
    got = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]
    assert got == calls
    assert (back["prompt_eval_count"], back["eval_count"], back["done_reason"]) == (5, 7, "stop")


FRAGMENTS = st.lists(st.integers(0, 6), max_size=6)


@given(ARGUMENTS, FRAGMENTS)
def test_arguments_survive_any_fragmentation(arguments: dict[str, Any], cuts: list[int]) -> None:
    text = json.dumps(arguments)
    positions = sorted({0, len(text), *(cut * len(text) // 7 for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(positions)]
    first = chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]})
    rest = [chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}) for piece in pieces]
    frames = run(make("chat", "openai", "ollama"), first, *rest, chunk({}, "tool_calls"))
    assert frames[0]["message"]["tool_calls"][0]["function"]["arguments"] == arguments


FRAMES = st.dictionaries(
    st.sampled_from(
        ["choices", "message", "response", "done", "done_reason", "error", "usage", "embeddings", "data"]
    ),
    JSON
    | st.lists(
        st.dictionaries(
            st.sampled_from(["index", "delta", "message", "text", "finish_reason", "logprobs"]),
            JSON | st.dictionaries(st.sampled_from(["content", "tool_calls", "role", "reasoning"]), JSON),
        ),
        max_size=2,
    ),
    max_size=4,
)


@given(st.sampled_from(["chat", "generate", "embed"]), st.sampled_from(PAIRS), st.lists(FRAMES, max_size=5))
def test_any_frames_end_with_exactly_one_terminal_frame(
    kind: Any, pair: Any, frames: list[dict[str, Any]]
) -> None:
    translator = make(kind, *pair)
    folder = folder_of(kind, pair[1])
    try:
        out = run(translator, *frames)
    except GarbledAnswer:
        assert kind == "embed"
        return
    assert translator.finished
    errors = [position for position, frame in enumerate(out) if error_message(frame) is not None]
    if translator.error is None:
        assert errors == []
        for frame in out:
            folder.feed(frame)
        assert is_complete(folder)
        assert json.dumps(folder.response())
    else:
        assert errors == [len(out) - 1]
        assert is_error(out[-1], pair[1]) or pair[0] == pair[1]


@given(st.lists(ARGUMENTS, max_size=4), st.sampled_from(["ollama", "openai"]), st.integers(1, 9))
def test_any_frames_survive_the_wire(frames: list[dict[str, Any]], dialect: Any, size: int) -> None:
    data = b"".join(TARGET_DIALECTS[dialect].encode(frame) for frame in frames)
    decoder = TARGET_DIALECTS[dialect].decoder()
    got = [each for at in range(0, len(data), size) for each in decoder.feed(data[at : at + size])]
    assert got + decoder.finish() == frames
