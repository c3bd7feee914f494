"""Whatever happens to the source, an answer ends with exactly one terminal frame."""

from typing import Any

import pytest

from tests.dialects.frames import (
    FINAL,
    PAIRS,
    USAGE,
    at,
    chunk,
    is_error,
    make,
    ollama_chat,
    run,
)


def beginning(dialect: str, kind: str) -> dict[str, Any]:
    if dialect == "openai":
        return chunk({"content": "x"})
    return ollama_chat("x") if kind == "chat" else {"model": "t", "response": "x", "done": False}


@pytest.mark.parametrize("kind", ["chat", "generate"])
@pytest.mark.parametrize(("source", "to"), PAIRS)
def test_a_source_that_is_cut_off_ends_with_one_error_frame(kind: Any, source: Any, to: Any) -> None:
    translator = make(kind, source, to)
    frames = run(translator, beginning(source, kind))
    assert [is_error(each, to) for each in frames] == [False, True]
    assert translator.error == "the answer was cut short"
    assert translator.finish(at(9)) == []
    assert translator.feed(beginning(source, kind), at(9)) == []


@pytest.mark.parametrize("kind", ["chat", "generate"])
@pytest.mark.parametrize(("source", "to"), PAIRS)
@pytest.mark.parametrize(
    "error", [{"error": "out of memory"}, {"error": {"message": "out of memory", "type": "x"}}]
)
def test_an_error_of_the_source_is_passed_on_in_the_shape_of_the_reader(
    kind: Any, source: Any, to: Any, error: dict[str, Any]
) -> None:
    translator = make(kind, source, to)
    frames = run(translator, beginning(source, kind), error, beginning(source, kind))
    assert len(frames) == 2
    assert translator.error == "out of memory"
    if source == to:
        assert frames[-1] is error
    else:
        assert is_error(frames[-1], to)


@pytest.mark.parametrize("dialect", ["ollama", "openai"])
def test_within_a_dialect_frames_pass_untouched(dialect: Any) -> None:
    frames = (
        [ollama_chat("x") | {"odd": 1}, ollama_chat(done=FINAL)]
        if dialect == "ollama"
        else [chunk({"content": "x", "odd": 1}), chunk({}, "stop"), chunk(None, usage=USAGE)]
    )
    out = run(make("chat", dialect, dialect), *frames)
    assert len(out) == len(frames)
    assert all(mine is theirs for mine, theirs in zip(out, frames, strict=True))


def test_several_choices_are_only_complete_when_all_are() -> None:
    second = chunk({"content": "b"})
    second["choices"][0]["index"] = 1
    translator = make("chat", "openai", "openai")
    run(translator, chunk({"content": "a"}), second, chunk({}, "stop"))
    assert translator.error == "the answer was cut short"
