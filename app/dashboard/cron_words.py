"""Cron expressions in words, where a few words say all of it. Pure."""

import re

from app.dashboard.words import listed

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_NUMBER = re.compile(r"[0-9]{1,2}\Z")
# More times of day than this are no words any more.
_MAX_TIMES = 4


def in_words(expression: str) -> str | None:
    """None for what would need more than a sentence; then the expression speaks for itself."""
    fields = expression.lower().split()
    if len(fields) not in {5, 6}:
        return None
    second, minute, hour, day, month, weekday = fields if len(fields) == 6 else ["0", *fields]
    when = _days(day, month, weekday)
    if when is None:
        return None
    often = _often(second, minute, hour)
    if often is not None:
        return often if when == "every day" else f"{often}, {when}"
    times = _times(second, minute, hour)
    return None if times is None else f"{when} at {times}"


def _often(second: str, minute: str, hour: str) -> str | None:
    if hour == "*":
        if minute == "*":
            return _every(second, "second", 60) if second != "0" else "every minute"
        if second == "0":
            return _every(minute, "minute", 60) or _past_the_hour(minute)
    elif second == "0" and _NUMBER.match(minute) and hour.startswith("*/"):
        often = _every(hour, "hour", 24)
        return often and (often if int(minute) == 0 else f"{often} at {int(minute)} minutes past")
    return None


def _every(field: str, unit: str, of: int) -> str | None:
    """Only steps that fit: */7 begins anew each hour, and is not every seven minutes."""
    if field == "*":
        return f"every {unit}"
    if field.startswith("*/") and _NUMBER.match(field[2:]):
        step = int(field[2:])
        if step and of % step == 0:
            return f"every {unit}" if step == 1 else f"every {step} {unit}s"
    return None


def _past_the_hour(minute: str) -> str | None:
    if not _NUMBER.match(minute):
        return None
    past = int(minute)
    return "every hour, on the hour" if past == 0 else f"every hour at {past} min past"


def _times(second: str, minute: str, hour: str) -> str | None:
    hours = hour.split(",")
    if len(hours) > _MAX_TIMES or not all(map(_NUMBER.match, (second, minute, *hours))):
        return None
    ending = f":{int(second):02}" if int(second) else ""
    return listed([f"{each:02}:{int(minute):02}{ending}" for each in sorted(map(int, hours))])


def _days(day: str, month: str, weekday: str) -> str | None:
    if (day, month, weekday) == ("*", "*", "*"):
        return "every day"
    if day == "*" and month == "*":
        return _weekdays(weekday)
    if weekday == "*" and _NUMBER.match(day):
        if month == "*":
            return f"on day {int(day)} of every month{' that has one' if int(day) > 28 else ''}"
        name = _month(month)
        return name and f"every year on {int(day)} {name}"
    # A day of the month and one of the week: either will do, which is hard to say and easily misread.
    return None


def _weekdays(field: str) -> str | None:
    first, dash, last = field.partition("-")
    if dash:
        ends = _day(first), _day(last)
        return None if None in ends else f"{ends[0]} to {ends[1]}"
    names = dict.fromkeys(_day(each) for each in field.split(","))
    return None if None in names else f"every {listed([str(name) for name in names])}"


def _day(text: str) -> str | None:
    if _NUMBER.match(text):
        return _DAYS[int(text) % 7] if int(text) <= 7 else None
    return next((name for name in _DAYS if name.lower()[:3] == text), None)


def _month(text: str) -> str | None:
    if _NUMBER.match(text):
        return _MONTHS[int(text) - 1] if 1 <= int(text) <= 12 else None
    return next((name for name in _MONTHS if name.lower()[:3] == text), None)
