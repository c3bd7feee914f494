"""When deliveries are tried again."""

import pytest

from app.webhooks.deliverer import LADDER_SECONDS, next_delay


def test_the_ladder_is_the_one_that_is_documented() -> None:
    assert LADDER_SECONDS == (5, 30, 120, 600, 1800, 7200, 28800)


@pytest.mark.parametrize(("tries", "seconds"), list(enumerate((5, 30, 120, 600, 1800, 7200, 28800), start=1)))
def test_each_failure_waits_its_rung_give_or_take_a_fifth(tries: int, seconds: float) -> None:
    assert next_delay(tries, 0.5) == pytest.approx(seconds)
    assert next_delay(tries, 0.0) == pytest.approx(seconds * 0.8)
    assert next_delay(tries, 0.999999) == pytest.approx(seconds * 1.2, rel=1e-3)


def test_the_eighth_failure_is_the_last() -> None:
    assert next_delay(8, 0.5) is None
    assert next_delay(8, 0.5, retry_after=1) is None


def test_retry_after_asks_for_more_patience_but_never_for_less() -> None:
    assert next_delay(1, 0.5, retry_after=90) == 90
    assert next_delay(3, 0.5, retry_after=1) == pytest.approx(120)


def test_retry_after_cannot_push_a_delivery_beyond_a_day() -> None:
    assert next_delay(1, 0.5, retry_after=1e9) == 86_400
