"""Moments and durations: one way to say them, and one way to read what people type."""

import math
import re
import time
from datetime import UTC, datetime, timedelta

from app.cli.errors import CommandError

_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_BIGGER = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
# Before any job, and as late as the wire can say.
FIRST = datetime(1970, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, tzinfo=UTC)
MOMENTS = "write 1h, 30m or 2d, or a moment such as 2030-01-31 or 2030-01-31T12:00:00Z"


def exact(moment: datetime | str) -> str:
    """In UTC, to the millisecond: of logs, and of tables with --utc."""
    found = _read(moment)
    if found is None:
        return str(moment)
    return found.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ago(moment: datetime | str) -> str:
    """'12 s ago', 'in 5 min': what people want to know of a moment."""
    found = _read(moment)
    if found is None:
        return str(moment)
    seconds = time.time() - found.timestamp()
    if abs(seconds) < 1:
        return "now"
    return f"in {_roughly(-seconds)}" if seconds < 0 else f"{_roughly(seconds)} ago"


def _read(moment: datetime | str) -> datetime | None:
    if isinstance(moment, datetime):
        return moment
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _roughly(seconds: float) -> str:
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds / size)} {unit}"
    return f"{int(seconds / 86_400)} d"


def duration(seconds: float) -> str:
    """'30 ms', '4.2 s', '42 s', '3 min 20 s', '5 h', '2 d 3 h': two units at most."""
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = int(seconds)
    for size, unit, smaller, smaller_unit in _BIGGER:
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    return f"{whole} s"


def seconds(text: str | None, option: str) -> float | None:
    """30, 30s, 5m, 2h, 1d or 1h30m."""
    if text is None:
        return None
    found = _seconds(text)
    if found is None:
        raise CommandError(f"{option}: {text!r} is not a duration; write 30, 30s, 5m, 2h, 1d or 1h30m")
    return found


def _seconds(text: str) -> float | None:
    """None for what is no duration."""
    rest = text.strip().lower()
    if not rest or not rest.isascii():
        return None
    if re.fullmatch(r"\d+(\.\d+)?", rest):
        rest += "s"
    total = 0.0
    while rest:
        found = _DURATION.match(rest)
        if found is None or found[2] not in _UNITS:
            return None
        total += float(found[1]) * _UNITS[found[2]]
        rest = rest[found.end() :]
    return total if total < math.inf else None


def past(text: str | None, option: str) -> datetime | None:
    """A moment to look back to: so long ago (1h), or as it is written."""
    if text is None:
        return None
    back = _seconds(text.strip().removesuffix("ago"))
    if back is None:
        return _written(text, option)
    try:
        return max(datetime.now(UTC) - timedelta(seconds=back), FIRST)
    except OverflowError:
        return FIRST


def ahead(text: str, option: str) -> float | datetime:
    """So many seconds from now (5m, +5m, in 5m), or a moment as it is written."""
    length = _seconds(text.strip().removeprefix("in ").removeprefix("+"))
    return _written(text, option) if length is None else length


def _written(text: str, option: str) -> datetime:
    """Without an offset it is the time on the wall here, as for all that people type."""
    try:
        return min(max(datetime.fromisoformat(text.strip()).astimezone(UTC), FIRST), LAST)
    except (ValueError, OverflowError):
        raise CommandError(f"{option}: {text!r} is not a time; {MOMENTS}") from None


def span(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    """--since and --until, of which the first comes first."""
    begin, end = past(since, "--since"), past(until, "--until")
    if begin is not None and end is not None and begin >= end:
        raise CommandError("--since is not before --until: there is nothing between them")
    return begin, end
