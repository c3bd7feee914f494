"""Low-water marks: every rank in exactly one span, best first, and a mark that is wrong is only slow."""

import itertools
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.store.fair import FIRST, Turns
from app.store.job import ClaimedJob
from app.store.low_water import (
    HIGHEST,
    LONGEST_TRUST_SECONDS,
    LOWEST,
    MARK_SECONDS,
    SLACK,
    THE_BEGINNING,
    LowWater,
    RankRange,
    TimeMark,
)
from tests.rows import made_up

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def claimed(rank: int, at: datetime = NOON, lane: str = "a", fair_value: str | None = None) -> ClaimedJob:
    return made_up(ClaimedJob, lane=lane, rank=rank, ready_at=at, fair_value=fair_value)


def test_nothing_learnt_is_one_band_from_the_beginning() -> None:
    assert LowWater().ranges("q", ["a"]) == [RankRange("a", LOWEST, HIGHEST, THE_BEGINNING)]


def test_a_learnt_rank_starts_a_little_before_the_oldest_that_was_claimed() -> None:
    marks = LowWater()
    marks.ranges("q", ["a"])
    marks.learn("q", [claimed(0, NOON + timedelta(seconds=9)), claimed(0, NOON), claimed(4, NOON)])
    assert marks.ranges("q", ["a"]) == [
        RankRange("a", 5, HIGHEST, THE_BEGINNING),
        RankRange("a", 4, 4, NOON - SLACK),
        RankRange("a", 1, 3, THE_BEGINNING),
        RankRange("a", 0, 0, NOON - SLACK),
        RankRange("a", LOWEST, -1, THE_BEGINNING),
    ]


def test_marks_belong_to_one_queue_and_one_lane() -> None:
    marks = LowWater()
    marks.ranges("q", ["a", "b"])
    marks.learn("q", [claimed(0)])
    assert marks.ranges("other", ["a"]) == [RankRange("a", LOWEST, HIGHEST, THE_BEGINNING)]
    assert RankRange("b", 0, 0, THE_BEGINNING) in marks.ranges("q", ["a", "b"])
    assert RankRange("a", 0, 0, NOON - SLACK) in marks.ranges("q", ["a", "b"])


def test_neighbouring_ranks_leave_no_empty_band_between() -> None:
    marks = LowWater()
    marks.ranges("q", ["a"])
    marks.learn("q", [claimed(1), claimed(0), claimed(-1)])
    assert [(span.low, span.high) for span in marks.ranges("q", ["a"])] == [
        (2, HIGHEST),
        (1, 1),
        (0, 0),
        (-1, -1),
        (LOWEST, -2),
    ]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-200, 201)), max_size=12),
    st.lists(st.sampled_from("abc"), unique=True, min_size=1),
)
def test_every_rank_of_every_lane_is_in_exactly_one_band_and_better_ranks_come_first(
    learnt: list[tuple[str, int]], lanes: list[str]
) -> None:
    marks = LowWater()
    marks.ranges("q", lanes)
    marks.learn("q", [claimed(rank, lane=lane) for lane, rank in learnt])
    found = marks.ranges("q", lanes)
    for lane in lanes:
        own = [(span.low, span.high) for span in found if span.lane == lane]
        assert own[0][1] == HIGHEST
        assert own[-1][0] == LOWEST
        for (low, high), (next_low, next_high) in itertools.pairwise(own):
            assert low <= high
            assert next_high == low - 1
            assert next_low <= next_high
    # All lanes' found of one range stand together: a better rank of any lane goes before a worse one.
    ranges = [(span.low, span.high) for span in found]
    assert ranges == sorted(ranges, reverse=True)


def test_a_mark_is_trusted_for_a_few_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    marks = LowWater()
    marks.ranges("q", ["a"])
    marks.learn("q", [claimed(0)])
    clock += MARK_SECONDS - 0.1
    assert RankRange("a", 0, 0, NOON - SLACK) in marks.ranges("q", ["a"])
    clock += 0.2
    assert RankRange("a", 0, 0, THE_BEGINNING) in marks.ranges("q", ["a"])
    marks.learn("q", [claimed(0)])
    assert RankRange("a", 0, 0, NOON - SLACK) in marks.ranges("q", ["a"])


# A database that hung for a while made the look slow, and also commits late: whatever they brought lies behind the mark.
HUNG_SECONDS = 1000.0


def test_a_mark_is_not_trusted_for_long_because_the_database_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    marks = LowWater()
    marks.ranges("q", ["a"])
    marks.learn("q", [claimed(0)], ["a"], seconds=HUNG_SECONDS)
    clock += LONGEST_TRUST_SECONDS - 0.1
    assert RankRange("a", 0, 0, NOON - SLACK) in marks.ranges("q", ["a"])
    clock += 0.2
    assert RankRange("a", 0, 0, THE_BEGINNING) in marks.ranges("q", ["a"])


def test_nor_is_where_the_values_of_a_fair_queue_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    turns = Turns()
    turns.gaps("q", ["a"])
    turns.found("q", [("a", (0, "u"))])
    turns.learn("q", turns.places("q", ["a"], FIRST), [claimed(0, fair_value="u")])
    clock += HUNG_SECONDS
    turns.took("q", ["a"], HUNG_SECONDS, full=False)
    clock += LONGEST_TRUST_SECONDS + 0.1
    turns.gaps("q", ["a"])
    assert [place.mark for place in turns.places("q", ["a"], FIRST)] == [THE_BEGINNING]


def test_a_mark_in_time_is_believed_after_a_look_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    mark = TimeMark(SLACK, at_least=5.0)
    assert mark.current() is THE_BEGINNING
    mark.learn(mark.current(), NOON, 0.0)
    assert mark.current() == NOON - SLACK
    clock += 4.9
    # Looks that begin at the mark move it, and prolong nothing.
    mark.learn(mark.current(), NOON + SLACK, HUNG_SECONDS)
    assert mark.current() == NOON
    clock += 0.2
    assert mark.current() is THE_BEGINNING
    mark.learn(mark.current(), NOON, HUNG_SECONDS)
    clock += LONGEST_TRUST_SECONDS - 0.1
    assert mark.current() == NOON - SLACK
    clock += 0.2
    assert mark.current() is THE_BEGINNING
