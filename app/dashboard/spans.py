"""Lengths of time as people type them, and back, without losing any of it: 90 s, 2 min, 12 h, 7 d. Pure."""

import re
from typing import Any

import orjson

_SIZES = {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86_400}
_TYPED = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(ms|s|min|h|d)?\Z")


def span(seconds: Any) -> str:
    """In the largest unit that says it exactly."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return orjson.dumps(seconds).decode()
    if seconds and float(seconds).is_integer():
        for unit in ("d", "h", "min"):
            if seconds % _SIZES[unit] == 0:
                return f"{int(seconds // _SIZES[unit])} {unit}"
    return f"{number_text(seconds)} s"


def seconds_in(text: str) -> float | None:
    """Seconds where no unit is named; None where it cannot be read."""
    found = _TYPED.match(text)
    if found is None:
        return None
    number, size = float(found[1]), _SIZES[found[2] or "s"]
    seconds = number / 1000 if found[2] == "ms" else number * size
    return int(seconds) if seconds.is_integer() else seconds


def number_text(value: Any) -> str:
    """A number as it is written in JSON, whole ones without a fraction."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return orjson.dumps(value).decode()


def number_in(text: str) -> Any:
    """A number as JSON has it; anything else stays as it was typed."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return text if isinstance(value, bool) or not isinstance(value, int | float) else value
