"""Retry arithmetic as a table."""

import pytest

from app.jobs.retry import (
    DEFAULT_BACKOFF_SECONDS,
    DEFAULT_MAX_ATTEMPTS,
    MAX_DEFER_SECONDS,
    backoff,
    defer_delay,
    jitter,
)

MIDDLE = 0.5  # the dice that jitters nothing


def test_the_defaults_are_those_of_the_specification() -> None:
    assert DEFAULT_MAX_ATTEMPTS == 5
    assert DEFAULT_BACKOFF_SECONDS == (5, 30, 120, 600, 1800)
    assert MAX_DEFER_SECONDS == 300


@pytest.mark.parametrize(
    ("attempt", "ladder", "seconds"),
    [
        (1, None, 5),
        (2, None, 30),
        (3, None, 120),
        (4, None, 600),
        (5, None, 1800),
        (6, None, 1800),  # the last rung repeats
        (1000, None, 1800),
        (0, None, 5),  # never below the first rung
        (1, [0.1], 0.1),
        (7, [0.1], 0.1),
        (1, [1, 2, 3], 1),
        (2, [1, 2, 3], 2),
        (3, [1, 2, 3], 3),
        (4, [1, 2, 3], 3),
        (1, [0], 0),
        (2, [], 30),  # an empty ladder is none
    ],
)
def test_backoff_climbs_the_ladder(attempt: int, ladder: list[float] | None, seconds: float) -> None:
    assert backoff(attempt, ladder, MIDDLE) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("deferrals", "seconds"), [(0, 1), (1, 2), (2, 4), (5, 32), (8, 256), (9, 300), (12, 300), (10**9, 300)]
)
def test_deferrals_wait_twice_as_long_each_time_up_to_five_minutes(deferrals: int, seconds: float) -> None:
    assert defer_delay(deferrals, MIDDLE) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("dice", "factor"), [(0.0, 0.8), (0.25, 0.9), (0.5, 1.0), (0.75, 1.1), (0.999999, 1.2)]
)
def test_jitter_spreads_by_a_fifth_either_way(dice: float, factor: float) -> None:
    assert jitter(dice) == pytest.approx(factor, abs=1e-5)
    assert backoff(1, [10], dice) == pytest.approx(10 * factor, abs=1e-4)
    assert defer_delay(3, dice) == pytest.approx(8 * factor, abs=1e-4)
