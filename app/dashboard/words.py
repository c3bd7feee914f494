"""How things are said to people: durations, moments, numbers, ids, states."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime

from app.jobs.explanation import lasting
from app.jobs.states import State

# One shape for each state, wherever it is shown: never colour alone.
GLYPHS: dict[str, str] = {
    State.QUEUED: "○",
    State.LOADING: "◔",
    State.WORKING: "◑",
    State.DONE: "✓",
    State.FAILED: "✕",
    State.CANCELLED: "⊘",
    State.EXPIRED: "◷",
    State.SKIPPED: "↷",
    State.STALE: "◍",
    State.DISMISSED: "·",
}

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_ID_HEAD, _ID_TAIL = 5, 5


def duration(seconds: float | None) -> str:
    """In the units a person would say; a dash where nobody knows."""
    return "–" if seconds is None or not math.isfinite(seconds) else lasting(seconds)


def ago(moment: datetime, now: datetime) -> str:
    """How far away a moment is, in one unit."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    whole = abs(seconds)
    for size, unit in _UNITS:
        if whole >= size:
            said = f"{int(whole // size)} {unit}"
            return f"{said} ago" if seconds > 0 else f"in {said}"
    return "now"


def exact(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def number(value: float | None) -> str:
    """With thin spaces between thousands; large ones rounded to what fits."""
    if value is None:
        return "–"
    if not float(value).is_integer():
        return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{int(value):,}".replace(",", "\u202f")


def size(count: float | None) -> str:
    """Of so many bytes."""
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def short_id(job_id: str) -> str:
    """Shortened in the middle: the beginning is the moment, the end tells ids of one moment apart."""
    if len(job_id) <= _ID_HEAD + _ID_TAIL + 1:
        return job_id
    return f"{job_id[:_ID_HEAD]}…{job_id[-_ID_TAIL:]}"


def counted(count: int, one: str, many: str | None = None) -> str:
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def listed(words: Iterable[str]) -> str:
    """a, b and c"""
    given = list(words)
    return " and ".join(given) if len(given) < 3 else f"{', '.join(given[:-1])} and {given[-1]}"
