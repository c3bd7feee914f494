"""Cron in words: all of it, or none of it."""

import pytest

from app.dashboard.cron_words import in_words


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/1 * * * *", "every minute"),
        ("0 * * * *", "every hour, on the hour"),
        ("7 * * * *", "every hour at 7 min past"),
        ("0 */6 * * *", "every 6 hours"),
        ("30 */6 * * *", "every 6 hours at 30 minutes past"),
        ("0 3 * * *", "every day at 03:00"),
        ("0 17,9 * * *", "every day at 09:00 and 17:00"),
        ("15 3 * * 1-5", "Monday to Friday at 03:15"),
        ("15 3 * * sun", "every Sunday at 03:15"),
        ("15 3 * * 0,7", "every Sunday at 03:15"),
        ("0 3 1 * *", "on day 1 of every month at 03:00"),
        ("0 3 31 * *", "on day 31 of every month that has one at 03:00"),
        ("0 3 24 dec *", "every year on 24 December at 03:00"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("* * * * * *", "every second"),
        ("0 */5 * * * *", "every 5 minutes"),
        ("30 0 3 * * *", "every day at 03:00:30"),
        ("*/5 * * * 1-5", "every 5 minutes, Monday to Friday"),
    ],
)
def test_common_expressions_are_said_in_words(expression: str, words: str) -> None:
    assert in_words(expression) == words


@pytest.mark.parametrize(
    "expression",
    [
        # It begins anew with each hour or day.
        "*/7 * * * *",
        "0 */5 * * *",
        "*/45 * * * * *",
        # Either of the two days will do.
        "0 3 1 * 1",
        "0 3 1-7 * *",
        "0 3 * 6 *",
        "1-5 * * * *",
        "0 3-5 * * *",
        "0 1,2,3,4,5 * * *",
        "15 3 * * 1#2",
        "15 3 L * *",
        "0 3 1 13 *",
        "*/0 * * * *",
        "5 * * * * *",
        "nonsense",
        "",
        "* * * * * * *",
        "<script> 3 * * *",
    ],
)
def test_what_words_would_tell_wrongly_is_left_as_it_is(expression: str) -> None:
    assert in_words(expression) is None
