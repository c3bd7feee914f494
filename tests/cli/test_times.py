"""Moments and durations, said and read."""

from datetime import UTC, datetime, timedelta

import pytest

from app.cli.errors import CommandError
from app.cli.times import FIRST, ago, ahead, duration, exact, past, seconds, span


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (0, "0 ms"),
        (-3, "0 ms"),
        (0.0304, "30 ms"),
        (0.9996, "1 s"),
        (4, "4 s"),
        (4.26, "4.3 s"),
        (42.9, "42 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (18_185, "5 h 3 min"),
        (90_000, "1 d 1 h"),
        (86_400 * 400, "400 d"),
    ],
)
def test_a_duration_is_said_in_two_units_at_most(length: float, said: str) -> None:
    assert duration(length) == said


@pytest.mark.parametrize(
    ("back", "said"),
    [
        (0.0, "now"),
        (42.5, "42 s ago"),
        (205, "3 min ago"),
        (7300, "2 h ago"),
        (300_000, "3 d ago"),
        (-20.5, "in 20 s"),
        (-7300, "in 2 h"),
    ],
)
def test_a_moment_is_said_as_how_long_ago_it_was(
    back: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = datetime(2030, 1, 31, 12, tzinfo=UTC)
    monkeypatch.setattr("app.cli.times.time.time", lambda: moment.timestamp() + back)
    assert ago(moment) == said
    assert ago(moment.isoformat()) == said
    assert ago("2030-01-31T12:00:00") == said


def test_exactly_it_is_in_utc() -> None:
    assert exact("2030-01-31T13:00:00.5+01:00") == "2030-01-31T12:00:00.500Z"
    assert exact("whenever") == ago("whenever") == "whenever"


@pytest.mark.parametrize(
    ("text", "length"),
    [("30", 30), ("30s", 30), ("1.5m", 90), ("2h", 7200), ("1d", 86_400), ("1h30m", 5400), (" 5 min ", 300)],
)
def test_durations_are_read(text: str, length: float) -> None:
    assert seconds(text, "--delay") == length
    assert ahead(f"+{text.strip()}", "--run-at") == length
    assert ahead(f"in {text}", "--run-at") == length


@pytest.mark.parametrize("text", ["", "soon", "5x", "-5m", "30 30", "٣m", "9" * 400, "1e9", "m", "+", "1h-"])
def test_what_is_no_duration_is_said_in_a_sentence(text: str) -> None:
    with pytest.raises(CommandError, match=r"--delay: .* is not a duration; write 30"):
        seconds(text, "--delay")


def test_moments_are_read_back_from_now_or_as_they_are_written() -> None:
    before = datetime.now(UTC)
    back = past("1h", "--since")
    assert back is not None
    assert before - timedelta(hours=1) <= back <= datetime.now(UTC) - timedelta(hours=1)
    assert past("1h ago", "--since") is not None
    assert past("2030-01-31T12:00:00Z", "--since") == datetime(2030, 1, 31, 12, tzinfo=UTC)
    assert past("2030-01-31T12:00:00+02:00", "--since") == datetime(2030, 1, 31, 10, tzinfo=UTC)
    # Without an offset it is the time on the wall.
    assert past("2030-01-31", "--since") == datetime(2030, 1, 31).astimezone(UTC)
    assert past("999999999999d", "--since") == FIRST
    assert past("0001-01-01T00:00:00Z", "--since") == FIRST
    assert past(None, "--since") is None


@pytest.mark.parametrize("text", ["", "soon", "2030-13-01", "2030-01-31T25:00", "10000-01-01", "-1h"])
def test_what_is_no_moment_is_said_in_a_sentence(text: str) -> None:
    with pytest.raises(CommandError, match=r"--since: .* is not a time; write 1h"):
        past(text, "--since")


def test_since_comes_before_until() -> None:
    begin, end = span("2h", "1h")
    assert begin is not None
    assert end is not None
    assert begin < end
    assert span(None, None) == (None, None)
    with pytest.raises(CommandError, match="nothing between"):
        span("1h", "2h")
