"""From the events of a job to its bars: pure."""

from datetime import UTC, datetime, timedelta

import orjson
import pytest

from app.dashboard.timeline import GAP, MAX_RUNS, Timeline, Usage, outcome, timeline
from app.store.events import Event

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


class Log:
    """Events, one after the other."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(
        self, seconds: float, type_: str, verb: str | None, state: str | None = None, **data: object
    ) -> "Log":
        told = orjson.dumps(data).decode() if data else None
        self.events.append(Event(len(self.events) + 1, type_, state or type_, verb, told, at(seconds)))
        return self

    def drawn(self, now: float, **more: object) -> Timeline:
        return timeline(self.events, at(now), **more)  # type: ignore[arg-type]


def enqueued() -> Log:
    return Log().add(0, "queued", "enqueue")


def parts(drawn: Timeline, run: int = 0) -> list[tuple[str, float, float]]:
    return [(part.kind, part.x, part.width) for part in drawn.runs[run].parts]


def test_a_run_is_one_bar_of_waiting_loading_and_working_to_scale() -> None:
    log = enqueued().add(2, "loading", "claim", attempt=1, worker="w").add(4, "working", "start")
    drawn = log.add(10, "done", "complete").drawn(99)
    assert parts(drawn) == [("queued", 0, 20), ("loading", 20, 20), ("working", 40, 60)]
    [run] = drawn.runs
    assert (run.attempt, run.worker, run.state, outcome(run)) == (1, "w", "done", "done")
    assert "03:04:09.000 to 03:04:15.000 UTC" in run.parts[2].words
    assert drawn.earlier == ""


def test_what_goes_on_reaches_to_now_and_says_since_when() -> None:
    drawn = enqueued().add(5, "loading", "claim", attempt=1).drawn(10)
    assert parts(drawn) == [("queued", 0, 50), ("loading", 50, 50)]
    assert drawn.runs[0].parts[1].words == "loading 5.0 s, since 03:04:10.000 UTC"
    assert outcome(drawn.runs[0]) == ""


def test_each_attempt_has_its_bar_and_the_back_off_before_it_is_a_gap() -> None:
    log = enqueued().add(0, "loading", "claim", attempt=1).add(0, "working", "start")
    log.add(2, "queued", "retry", run_at=at(6).isoformat(), error={"code": "x", "message": "boom"})
    log.add(8, "loading", "claim", attempt=2).add(8, "working", "start").add(10, "done", "complete")
    drawn = log.drawn(10)
    assert [run.attempt for run in drawn.runs] == [1, 2]
    assert [(kind, x) for kind, x, width in parts(drawn, 1) if width] == [
        (GAP, 20),
        ("queued", 60),
        ("working", 80),
    ]
    assert (drawn.runs[0].error, outcome(drawn.runs[0])) == ("boom", "to be tried again")


def test_one_that_waits_for_its_time_is_held_back_until_then() -> None:
    assert parts(enqueued().drawn(10, run_at=at(100))) == [(GAP, 0, 100)]
    assert parts(enqueued().drawn(10, run_at=at(5))) == [(GAP, 0, 50), ("queued", 50, 50)]


def test_a_job_that_was_never_claimed_has_a_bar_all_the_same() -> None:
    drawn = enqueued().add(4, "cancelled", "cancel", reason="no more").drawn(9)
    [run] = drawn.runs
    assert (run.attempt, run.state, outcome(run), run.error) == (None, "cancelled", "cancelled", "no more")


def test_of_many_runs_the_last_are_drawn_and_the_others_told_in_words() -> None:
    log = enqueued()
    for attempt in range(1, 501):
        log.add(attempt, "loading", "claim", attempt=attempt).add(attempt, "queued", "retry")
    drawn = log.drawn(501)
    assert len(drawn.runs) == MAX_RUNS
    assert "not drawn" in drawn.earlier
    cut = timeline(log.events[-40:], at(501), most=5)
    assert len(cut.runs) == 5
    assert cut.earlier == f"{cut.runs[0].attempt - 1} earlier attempts are not drawn."  # type: ignore[operator]


def test_after_a_revival_the_drawing_begins_anew() -> None:
    log = enqueued().add(1, "loading", "claim", attempt=5).add(2, "failed", "fail")
    log.add(200_000, "queued", "revive").add(200_001, "loading", "claim", attempt=1)
    drawn = log.drawn(200_002)
    assert parts(drawn) == [("queued", 0, 50), ("loading", 50, 50)]
    assert drawn.earlier == "What came before it was revived is not drawn."


def test_what_is_posted_hangs_on_the_bar_of_its_time_and_so_does_what_comes_after_the_end() -> None:
    log = enqueued().add(1, "approved", None, "queued", by="me").add(2, "loading", "claim", attempt=1)
    log.add(4, "failed", "fail").add(4, "dismissed", "dismiss")
    [run] = log.drawn(4).runs
    assert [(mark.kind, mark.x) for mark in run.marks] == [("approved", 25), ("dismissed", 100)]
    assert run.state == "failed"


def test_prefill_and_decode_lie_at_the_end_of_the_work_and_never_outside_it() -> None:
    log = (
        enqueued()
        .add(0, "loading", "claim", attempt=1)
        .add(0, "working", "start")
        .add(10, "done", "complete")
    )
    inside = [each for each in parts(log.drawn(10, usage=Usage(2, 5))) if each[0] in {"decode", "prefill"}]
    assert inside == [("decode", 50, 50), ("prefill", 30, 20)]
    too_much = parts(log.drawn(10, usage=Usage(1e9, 1e9)))
    assert all(x >= 0 and x + width <= 100 for _, x, width in too_much)


def test_a_sliver_can_still_be_pointed_at_and_stays_inside() -> None:
    log = enqueued().add(9_999.99, "loading", "claim", attempt=1).add(10_000, "done", "complete")
    for _, x, width in parts(log.drawn(10_000)):
        assert width >= 0.5
        assert x + width <= 100


@pytest.mark.parametrize("seconds", [0.01, 1, 59, 3600, 86_400 * 30, 86_400 * 4000])
def test_the_axis_has_a_few_round_times_however_long_it_is(seconds: float) -> None:
    ticks = enqueued().drawn(seconds).ticks
    assert 2 <= len(ticks) <= 6 or seconds < 0.1
    assert all(0 <= tick.x <= 100 for tick in ticks)


@pytest.mark.parametrize(
    "data",
    ["", "null", "[1]", '"x"', '{"attempt":"no","worker":7}', '{"run_at":"infinity"}', '{"run_at":5}', "{"],
)
def test_odd_data_is_borne(data: str) -> None:
    events = [
        Event(1, "queued", "queued", "enqueue", None, at(0)),
        Event(2, "loading", "loading", "claim", data or None, at(1)),
        Event(3, "queued", "queued", "retry", data or None, at(2)),
    ]
    assert len(timeline(events, at(3)).runs) == 2


def test_clocks_that_differ_and_no_events_at_all_are_borne() -> None:
    assert timeline([], at(0)).runs == []
    drawn = enqueued().add(-5, "loading", "claim", attempt=1).drawn(-9)
    assert all(part.width >= 0 for run in drawn.runs for part in run.parts)
