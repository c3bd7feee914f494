"""A target's own frames, kept in the log of a job of the same dialect and told again: what others made of it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from app.dialects import TARGET_DIALECTS
from app.dialects.kept import rest_of, text_of
from app.dialects.neutral import Part
from app.dialects.shapes import Frame, Kind

OPENAI, OLLAMA = TARGET_DIALECTS["openai"], TARGET_DIALECTS["ollama"]
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TIMES = ("id", "created", "created_at")


def chunk(delta: Any = None, reason: str | None = None, choice: Any = None, **more: Any) -> Frame:
    envelope = {"id": "chatcmpl-9", "object": "chat.completion.chunk", "created": 5, "model": "Theirs-7B"}
    if delta is None:
        return {**envelope, "choices": [], **more}
    whole = {"index": 0, "delta": delta, "finish_reason": reason, **(choice or {})}
    return {**envelope, "choices": [whole], **more}


def line(text: str, *, done: bool = False, message: Any = None, **more: Any) -> Frame:
    said = {"role": "assistant", "content": text, **(message or {})}
    return {"model": "theirs:7b", "created_at": "2020-01-01T00:00:00Z", "message": said, "done": done, **more}


OPENING = chunk({"role": "assistant", "content": "", "refusal": None})
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}

ANSWERS: dict[str, list[Frame]] = {
    "text": [OPENING, chunk({"content": "a"}), chunk({"content": "b"}), chunk({}, "stop")],
    "the role with every word": [chunk({"role": "assistant", "content": each}) for each in "abc"],
    "the reason with the last word": [chunk({"content": "a"}), chunk({"content": "b"}, "length")],
    "counts of nobody's business": [
        chunk({"content": "a"}),
        chunk({}, "stop"),
        chunk(usage=USAGE, timings={"x": 1}),
    ],
    "another field in each": [chunk({"content": each}, obfuscation=each * 3) for each in "abc"],
    "a field that comes and goes": [
        chunk({"content": "a"}),
        chunk({"content": "b"}, citations=["https://example.org"]),
        chunk({"content": "c"}, citations=["https://example.org"]),
        chunk({"content": "d"}),
    ],
    "reasons of their own": [
        chunk({"content": "a"}, choice={"native_finish_reason": None}),
        chunk(
            {"content": ""}, "stop", {"native_finish_reason": "STOP", "content_filter_results": {"hate": {}}}
        ),
    ],
    "filters first": [
        chunk(prompt_filter_results=[{"prompt_index": 0}]),
        chunk({"content": "a"}, service_tier="flex"),
    ],
    "thoughts": [OPENING, chunk({"reasoning_content": "hm"}), chunk({"content": "a"}), chunk({}, "stop")],
    "calls": [
        OPENING,
        chunk({"tool_calls": [{**CALL, "extra_content": {"google": {"thought_signature": "s"}}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}", "note": 1}}]}),
        chunk({"provider_specific_fields": {"x": 1}}),
        chunk({}, "tool_calls"),
    ],
    "choices": [
        chunk({"content": "a"}),
        chunk({"content": "b"}, choice={"index": 1}),
        chunk({}, "stop", {"index": 1}),
        chunk({"content": "c"}),
        chunk({}, "stop"),
    ],
    "nothing in between": [
        chunk({"content": "a"}),
        chunk({"content": ""}),
        chunk({"content": "b"}),
        chunk({}, "stop"),
    ],
    "nothing at all": [OPENING, chunk({}, "stop")],
    "probabilities": [
        chunk({"content": "a"}, choice={"logprobs": {"content": [{"token": "a"}]}}),
        chunk({}, "stop"),
    ],
}

LINES: dict[str, list[Frame]] = {
    "text": [line("a"), line("b"), line("", done=True, done_reason="stop", eval_count=2, remote_model="x")],
    "a field that comes and goes": [line("a"), line("b", progress=0.5), line("c"), line("", done=True)],
    "in the message": [line("a", message={"mood": "good"}), line("b"), line("", done=True)],
    "thoughts": [line("", message={"thinking": "hm"}), line("a"), line("", done=True)],
    "calls": [
        line("", message={"tool_calls": [{"function": {"name": "f", "arguments": {}}, "extra": 1}]}),
        line("", done=True),
    ],
    "words at the end": [line("a"), line("b", done=True, done_reason="stop")],
}


def kept(dialect: Any, frames: list[Frame], kind: Kind = "chat") -> list[Part]:
    keeper = dialect.keeper(kind)
    return [part for part in [*map(keeper.keep, frames), keeper.end()] if part]


def told(dialect: Any, parts: list[Part], *, include_usage: bool = True, kind: Kind = "chat") -> list[Frame]:
    writer = dialect.writer(kind, "ours", "01J0", AT, include_usage=include_usage)
    frames = [frame for part in parts for frame in writer.told(part, AT)]
    return [*frames, *writer.ending({}, AT)]


def timeless(frames: list[Frame]) -> list[Frame]:
    return [{name: value for name, value in each.items() if name not in TIMES} for each in frames]


@pytest.mark.parametrize("name", ANSWERS)
def test_chunks_come_out_as_they_came_in(name: str) -> None:
    out = told(OPENAI, kept(OPENAI, ANSWERS[name]))
    assert timeless(out) == timeless(ANSWERS[name])
    assert {(each["id"], each["created"]) for each in out} == {("chatcmpl-01J0", int(AT.timestamp()))}


@pytest.mark.parametrize("name", LINES)
def test_lines_come_out_as_they_came_in(name: str) -> None:
    out = told(OLLAMA, kept(OLLAMA, LINES[name]))
    assert timeless(out) == timeless(LINES[name])
    assert {each["created_at"] for each in out} == {"2026-01-02T03:04:05Z"}


@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_sent_are_the_frames_that_are_told(name: str, include_usage: bool) -> None:
    texts: list[Part] = ['say "x"\n', "\u2028é", ""]
    parts = [each for part in kept(OPENAI, ANSWERS[name]) for each in (part, *texts)]
    one, other = (OPENAI.writer("chat", "ours", "01J0", AT, include_usage=include_usage) for _ in range(2))
    for part in [*texts, *parts]:
        expected = b"".join([OPENAI.encode(frame) for frame in one.told(part, AT)])
        assert other.on_wire(part, AT, OPENAI.encode) == expected
    # What the answer as a whole says of its frames holds for the texts that follow.
    for writer in (one, other):
        writer.foresee({"model": "Theirs-7B", "service_tier": "flex"})
    assert other.on_wire("x", AT, OPENAI.encode) == OPENAI.encode(*one.told("x", AT))


def test_words_that_look_alike_are_kept_as_words() -> None:
    parts = kept(OPENAI, [OPENING, *[chunk({"content": each}) for each in "abcd"], chunk({}, "stop")])
    assert [text_of(part) for part in parts] == ["a", "b", "c", "d", None]
    assert parts[1:4] == ["b", "c", "d"]
    # And they still look alike where a log has joined them, or a reader goes on in the middle of one.
    [*_, joined, end] = told(OPENAI, [parts[0], rest_of("abcd", 1), parts[-1]])
    assert timeless([joined, end]) == timeless([chunk({"content": "bcd"}), chunk({}, "stop")])


def test_counts_that_only_the_ledger_asked_for_are_not_told_but_what_stands_beside_them_is() -> None:
    frames = [
        chunk({"content": "a"}, usage=None),
        chunk({}, "stop", usage=None),
        chunk(usage=USAGE, timings={"predicted_ms": 1.5}),
    ]
    out = told(OPENAI, kept(OPENAI, frames), include_usage=False)
    assert timeless(out) == timeless(
        [chunk({"content": "a"}), chunk({}, "stop", timings={"predicted_ms": 1.5})]
    )
    # A server that tells them to everybody, in the last chunk that says something, goes on doing so.
    told_anyway = [chunk({"content": "a"}), chunk({}, "stop", usage=USAGE)]
    assert timeless(told(OPENAI, kept(OPENAI, told_anyway), include_usage=False)) == timeless(told_anyway)


def test_a_log_of_an_older_version_is_still_told() -> None:
    writer = OPENAI.writer("chat", "ours", "01J0", AT, include_usage=True)
    old: list[Part] = ["a", {"choices": [{"index": 0, "delta": {"reasoning": "hm"}}]}]
    out = [frame for part in old for frame in writer.told(part, AT)]
    assert [each["choices"][0]["delta"] for each in out] == [
        {"role": "assistant", "content": "a"},
        {"reasoning": "hm"},
    ]
    result = {
        "choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "length"}],
        "usage": USAGE,
    }
    assert [each.get("usage") for each in writer.ending(result, AT)] == [None, USAGE]


def test_a_result_alone_says_what_its_chunks_looked_like() -> None:
    """For a quick run without a row in the log."""
    choice = {"index": 0, "message": {"content": "a"}, "finish_reason": "stop", "stop_reason": 7}
    result = {
        "model": "Theirs-7B",
        "service_tier": "flex",
        "choices": [choice],
        "usage": USAGE,
        "citations": ["x"],
    }
    writer = OPENAI.writer("chat", "ours", "01J0", AT, include_usage=False)
    writer.foresee(result)
    [word], [end] = writer.told("a", AT), writer.ending(result, AT)
    assert (word["model"], word["service_tier"]) == ("Theirs-7B", "flex")
    assert (end["citations"], end["choices"][0]["stop_reason"]) == (["x"], 7)


def test_a_fold_keeps_what_nobody_knows() -> None:
    fold = OPENAI.fold("chat")
    for frame in [*ANSWERS["calls"], *ANSWERS["reasons of their own"][1:]]:
        fold.feed(frame)
    [choice] = fold.response()["choices"]
    assert choice["native_finish_reason"] == "STOP"
    assert choice["message"]["provider_specific_fields"] == {"x": 1}
    assert choice["message"]["tool_calls"] == [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "f", "arguments": "{}", "note": 1},
            "extra_content": {"google": {"thought_signature": "s"}},
        }
    ]
    fold = OLLAMA.fold("chat")
    for frame in [line("a", message={"mood": "good"}, progress=1), line("", done=True, remote_model="x")]:
        fold.feed(frame)
    whole = fold.response()
    assert (whole["message"]["mood"], whole["progress"], whole["remote_model"]) == ("good", 1, "x")
