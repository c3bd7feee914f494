"""What an answer cost: tokens, and the seconds spent loading, reading the prompt and writing."""

from typing import Any, TypedDict

from app.dialects.shapes import as_count

# No answer costs more. What a target says beyond that is a mistake, and must spoil neither job nor sums.
MAX_TOKENS = 10**12
MAX_SECONDS = 1e9


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    load_seconds: float
    prefill_seconds: float
    decode_seconds: float


def tokens(value: Any) -> int:
    return min(MAX_TOKENS, as_count(value))


def from_nanoseconds(value: Any) -> float:
    return min(MAX_SECONDS, as_count(value) / 1_000_000_000)


def from_milliseconds(value: Any, fallback: float) -> float:
    is_usable = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    # The smaller one first: a whole number of a target's may be too large to be divided.
    return min(value, MAX_SECONDS * 1000) / 1000 if is_usable else fallback
