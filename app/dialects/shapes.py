"""The vocabulary of this room: dialects, kinds, frames, and careful looks into JSON that somebody else wrote.

A frame is one JSON object of an answer: a line of Ollama's NDJSON or the data of one of OpenAI's server-sent
events. A whole answer that was not streamed is a frame as well.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

Dialect = Literal["ollama", "openai"]
Kind = Literal["chat", "generate", "embed"]
Frame = dict[str, Any]

MAX_COUNT = 2**63 - 1


class UntranslatableRequest(ValueError):
    """The request says something that the other dialect has no words for; the message is for the caller."""


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


def as_count(value: Any) -> int:
    """A number of tokens or nanoseconds, no larger than 64 bits hold; anything else counts as none."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        return 0
    return int(min(value, MAX_COUNT))


def without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def ollama_time(at: datetime) -> str:
    """RFC 3339 in UTC with a Z, as Go writes it."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1_000_000_000))


def seconds(nanos: Any) -> float:
    return as_count(nanos) / 1_000_000_000
