"""Ticks are a set of moments: which one comes next never depends on where it was asked from, whatever the clock does."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.jobs.cron import due_ticks, last_tick, next_tick

# Around these the clocks of these zones are changed: set back, then forward.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    # By half an hour.
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    # Over midnight.
    ("America/Havana", datetime(2026, 11, 1, 5, tzinfo=UTC)),
    ("America/Santiago", datetime(2026, 9, 6, 4, tzinfo=UTC)),
    # Set back in the hours of the month of fasting only.
    ("Africa/Casablanca", datetime(2026, 2, 15, 2, tzinfo=UTC)),
    # Not changed at all.
    ("UTC", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(2026, 10, 25, 1, tzinfo=UTC)),
]
EXPRESSIONS = [
    "30 2 * * *",
    "50 1 * * *",
    "0,30 0-3 * * *",
    "5 1-3 * * *",
    "0 0 * * *",
    "*/10 * * * *",
    "*/20 2 * * *",
    "15,45 * * * *",
    "0 */2 * * *",
    "0 30 2 * * *",
    "*/30 */10 1,2 * * *",
    "*/7 */13 * * * *",
    "0 3 25 10 *",
    "40 * 25 10 *",
    "*/20 2 25 10 *",
]
HOURS = timedelta(hours=6)
somewhere = st.integers(min_value=-int(HOURS.total_seconds()), max_value=int(HOURS.total_seconds()))


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(CHANGES), st.sampled_from(EXPRESSIONS), somewhere, somewhere, st.booleans())
def test_the_next_tick_lies_ahead_and_is_the_same_for_all_who_ask_before_it(
    change: tuple[str, datetime], expression: str, one: int, other: int, fraction: bool
) -> None:
    zone, around = change
    early, late = (around + timedelta(seconds=each) for each in sorted((one, other)))
    if fraction:
        late += timedelta(microseconds=1)
    first = next_tick(expression, zone, early)
    second = next_tick(expression, zone, late)
    assert first is not None
    assert second is not None
    assert first > early
    assert second > late
    # In order; and who asks before a tick is told of it.
    assert first <= second
    assert first == second or first <= late


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(CHANGES), st.sampled_from(EXPRESSIONS), somewhere)
def test_the_last_tick_is_the_one_whose_next_lies_ahead(
    change: tuple[str, datetime], expression: str, at: int
) -> None:
    zone, around = change
    now = around + timedelta(seconds=at)
    last = last_tick(expression, zone, now - timedelta(days=800), now)
    following = next_tick(expression, zone, last)
    assert last <= now
    assert following is not None
    assert following > now
    assert due_ticks(expression, zone, last, now, patience=timedelta(days=1000))[-1] == last


def ticks(expression: str, zone: str, after: datetime, until: datetime) -> list[str]:
    found = []
    tick = next_tick(expression, zone, after)
    while tick is not None and tick <= until:
        found.append(tick.strftime("%H:%M"))
        tick = next_tick(expression, zone, tick)
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # At a set time: once, at the first of the two. Otherwise: as often as the clock shows it.
        ("30 2 * * *", ["00:30"]),
        ("*/30 2 * * *", ["00:00", "00:30", "01:00", "01:30"]),
        ("0 30 2 * * *", ["00:30"]),
        ("*/30 30 2 * * *", ["00:30", "00:30"]),
        ("0 30 * * * *", ["23:30", "00:30", "01:30", "02:30"]),
        ("0 * * * *", ["23:00", "00:00", "01:00", "02:00", "03:00"]),
    ],
)
def test_the_hour_that_comes_twice(expression: str, expected: list[str]) -> None:
    night = datetime(2026, 10, 24, 22, 59, tzinfo=UTC)
    assert ticks(expression, "Europe/Berlin", night, night + timedelta(hours=4, minutes=30)) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # At a set time: once, right after. Otherwise: not at all, as the clock does not show it.
        ("30 2 * * *", ["01:00"]),
        ("0 30 2 * * *", ["01:00"]),
        ("*/10 0,30 2 * * *", ["01:00"]),
        ("0 */30 2 * * *", []),
        ("0 30 * * * *", ["00:30", "01:30"]),
    ],
)
def test_the_hour_that_is_skipped(expression: str, expected: list[str]) -> None:
    night = datetime(2026, 3, 28, 23, 59, tzinfo=UTC)
    assert ticks(expression, "Europe/Berlin", night, night + timedelta(hours=2)) == expected


def test_half_an_hour_that_comes_twice() -> None:
    """Two o'clock becomes half past one again."""
    night = datetime(2026, 4, 4, 14, 0, tzinfo=UTC)
    until = night + timedelta(hours=2, minutes=20)
    assert ticks("*/20 2 * * *", "Australia/Lord_Howe", night, until) == ["15:30", "15:50", "16:10"]
    assert ticks("45 * * * *", "Australia/Lord_Howe", night, until) == ["14:45", "15:15", "16:15"]
    assert ticks("45 1 * * *", "Australia/Lord_Howe", night, until) == ["14:45"]
