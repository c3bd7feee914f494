"""Retry arithmetic as a table."""

import pytest

from app.jobs.retry import (
    DEFAULT_BACKOFF_SECONDS,
    DEFAULT_MAX_ATTEMPTS,
    MAX_DEFER_SECONDS,
    defer_delay,
    jitter,
)

MIDDLE = 0.5  # the dice that jitters nothing


def test_the_defaults_are_those_of_the_specification() -> None:
    assert DEFAULT_MAX_ATTEMPTS == 5
    assert DEFAULT_BACKOFF_SECONDS == (5, 30, 120, 600, 1800)
    assert MAX_DEFER_SECONDS == 300


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
    assert defer_delay(3, dice) == pytest.approx(8 * factor, abs=1e-4)
