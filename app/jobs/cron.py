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
    next_one = _next_set_time if _is_at_set_times(expression) else _next_match
    try:
        return next_one(expression, _zone(timezone), after)
    except (StopIteration, OverflowError):
        return None


# Whoever lists schedules asks for the same ones again and again.
@lru_cache(maxsize=4096)
def ticks_from(expression: str, timezone: str, first: datetime, number: int) -> tuple[datetime, ...]:
    """The next so many ticks, of which `first` is the first; fewer when there are no more for decades."""
    ticks = [first]
    while len(ticks) < number:
        tick = next_tick(expression, timezone, ticks[-1])
        if tick is None:
            break
        ticks.append(tick)
    return tuple(ticks)


def _is_at_set_times(expression: str) -> bool:
    """Such a tick comes once for each time on the clock, as Debian's cron has it. All others come as often as
    the clock shows their time."""
    minute, hour = expression.split()[-5:-3]
    return not minute.startswith("*") and not hour.startswith("*")


# No clock is set back by more, and no two changes are closer together.
_LONGEST_CHANGE = timedelta(hours=4)
_A_DAY_AND_A_CHANGE = timedelta(hours=28)
_SECOND = timedelta(seconds=1)


def _next_set_time(expression: str, zone: ZoneInfo, after: datetime) -> datetime:
    """The first time on the clock whose moment is later than `after`."""
    times = CronSim(expression, after.astimezone(zone).replace(tzinfo=None))
    return next(moment for moment in (_moment(time, zone) for time in times) if moment > after)


def _moment(time: datetime, zone: ZoneInfo) -> datetime:
    """When the clock shows this time first; where it skips it, the moment right after."""
    moment = time.replace(tzinfo=zone).astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == time:
        return moment
    return _change(zone, moment - _LONGEST_CHANGE, moment)


def _next_match(expression: str, zone: ZoneInfo, after: datetime) -> datetime:
    """The first moment later than `after` at which the clock of the zone shows a match.

    Between two changes of the clock that is plain arithmetic, so it goes from one to the next. The library
    alone loses its place where a change is not by a whole hour.
    """
    since = after.astimezone(UTC).replace(microsecond=0) + _SECOND
    while True:
        offset = _offset(zone, since)
        local = (since + offset).replace(tzinfo=None)
        match = next(CronSim(expression, local - _SECOND)).replace(tzinfo=UTC) - offset
        horizon = min(match, since + _LONGEST_CHANGE)
        if _offset(zone, horizon) != offset:
            since = _change(zone, since, horizon)
        elif horizon == match:
            return match
        else:
            # Nothing before the day of the match, but the clock may be changed on the way to it.
            since = max(horizon, match - _A_DAY_AND_A_CHANGE)


def _change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """The first second at which the clock is no longer as it was `before`."""
    offset = _offset(zone, before)
    while after - before > _SECOND:
        middle = before + timedelta(seconds=(after - before) // _SECOND // 2)
        if _offset(zone, middle) == offset:
            before = middle
        else:
            after = middle
    return after


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


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

    def is_over_by_now(after: datetime) -> bool:
        tick = next_tick(expression, timezone, after)
        return tick is not None and tick <= now

    # Look back twice as far each time, then halve what is left: by the same ticks that are found forwards.
    back = _SECOND
    while not is_over_by_now(now - back):
        back *= 2
        if now - back < at_least:
            return at_least
    early, late = now - back, now
    while late - early > _SECOND:
        middle = early + (late - early) / 2
        early, late = (middle, late) if is_over_by_now(middle) else (early, middle)
    return max(at_least, next_tick(expression, timezone, early) or at_least)


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
