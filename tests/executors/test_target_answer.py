"""The short way of plain text through a target's answer leads to the same output and result as the long one."""

from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects import TARGET_DIALECTS
from app.dialects.protocol import IncompleteAnswer
from app.dialects.shapes import Frame, GarbledAnswer, Kind
from app.executors.llm import TargetAnswer
from app.executors.protocol import ClaimedJob, RunContext

TEXT = st.sampled_from(["a", "b c", "", "ü", "\n"])


def ollama_frames(kind: str) -> st.SearchStrategy[Frame]:
    def frame(text: Any, more: Frame, beside: Frame, done: Any) -> Frame:
        said: Frame = (
            {"message": {"role": "assistant", "content": text, **more}}
            if kind == "chat"
            else {"response": text, **more}
        )
        return {"model": "m", "created_at": "2026-01-01T00:00:00Z", **said, **beside, "done": done}

    more = st.sampled_from([{}, {}, {}, {"thinking": "hm"}, {"tool_calls": [CALL]}, {"odd": 1}])
    beside = st.sampled_from([{}, {}, {}, {"logprobs": [{"token": "a"}]}, {"odd": 1}, {"error": "broke"}])
    texts = TEXT | st.sampled_from([None, 1])
    ending = {"done_reason": "stop", "prompt_eval_count": 3, "eval_count": 2, "total_duration": 5}
    end = st.builds(lambda text: frame(text, {}, ending, done=True), TEXT)
    return st.builds(frame, texts, more, beside, st.sampled_from([False, False, False, None])) | end


def openai_frames(kind: str) -> st.SearchStrategy[Frame]:
    def chunk(said: Frame, choice: Frame, beside: Frame) -> Frame:
        envelope = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return {**envelope, "choices": [{"index": 0, **said, "finish_reason": None, **choice}], **beside}

    def saying(text: Any, more: Frame) -> Frame:
        return {"delta": {"content": text, **more}} if kind == "chat" else {"text": text}

    more = st.sampled_from([{}, {}, {}, {"role": "assistant"}, {"reasoning": "hm"}, {"odd": 1}])
    choice = st.sampled_from(
        [{}, {}, {}, {"finish_reason": "stop"}, {"index": 1}, {"logprobs": {"content": [1]}}, {"odd": 1}]
    )
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}
    beside = st.sampled_from([{}, {}, {}, usage, {"choices": []}, {"model": "other"}, {"error": {}}])
    texts = TEXT | st.sampled_from([None, 1])
    return st.builds(chunk, st.builds(saying, texts, more), choice, beside)


CALL = {"function": {"name": "f", "arguments": {"x": 1}}}
FRAMES = {"ollama": ollama_frames, "openai": openai_frames}


class Context:
    def __init__(self) -> None:
        self.said: list[Any] = []

    def output(self, part: Any) -> None:
        # An empty piece is none, as the transcript has it.
        if part:
            self.said.append(part)


class Job:
    id = "01JOB"
    model = "m"

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect


def come_to(kind: Kind, source: str, to: str, frames: list[Frame], *, short: bool, wire: bool = False) -> Any:
    """All that is said, what it ends in, and the result: without its times. `wire`: from the bytes on."""
    context = Context()
    answer = TargetAnswer(
        kind, TARGET_DIALECTS[source], cast(ClaimedJob, Job(to)), {}, cast(RunContext, context)
    )
    decoder = TARGET_DIALECTS[source].text_decoder(kind)
    try:
        for frame in frames:
            if wire:
                for heard in decoder.hear(TARGET_DIALECTS[source].encode(frame)):
                    answer.repeat(heard) if isinstance(heard, str) else answer.take(heard)
                continue
            if not short:
                answer._begun = False
            answer.take(orjson.loads(orjson.dumps(frame)))
        answer.end()
        outcome = orjson.loads(answer.outcome().result)
    except (GarbledAnswer, IncompleteAnswer) as problem:
        outcome = str(problem)
    if isinstance(outcome, dict):
        for name in ("created", "created_at", "total_duration", "prompt_eval_duration", "eval_duration"):
            outcome.pop(name, None)
    return context.said, answer.error, outcome, list(outcome)


@given(data=st.data())
def test_both_ways_lead_to_the_same(data: st.DataObject) -> None:
    kind: Kind = data.draw(st.sampled_from(["chat", "generate"]))
    source, to = data.draw(st.sampled_from(list(FRAMES))), data.draw(st.sampled_from(list(FRAMES)))
    frames = data.draw(st.lists(FRAMES[source](kind), max_size=8))
    long = come_to(kind, source, to, frames, short=False)
    assert come_to(kind, source, to, frames, short=True) == long
    assert come_to(kind, source, to, frames, short=True, wire=True) == long


@pytest.mark.parametrize(
    ("source", "to", "frame"),
    [
        ("ollama", "openai", {"model": "m", "message": {"role": "assistant", "content": "a"}, "done": False}),
        ("openai", "ollama", {"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}}]}),
    ],
)
def test_nearly_all_words_take_the_short_way(
    source: str, to: str, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context()
    answer = TargetAnswer(
        "chat", TARGET_DIALECTS[source], cast(ClaimedJob, Job(to)), {}, cast(RunContext, context)
    )
    answer.take(frame)
    # The first word takes the long way; from then on nothing is fed.
    monkeypatch.setattr(answer._translator, "feed", None)
    answer.take(frame)
    assert context.said == ["a", "a"]
