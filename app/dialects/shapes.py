"""The vocabulary of this room: kinds, frames, and careful looks into JSON that somebody else wrote.

A frame is one JSON object of an answer: a line of NDJSON or the data of a server-sent event. A whole answer
that was not streamed is a frame as well.
"""

from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal["chat", "generate", "embed"]
Frame = dict[str, Any]

MAX_COUNT = 2**63 - 1


class UntranslatableRequest(ValueError):
    """The request says something that the other dialect has no words for; the message is for the caller, and
    `param` names what it is about."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class GarbledAnswer(ValueError):
    """The target answered something that is not its dialect.

    The message holds a piece of what came, for the owner of the job alone: that may be anything. `kind` says
    what is wrong without any of it, for operators and logs.
    """

    def __init__(self, kind: str, piece: str | None = None) -> None:
        super().__init__(kind if piece is None else f"{kind}: {piece}")
        self.kind = kind


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_frames(value: Any) -> list[Frame]:
    return [each for each in as_list(value) if isinstance(each, dict)]


def as_count(value: Any) -> int:
    """A number of tokens or nanoseconds, no larger than 64 bits hold; anything else counts as none."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        return 0
    return int(min(value, MAX_COUNT))


def without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def join(whole: Frame, more: Frame) -> None:
    """Text and lists grow, anything else is replaced unless by nothing, and the role is said once."""
    for name, value in more.items():
        known = whole.get(name)
        grows = isinstance(known, str) and isinstance(value, str) and name != "role"
        if grows or (isinstance(known, list) and isinstance(value, list)):
            whole[name] = known + value
        elif value is not None or name not in whole:
            whole[name] = value


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1_000_000_000))


def asks_for_usage(body: Mapping[str, Any]) -> bool:
    return as_dict(body.get("stream_options")).get("include_usage") is True


def is_legacy_embeddings(body: Mapping[str, Any]) -> bool:
    """Ollama's `/api/embeddings` takes one `prompt`; `/api/embed`, which replaced it, takes `input`."""
    return "prompt" in body and "input" not in body


def error_message(body: Any) -> str | None:
    """What went wrong, if this frame or HTTP body is an error in any shape; None if it is none."""
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if error:
        if isinstance(error, str):
            return error
        return as_text(as_dict(error).get("message")) or "the target reported an error without a message"
    if body.get("object") == "error":
        return as_text(body.get("message")) or "the target reported an error without a message"
    return None
