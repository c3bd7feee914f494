"""Frames of both dialects, and a clock that ticks once for each of them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from app.dialects import TARGET_DIALECTS
from app.dialects.protocol import Fold, IncompleteAnswer
from app.dialects.shapes import Frame, Kind
from app.dialects.translate import ResponseTranslator
from app.dialects.translate import translate_request as translate_between

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CREATED = int(START.timestamp())
FINAL = {
    "done": True,
    "done_reason": "stop",
    "total_duration": 3_000_000_000,
    "load_duration": 1,
    "prompt_eval_count": 5,
    "prompt_eval_duration": 1_000_000_000,
    "eval_count": 7,
    "eval_duration": 2_000_000_000,
}


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def make(kind: Any, source: Any, to: Any, **more: Any) -> ResponseTranslator:
    return ResponseTranslator(
        kind, TARGET_DIALECTS[source], TARGET_DIALECTS[to], "my-model", "01J0", START, **more
    )


def translate_request(kind: Kind, body: Frame, source: str, to: str) -> Frame:
    return translate_between(kind, body, TARGET_DIALECTS[source], TARGET_DIALECTS[to])


def translate_response(
    kind: Kind, answer: Frame, source: str, to: str, *, model: str, answer_id: str, at: datetime
) -> Frame:
    """A whole answer, the way its frames would have gone. An error comes out as the error body of `to`."""
    translator = ResponseTranslator(kind, TARGET_DIALECTS[source], TARGET_DIALECTS[to], model, answer_id, at)
    folder = folder_of(kind, to)
    for frame in (*translator.feed(answer, at), *translator.finish(at)):
        folder.feed(frame)
    return folder.response() if folder.error is None else TARGET_DIALECTS[to].error(500, folder.error)


def folder_of(kind: Kind, dialect: str) -> Fold:
    return TARGET_DIALECTS[dialect].fold(kind)


def is_complete(folder: Fold) -> bool:
    try:
        folder.response()
    except IncompleteAnswer:
        return False
    return True


def fold(kind: Kind, dialect: str, frames: list[Frame]) -> Frame:
    folder = folder_of(kind, dialect)
    for frame in frames:
        folder.feed(frame)
    return folder.response()


def run(translator: ResponseTranslator, *frames: dict[str, Any]) -> list[dict[str, Any]]:
    """The n-th frame arrives n seconds after the start, the end of the source one second after the last."""
    out = [each for n, frame in enumerate(frames) for each in translator.feed(frame, at(n + 1))]
    return out + translator.finish(at(len(frames) + 1))


def ollama_chat(content: str = "", *, done: dict[str, Any] | None = None, **message: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": content, **message}
    return {"model": "t", "created_at": "2026-01-01T00:00:00Z", "message": said, **(done or {"done": False})}


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "t",
        "choices": choices,
        **more,
    }


PAIRS = [("ollama", "openai"), ("openai", "ollama"), ("ollama", "ollama"), ("openai", "openai")]
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
TIMINGS = {"prompt_n": 5, "prompt_ms": 1000.0, "predicted_n": 7, "predicted_ms": 2000.0}


def is_error(frame: dict[str, Any], dialect: str) -> bool:
    error = frame.get("error")
    return isinstance(error, str) if dialect == "ollama" else isinstance(error, dict) and "message" in error
