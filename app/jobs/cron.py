"""Cron expressions and their ticks. Pure: the moment comes in as an argument.

Five fields, or six with leading seconds. In time zones with daylight saving the rules are Debian's: a tick in
the hour that is skipped comes right after it, one in the hour that comes twice comes once.
"""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from app.errors import InvalidRequest

MAX_LENGTH = 200
FIELDS = ("minute", "hour", "day of month", "month", "day of week")
SECONDS_FIELD = "second"
# A moment that lies well before every tick that is asked for here.
_ANY_DAY = datetime(2024, 1, 1, tzinfo=UTC)


def check_cron(expression: str) -> None:
    """Raises InvalidRequest that says which field is wrong, and where it stands."""
    fields = list(re.finditer(r"\S+", expression))
    if len(expression) > MAX_LENGTH:
        raise _bad(f"must have at most {MAX_LENGTH} characters", MAX_LENGTH)
    if len(fields) not in {5, 6}:
        raise _bad(f"must have 5 fields, or 6 with leading seconds, and has {len(fields)}", 0)
    names = FIELDS if len(fields) == 5 else (SECONDS_FIELD, *FIELDS)
    for index, field in enumerate(fields):
        alone = " ".join(field[0] if n == index else "*" for n in range(len(fields)))
        if not _parses(alone):
            raise _bad(
                f"the {names[index]} {field[0]!r} is wrong (field {index + 1}, position {field.start() + 1})",
                field.start(),
                part=names[index],
            )
    if not _parses(expression) or next_tick(expression, "UTC", _ANY_DAY) is None:
        day = fields[-3]
        raise _bad(f"there is no such day (position {day.start() + 1})", day.start())


def check_timezone(name: str) -> None:
    try:
        _zone(name)
    except (KeyError, ValueError, OSError) as problem:
        raise InvalidRequest(
            "timezone: is not a time zone; use a name such as Europe/Berlin.",
            errors=[{"field": "timezone", "message": "is not a known time zone"}],
        ) from problem


def next_tick(expression: str, timezone: str, after: datetime) -> datetime | None:
    """The first tick later than `after`, in UTC; None when there is none for decades."""
    try:
        tick: datetime = next(CronSim(expression, after.astimezone(_zone(timezone))))
    except (StopIteration, OverflowError):
        return None
    return tick.astimezone(UTC)


def due_ticks(
    expression: str, timezone: str, first: datetime, now: datetime, *, patience: timedelta, limit: int = 100
) -> list[datetime]:
    """The ticks to enqueue now, of those from `first` to `now`.

    A short hiccup makes up for each of its ticks. Whoever comes later than that missed them, and missed ticks
    are one: the last.
    """
    ticks = [first]
    while len(ticks) <= limit:
        tick = next_tick(expression, timezone, ticks[-1])
        if tick is None or tick > now:
            break
        ticks.append(tick)
    if now - first <= patience and len(ticks) <= limit:
        return ticks
    return [last_tick(expression, timezone, ticks[-1], now)]


def last_tick(expression: str, timezone: str, at_least: datetime, now: datetime) -> datetime:
    """The latest tick up to `now`."""
    # Backwards it begins before the moment given; a tick at this very moment counts.
    local = (now + timedelta(microseconds=1)).astimezone(_zone(timezone))
    try:
        tick: datetime = next(CronSim(expression, local, reverse=True))
    except (StopIteration, OverflowError):
        return at_least
    return max(at_least, tick.astimezone(UTC))


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _parses(expression: str) -> bool:
    try:
        CronSim(expression, _ANY_DAY)
    except (CronSimError, AssertionError, ValueError):
        return False
    return True


def _bad(message: str, position: int, **more: str) -> InvalidRequest:
    return InvalidRequest(
        f"cron: {message}.",
        position=position,
        errors=[{"field": "cron", "message": message, "position": position, **more}],
    )
