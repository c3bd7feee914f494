"""What people read: durations, moments, numbers, ids."""

from datetime import UTC, datetime, timedelta

import pytest

from app.dashboard import words
from app.jobs.states import State

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "–"),
        (float("inf"), "–"),
        (-5, "0 ms"),
        (0, "0 ms"),
        (0.0004, "< 1 ms"),
        (0.0124, "12 ms"),
        (1.25, "1.2 s"),
        (42.4, "42 s"),
        (59.9, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (5400, "1 h 30 min"),
        (90_000, "1 d 1 h"),
        (86_400 * 400, "400 d"),
    ],
)
def test_durations_are_in_the_units_a_person_would_say(seconds: float | None, said: str) -> None:
    assert words.duration(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "now"), (5, "5 s ago"), (-90, "in 1 min"), (7300, "2 h ago"), (-1e6, "in 11 d")]
)
def test_moments_are_relative(seconds: float, said: str) -> None:
    assert words.ago(NOW - timedelta(seconds=seconds), NOW) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"),
        (0, "0"),
        (1204, "1\u202f204"),
        (1_000_000, "1\u202f000\u202f000"),
        (0.25, "0.25"),
        (12.34, "12.3"),
    ],
)
def test_numbers_can_be_read(value: float | None, said: str) -> None:
    assert words.number(value) == said


def test_ids_are_shortened_in_the_middle() -> None:
    assert words.short_id("01ARZ3NDEKTSV4RRFFQ69G5FAV") == "01ARZ…G5FAV"
    assert words.short_id("short") == "short"


def test_every_state_has_a_shape_of_its_own() -> None:
    assert set(words.GLYPHS) == set(State)
    assert len(set(words.GLYPHS.values())) == len(State)
