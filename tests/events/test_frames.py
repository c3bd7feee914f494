"""The frames of the token stream, from either dialect to either, whatever was said and however it ended."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from app.dialects import DIALECTS
from app.events.follow import Ended
from app.events.frames import Frames
from app.jobs.ids import new_id
from app.store.job import Job
from tests.dialects.frames import fold
from tests.rows import made_up

CALL = {"function": {"name": "weather", "arguments": {"city": "Bern"}}}
OLLAMA_RESULT = {
    "model": "m",
    "created_at": "2026-01-01T00:00:00Z",
    "message": {"role": "assistant", "content": "Hello you", "thinking": "hm", "tool_calls": [CALL]},
    "done": True,
    "done_reason": "stop",
    "eval_count": 7,
    "prompt_eval_count": 5,
}
OPENAI_RESULT = {
    "id": "x",
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hello you"}, "finish_reason": "length"}
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
}


def row(state: str = "done", **more: Any) -> Job:
    fields = {
        "id": new_id(),
        "kind": "chat",
        "model": "m",
        "dialect": "ollama",
        "payload": "{}",
        "created_at": datetime.now(UTC),
        "state": state,
        "error": None,
        "result": json.dumps(OLLAMA_RESULT),
        **more,
    }
    return made_up(Job, **fields)


def ending(job: Job) -> Ended:
    return Ended(job.state, job.result, job.error)


def whole(frames: list[dict[str, Any]], dialect: Any) -> dict[str, Any]:
    return fold("chat", dialect, frames)


def test_thinking_and_tool_calls_are_passed_on_as_they_were_said() -> None:
    job = row()
    frames = Frames(job, DIALECTS["ollama"])
    told = [
        *frames.part({"message": {"role": "assistant", "content": "", "thinking": "hm"}}),
        *frames.part("Hello "),
        *frames.part("you"),
        *frames.part({"message": {"role": "assistant", "content": "", "tool_calls": [CALL]}}),
        *frames.ended(ending(job)),
    ]
    answer = whole(told, "ollama")
    assert answer["message"] == OLLAMA_RESULT["message"]
    assert answer["eval_count"] == 7
    assert [frame["done"] for frame in told] == [False, False, False, False, True]


def test_the_same_for_a_reader_who_speaks_openai() -> None:
    job = row()
    frames = Frames(job, DIALECTS["openai"])
    told = [
        *frames.part({"message": {"role": "assistant", "content": "", "thinking": "hm"}}),
        *frames.part("Hello "),
        *frames.part("you"),
        *frames.part({"message": {"role": "assistant", "content": "", "tool_calls": [CALL]}}),
        *frames.ended(ending(job)),
    ]
    answer = whole(told, "openai")
    [choice] = answer["choices"]
    assert choice["message"]["content"] == "Hello you"
    assert choice["message"]["reasoning"] == "hm"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
    assert choice["finish_reason"] == "tool_calls"
    assert "usage" not in answer


def test_an_openai_job_is_told_in_its_own_dialect() -> None:
    job = row(dialect="openai", result=json.dumps(OPENAI_RESULT))
    frames = Frames(job, DIALECTS["openai"])
    told = [*frames.part("Hello "), *frames.part("you"), *frames.ended(ending(job))]
    [choice] = whole(told, "openai")["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello you"}
    assert choice["finish_reason"] == "length"


def test_an_openai_job_is_told_in_ollamas_frames() -> None:
    job = row(dialect="openai", result=json.dumps(OPENAI_RESULT))
    frames = Frames(job, DIALECTS["ollama"])
    told = [*frames.part("Hello "), *frames.part("you"), *frames.ended(ending(job))]
    answer = whole(told, "ollama")
    assert answer["message"]["content"] == "Hello you"
    assert answer["done_reason"] == "length"
    assert answer["eval_count"] == 7
    assert [frame["done"] for frame in told][-1] is True


@pytest.mark.parametrize("dialect", ["ollama", "openai"])
def test_what_was_said_besides_text_comes_from_the_result_when_its_rows_are_gone(dialect: Any) -> None:
    job = row()
    frames = Frames(job, DIALECTS[dialect])
    told = [*frames.part("Hello you"), *frames.ended(ending(job))]
    answer = whole(told, dialect)
    message = answer["message"] if dialect == "ollama" else answer["choices"][0]["message"]
    assert message["tool_calls"]
    assert message["content"] == "Hello you"


@pytest.mark.parametrize("source", ["ollama", "openai"])
@pytest.mark.parametrize("dialect", ["ollama", "openai"])
@pytest.mark.parametrize(
    ("state", "error", "says"),
    [
        ("failed", '{"code":"x","message":"out of memory","retryable":false}', "out of memory"),
        ("failed", None, "the job failed"),
        ("cancelled", None, "cancelled"),
        ("expired", None, "deadline"),
        ("skipped", None, "replaced"),
        ("stale", None, "newer"),
        ("dismissed", None, "dismissed"),
        ("working", None, "attach again"),
    ],
)
def test_every_other_end_is_one_error_frame(
    source: str, dialect: Any, state: str, error: str | None, says: str
) -> None:
    job = row(state, error=error, dialect=source, result=None)
    frames = Frames(job, DIALECTS[dialect])
    frames.part("Hel")
    [last] = frames.ended(ending(job))
    message = last["error"] if dialect == "ollama" else last["error"]["message"]
    assert says in message


@pytest.mark.parametrize("result", [None, "null", "7", '"text"', "[]", "{}"])
@pytest.mark.parametrize("source", ["ollama", "openai"])
@pytest.mark.parametrize("dialect", ["ollama", "openai"])
def test_a_result_of_any_shape_still_ends_the_stream(result: str | None, source: str, dialect: Any) -> None:
    job = row(result=result, dialect=source)
    told = Frames(job, DIALECTS[dialect]).ended(ending(job))
    last = told[-1]
    if dialect == "ollama":
        assert last.get("done") is True or "error" in last
    else:
        assert "error" in last or last["choices"][0]["finish_reason"]


def test_usage_that_only_we_asked_for_is_withheld_from_an_openai_caller() -> None:
    job = row(dialect="openai", result=json.dumps(OPENAI_RESULT))
    frames = Frames(job, DIALECTS["openai"])
    told = [*frames.part("x"), *frames.ended(ending(job))]
    assert len(told) == 2
    assert not any("usage" in each or "error" in each for each in told)


def test_usage_that_was_asked_for_comes_last() -> None:
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    job = row(dialect="openai", result=json.dumps(OPENAI_RESULT), payload=json.dumps(asked))
    frames = Frames(job, DIALECTS["openai"])
    told = [*frames.part("x"), *frames.ended(ending(job))]
    assert [each.get("usage") for each in told] == [None, None, OPENAI_RESULT["usage"]]


def test_a_reader_who_speaks_ollama_gets_the_counts_in_any_case() -> None:
    job = row(dialect="openai", result=json.dumps(OPENAI_RESULT))
    (*_, last) = Frames(job, DIALECTS["ollama"]).ended(ending(job))
    assert (last["done"], last["prompt_eval_count"], last["eval_count"]) == (True, 5, 7)
