"""Answers from Ollama's frames to OpenAI's chunks."""

from typing import Any

import pytest

from app.dialects import DIALECTS
from tests.dialects.frames import CREATED, FINAL, START, TIMINGS, USAGE, at, chunk, make, ollama_chat, run


def test_ollama_frames_become_chunks_with_role_deltas_finish_and_usage() -> None:
    chunks = run(
        make("chat", "ollama", "openai"), ollama_chat("Hel"), ollama_chat("lo"), ollama_chat(done=FINAL)
    )
    envelope = {
        "id": "chatcmpl-01J0",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": "my-model",
        "system_fingerprint": "fp_ollama",
    }

    def expected(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return {**envelope, "choices": [choice]}

    assert chunks == [
        expected({"role": "assistant", "content": "Hel"}),
        expected({"content": "lo"}),
        expected({}, "stop"),
        {**envelope, "choices": [], "usage": USAGE, "timings": TIMINGS},
    ]


def test_the_usage_chunk_is_left_out_for_those_who_did_not_ask() -> None:
    translator = make("chat", "ollama", "openai", include_usage=False)
    chunks = run(translator, ollama_chat("x"), ollama_chat(done=FINAL))
    assert [len(each["choices"]) for each in chunks] == [1, 1]
    assert translator.finished
    assert translator.error is None


def test_thinking_goes_by_both_of_its_names() -> None:
    first, second, *_ = run(
        make("chat", "ollama", "openai"),
        ollama_chat(thinking="hm"),
        ollama_chat("x"),
        ollama_chat(done=FINAL),
    )
    assert first["choices"][0]["delta"] == {
        "role": "assistant",
        "content": "",
        "reasoning": "hm",
        "reasoning_content": "hm",
    }
    assert second["choices"][0]["delta"] == {"content": "x"}


def test_tool_calls_of_several_frames_are_numbered_through_and_get_ids() -> None:
    call = {"function": {"name": "f", "arguments": {"a": "ü"}}}
    chunks = run(
        make("chat", "ollama", "openai"),
        ollama_chat(tool_calls=[call, {"id": "call_given", **call}]),
        ollama_chat(tool_calls=[call]),
        ollama_chat(done=FINAL),
    )
    calls = [each for c in chunks if c["choices"] for each in c["choices"][0]["delta"].get("tool_calls", [])]
    assert [each["index"] for each in calls] == [0, 1, 2]
    assert [each["id"] for each in calls] == ["call_01J0_0", "call_given", "call_01J0_2"]
    assert calls[0]["function"] == {"name": "f", "arguments": '{"a":"ü"}'}
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[2]["choices"][0]["finish_reason"] == "tool_calls"


def test_words_and_calls_in_the_final_frame_are_not_lost() -> None:
    chunks = run(make("chat", "ollama", "openai"), ollama_chat("all at once", done=FINAL))
    assert chunks[0]["choices"][0]["delta"]["content"] == "all at once"
    assert chunks[1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("done_reason", "finish_reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("load", "stop"),
        ("content_filter", "content_filter"),
        (None, "stop"),
    ],
)
def test_done_reasons_become_finish_reasons_that_clients_know(
    done_reason: str | None, finish_reason: str
) -> None:
    chunks = run(
        make("chat", "ollama", "openai"), ollama_chat(done={"done": True, "done_reason": done_reason})
    )
    assert chunks[0]["choices"][0]["finish_reason"] == finish_reason
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[1]["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def test_frames_that_say_nothing_make_no_chunks() -> None:
    translator = make("chat", "ollama", "openai")
    assert translator.feed(DIALECTS["ollama"].writer("chat", "m", "01J0", START).say("", START), at(1)) == []


def test_generate_becomes_text_completion_chunks() -> None:
    frames: list[dict[str, Any]] = [
        {"model": "t", "response": "Hel", "done": False},
        {"model": "t", "response": "", **FINAL},
    ]
    chunks = run(make("generate", "ollama", "openai"), *frames)
    assert [each["object"] for each in chunks] == ["text_completion"] * 3
    assert chunks[0]["id"] == "cmpl-01J0"
    assert chunks[0]["choices"] == [{"index": 0, "text": "Hel", "finish_reason": None, "logprobs": None}]
    assert chunks[1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[2]["usage"] == USAGE


def test_logprobs_travel_with_their_words() -> None:
    logprobs = [{"token": "x", "logprob": -0.1, "bytes": [120], "top_logprobs": []}]
    frame = ollama_chat("x") | {"logprobs": logprobs}
    first, *_ = run(make("chat", "ollama", "openai"), frame, ollama_chat(done=FINAL))
    assert first["choices"][0]["logprobs"] == {"content": logprobs, "refusal": None}
    back = run(make("chat", "openai", "ollama"), first, chunk({}, "stop"))
    assert back[0]["logprobs"] == logprobs
