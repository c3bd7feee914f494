"""Answers from OpenAI's chunks to Ollama's frames."""

from typing import Any

import pytest

from tests.dialects.frames import USAGE, chunk, make, run


def test_chunks_become_ollama_frames_with_an_honest_final_one() -> None:
    frames = run(
        make("chat", "openai", "ollama"),
        chunk({"role": "assistant", "content": None}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({}, "stop"),
        chunk(None, usage=USAGE),
    )
    assert frames[0] == {
        "model": "my-model",
        "created_at": "2026-01-02T03:04:07Z",
        "message": {"role": "assistant", "content": "Hel"},
        "done": False,
    }
    assert [each["message"]["content"] for each in frames] == ["Hel", "lo", ""]
    assert frames[-1] == {
        "model": "my-model",
        "created_at": "2026-01-02T03:04:11Z",
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
        "total_duration": 6_000_000_000,
        "load_duration": 0,
        "prompt_eval_count": 5,
        # Until the first word, and from there to the last: measured here, since OpenAI does not say.
        "prompt_eval_duration": 2_000_000_000,
        "eval_count": 7,
        "eval_duration": 1_000_000_000,
    }


def test_the_timings_of_llama_cpp_are_believed() -> None:
    timings = {"prompt_ms": 12.5, "predicted_ms": 250}
    *_, final = run(
        make("chat", "openai", "ollama"),
        chunk({"content": "x"}),
        chunk({}, "length", usage=USAGE, timings=timings),
    )
    assert (final["prompt_eval_duration"], final["eval_duration"]) == (12_500_000, 250_000_000)
    assert final["done_reason"] == "length"


def test_fragments_of_tool_calls_leave_as_whole_calls() -> None:
    def fragment(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        name = more.pop("name", None)
        function = {"arguments": arguments, **({"name": name} if name else {})}
        return chunk({"tool_calls": [{"index": index, "function": function, **more}]})

    frames = run(
        make("chat", "openai", "ollama"),
        chunk({"role": "assistant", "content": None}),
        fragment(0, "", id="call_a", type="function", name="weather"),
        fragment(0, '{"ci'),
        fragment(0, 'ty":"Rome"}'),
        fragment(1, "", id="call_b", type="function", name="now"),
        chunk({}, "tool_calls"),
        chunk(None, usage=USAGE),
    )
    assert len(frames) == 2
    assert frames[0]["message"]["tool_calls"] == [
        {"id": "call_a", "function": {"index": 0, "name": "weather", "arguments": {"city": "Rome"}}},
        {"id": "call_b", "function": {"index": 1, "name": "now", "arguments": {}}},
    ]
    assert frames[0]["done"] is False
    assert (frames[1]["done"], frames[1]["done_reason"]) == (True, "stop")


def test_tool_calls_without_an_index_are_told_apart_by_their_ids() -> None:
    calls = [{"id": f"c{n}", "function": {"name": f"f{n}", "arguments": "{}"}} for n in range(2)]
    together = run(make("chat", "openai", "ollama"), chunk({"tool_calls": calls}), chunk({}, "tool_calls"))
    apart = run(
        make("chat", "openai", "ollama"),
        *(chunk({"tool_calls": [call]}) for call in calls),
        chunk({}, "tool_calls"),
    )
    for frames in (together, apart):
        names = [call["function"]["name"] for call in frames[0]["message"]["tool_calls"]]
        assert names == ["f0", "f1"]


def test_a_tool_call_that_was_cut_off_is_shown_as_text() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "weather", "arguments": '{"city": "Ro'}}
    frames = run(make("chat", "openai", "ollama"), chunk({"tool_calls": [call]}), chunk({}, "length"))
    assert frames[0]["message"] == {
        "role": "assistant",
        "content": '{"name": "weather", "arguments": {"city": "Ro}',
    }
    assert frames[1]["done_reason"] == "length"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_becomes_thinking(name: str) -> None:
    frames = run(
        make("chat", "openai", "ollama"), chunk({name: "hm"}), chunk({"content": "x"}), chunk({}, "stop")
    )
    assert frames[0]["message"] == {"role": "assistant", "content": "", "thinking": "hm"}
    assert frames[1]["message"] == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("finish_reason", "done_reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "stop"),
        ("function_call", "stop"),
        ("content_filter", "content_filter"),
    ],
)
def test_finish_reasons_become_done_reasons(finish_reason: str, done_reason: str) -> None:
    *_, final = run(make("chat", "openai", "ollama"), chunk({"content": "x"}), chunk({}, finish_reason))
    assert final["done_reason"] == done_reason


def test_only_the_first_of_several_choices_reaches_ollama() -> None:
    other = chunk({"content": "second"})
    other["choices"][0]["index"] = 1
    frames = run(make("chat", "openai", "ollama"), chunk({"content": "first"}), other, chunk({}, "stop"))
    assert "".join(each["message"]["content"] for each in frames) == "first"


def test_generate_takes_chat_chunks_and_completion_chunks() -> None:
    chatty = run(make("generate", "openai", "ollama"), chunk({"content": "x"}), chunk({}, "stop"))
    text = {"object": "text_completion", "choices": [{"index": 0, "text": "x", "finish_reason": None}]}
    end = {"object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    plain = run(make("generate", "openai", "ollama"), text, end)
    for frames in (chatty, plain):
        assert [each["response"] for each in frames] == ["x", ""]
        assert frames[-1]["done"] is True
