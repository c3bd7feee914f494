"""The checker finds each thing that must not be, in its column and in no other; and nothing where nothing is wrong."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.chaos.checker import COLUMNS, check
from tests.chaos.evidence import (
    Acknowledged,
    Arrival,
    Claimed,
    Event,
    Evidence,
    Settled,
    Sighting,
    Story,
    Window,
)
from tests.chaos.shape import MAX_RUNNING, RATE, TARGET_SLOTS

NOW = datetime(2026, 6, 1, tzinfo=UTC)
URL = "http://127.0.0.1:1/hook"
DONE = [("queued", "enqueue"), ("loading", "claim"), ("working", "start"), ("done", "complete")]
RESCUED = [*DONE[:3], ("queued", "rescue"), *DONE[1:]]


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def story(job_id: str = "job", told: list[tuple[str, str]] = DONE, **fields: Any) -> Story:
    """A job whose events are a second apart."""
    events = [Event(n, type_, type_, reason, at(n)) for n, (type_, reason) in enumerate(told, 1)]
    state = told[-1][0]
    job: dict[str, Any] = {
        "id": job_id,
        "state": state,
        "attempt": sum(type_ == "loading" for type_, _ in told),
        "deferrals": 0,
        "seq": len(events),
        "kind": "chaos.work",
        "queue": "work",
        "concurrency_key": None,
        "created_at": at(1),
        "started_at": at(2) if len(told) > 1 else None,
        "completed_at": at(len(told)) if state == "done" else None,
        "payload": "{}",
        "metadata": json.dumps({"of": f"mark of {job_id}"}),
        "result": "{}" if state == "done" else None,
        "webhook_url": URL,
        "lease_token": None,
        "lease_expires_at": None,
    } | fields
    return Story(job, events, {event.seq: ("delivered", 1) for event in events})


def evidence_of(*stories: Story, **fields: Any) -> Evidence:
    """All that there is to know when nothing went wrong."""
    found = Evidence(
        acknowledged=[Acknowledged(each.id, f"mark of {each.id}", "work", []) for each in stories],
        stories={each.id: each for each in stories},
        receivers={URL: "ok"},
    )
    for each in stories:
        for event in each.events:
            found.sightings.append(Sighting("stream", each.id, event.seq, event.type, None, event.at))
            found.sightings.append(Sighting("etag", each.id, event.seq, None, event.state, None))
            found.arrivals.append(
                Arrival(event.at.timestamp(), each.id, event.seq, event.type, event.at, True, "ok")
            )
        for run in each.runs():
            token = f"{each.id}-{run.claim.seq}"
            until = run.claim.at + timedelta(seconds=1.5)
            found.claims.append(Claimed(each.id, run.claim.seq, 1, token, until))
            found.renewals[token] = until
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def broken(found: Evidence) -> list[str]:
    return [title for title, problems in check(found).columns.items() if problems]


def test_where_nothing_is_wrong_nothing_is_found() -> None:
    found = evidence_of(story("a"), story("b"))
    found.settlements = [Settled("a", "a-2", "start", True), Settled("a", "a-2", "complete", True)]
    found.settlements += [Settled("b", "an old one", "complete", False)]
    score = check(found)
    assert score.is_clean, score.problems
    assert score.counts["jobs acknowledged"] == 2
    assert score.counts["events"] == 8


def lost() -> Evidence:
    found = evidence_of(story())
    found.acknowledged.append(Acknowledged("another", "its mark", "work", []))
    return found


def doubled() -> Evidence:
    found = evidence_of(story("a"), story("b"))
    found.stories["b"].job["metadata"] = found.stories["a"].job["metadata"]
    return found


def gap() -> Evidence:
    found = evidence_of(story())
    found.stories["job"].events[:] = [
        event._replace(seq=event.seq + (event.seq > 2)) for event in story().events
    ]
    found.stories["job"].job["seq"] = 5
    found.stories["job"].deliveries = dict.fromkeys(range(1, 6), ("delivered", 1))
    found.sightings.clear()
    found.arrivals = [
        Arrival(event.at.timestamp(), "job", event.seq, event.type, event.at, True, "ok")
        for event in found.stories["job"].events
    ]
    return found


def backwards() -> Evidence:
    return evidence_of(story(told=[*DONE[:2], ("queued", "enqueue"), *DONE[1:]]))


def seen_otherwise() -> Evidence:
    found = evidence_of(story())
    found.sightings.append(Sighting("page", "job", 2, "cancelled", None, at(2)))
    return found


def seen_at_another_moment() -> Evidence:
    """The same word, and another event: the first was taken back by a crash."""
    found = evidence_of(story())
    found.sightings.append(Sighting("stream", "job", 2, "loading", None, at(1.5)))
    return found


def state_seen_otherwise() -> Evidence:
    found = evidence_of(story())
    found.sightings.append(Sighting("etag", "job", 3, None, "cancelled", None))
    return found


def told_otherwise() -> Evidence:
    found = evidence_of(story())
    found.arrivals.append(Arrival(at(9).timestamp(), "job", 4, "failed", at(4), True, "ok"))
    return found


def told_to_two() -> Evidence:
    found = evidence_of(story())
    found.claims.append(Claimed("job", 2, 1, "a second token", at(3)))
    return found


def rescued_while_it_held() -> Evidence:
    found = evidence_of(
        story(told=RESCUED), windows=[Window("something", at(0).timestamp(), at(9).timestamp())]
    )
    found.renewals["job-2"] = at(30)
    return found


def late_and_accepted() -> Evidence:
    found = evidence_of(
        story(told=RESCUED), windows=[Window("something", at(0).timestamp(), at(9).timestamp())]
    )
    found.settlements = [Settled("job", "job-2", "complete", True)]
    return found


def result_of_another() -> Evidence:
    found = evidence_of(
        story(told=RESCUED), windows=[Window("something", at(0).timestamp(), at(9).timestamp())]
    )
    found.stories["job"].job["result"] = json.dumps({"token": "job-2"})
    return found


def rescued_for_nothing() -> Evidence:
    return evidence_of(story(told=RESCUED))


def called_twice() -> Evidence:
    found = evidence_of(story())
    found.calls["job"] = 2
    return found


def too_many_at_once() -> Evidence:
    return evidence_of(*(story(f"{n}", queue="limited") for n in range(MAX_RUNNING + 1)))


def two_of_one_key() -> Evidence:
    return evidence_of(*(story(f"{n}", queue="keyed", concurrency_key="7") for n in range(2)))


def too_fast() -> Evidence:
    return evidence_of(*(story(f"{n}", queue="rated") for n in range(RATE["limit"] * 2 + 2)))


def too_many_on_the_target() -> Evidence:
    return evidence_of(story(), target_peak=TARGET_SLOTS + 1)


def before_what_it_needs() -> Evidence:
    found = evidence_of(story("a"), story("b"))
    found.acknowledged[0] = found.acknowledged[0]._replace(after=["b"])
    return found


def more_than_ticks() -> Evidence:
    """There were three ticks in the last five seconds."""
    return evidence_of(*(story(f"{n}", queue="ticks") for n in range(4)))


def not_delivered() -> Evidence:
    found = evidence_of(story())
    found.stories["job"].deliveries[4] = "pending", 3
    found.arrivals.pop()
    return found


def never_written() -> Evidence:
    found = evidence_of(story())
    del found.stories["job"].deliveries[4]
    found.arrivals.pop()
    return found


def said_to_be_delivered() -> Evidence:
    found = evidence_of(story())
    found.arrivals.pop()
    return found


def out_of_order() -> Evidence:
    found = evidence_of(story())
    found.arrivals[1], found.arrivals[2] = found.arrivals[2], found.arrivals[1]
    return found


def overtaken_while_it_failed() -> Evidence:
    """The next one came although the one before was not taken yet."""
    found = evidence_of(story())
    [*first, last] = found.arrivals
    found.arrivals = [*first[:2], first[2]._replace(accepted=False), last, first[2]]
    return found


def still_waiting() -> Evidence:
    return evidence_of(story(told=DONE[:1]))


def wrong_answer() -> Evidence:
    return evidence_of(story(), wrong=["a 500"])


def crashed() -> Evidence:
    return evidence_of(story(), crashes=["api-1: Traceback"])


SEQ_TWICE = "a seq that meant two things"


@pytest.mark.parametrize(
    ("wrong", "title"),
    [
        (lost, "acknowledged jobs lost"),
        (doubled, "one key, two jobs"),
        (gap, "gaps in seq"),
        (backwards, "illegal transitions"),
        (seen_otherwise, SEQ_TWICE),
        (seen_at_another_moment, SEQ_TWICE),
        (state_seen_otherwise, SEQ_TWICE),
        (told_otherwise, SEQ_TWICE),
        (told_to_two, "two live leases at once"),
        (rescued_while_it_held, "two live leases at once"),
        (late_and_accepted, "late settlements accepted"),
        (result_of_another, "late settlements accepted"),
        (rescued_for_nothing, "run again without a lost lease"),
        (called_twice, "run again without a lost lease"),
        (too_many_at_once, "limits and keys exceeded"),
        (two_of_one_key, "limits and keys exceeded"),
        (too_fast, "limits and keys exceeded"),
        (too_many_on_the_target, "limits and keys exceeded"),
        (before_what_it_needs, "dependencies and ticks broken"),
        (more_than_ticks, "dependencies and ticks broken"),
        (not_delivered, "state events never delivered"),
        (never_written, "state events never delivered"),
        (said_to_be_delivered, "state events never delivered"),
        (out_of_order, "deliveries out of order"),
        (overtaken_while_it_failed, "deliveries out of order"),
        (still_waiting, "stuck jobs"),
        (wrong_answer, "wrong answers"),
        (crashed, "errors that nobody foresaw"),
    ],
)
def test_what_must_not_be_is_found_in_its_column(wrong: Callable[[], Evidence], title: str) -> None:
    assert broken(wrong()) == [title]


def test_every_column_can_be_found_broken() -> None:
    marks = test_what_must_not_be_is_found_in_its_column.pytestmark  # type: ignore[attr-defined]
    assert {title for _, title in marks[0].args[1]} == set(COLUMNS)


def test_a_lease_may_be_lost_for_a_reason() -> None:
    outage = Window("kill -9 of PostgreSQL", at(2).timestamp(), at(3).timestamp())
    assert broken(evidence_of(story(told=RESCUED), windows=[outage])) == []


def test_ticks_that_were_missed_in_a_hiccup_may_be_made_up_for_at_once() -> None:
    assert broken(evidence_of(*(story(f"{n}", queue="ticks") for n in range(2)))) == []


def test_a_repetition_of_a_delivery_may_come_late() -> None:
    found = evidence_of(story())
    found.arrivals.append(found.arrivals[0]._replace(at=at(9).timestamp()))
    assert broken(found) == []


def test_what_was_given_up_on_after_all_its_tries_need_not_arrive() -> None:
    found = evidence_of(story())
    found.stories["job"].deliveries[3] = "given_up", 8
    del found.arrivals[2]
    assert broken(found) == []
