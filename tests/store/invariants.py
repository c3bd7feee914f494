"""What must be true of every job at every moment, whatever happened to it; read from the tables alone.

Each job's events are replayed over the transition table, and the row must be where the replay ends.
"""

from collections.abc import Iterable
from typing import Any

import asyncpg
import orjson

from app.jobs.states import EXTRA_EVENT_TYPES, RUNNING, TERMINAL, TRANSITIONS, State, Verb
from app.store.database import Database
from app.store.history import ALL_EVENTS
from app.store.outbox import ALL_DELIVERIES
from tests import live_tables

SHARED_NUMBERS = (
    "SELECT key_number FROM jobs WHERE key_number IS NOT NULL GROUP BY key_number HAVING count(*) > 1"
)


async def check_all(database: Database, job_ids: Iterable[str] | None = None, *, pruned: bool = False) -> int:
    """Check all jobs, or these; returns how many there were. `pruned`: retention was at work, which leaves to the days of
    a job what lies there."""
    wanted = None if job_ids is None else list(job_ids)
    chosen = "($1::text[] IS NULL OR {} = ANY ($1::text[]))"
    # One snapshot: a job that moves between two looks would seem to contradict itself.
    async with database.connection() as connection, connection.transaction(isolation="repeatable_read"):
        jobs = await connection.fetch(f"SELECT * FROM jobs WHERE {chosen.format('id')}", wanted)
        events = await connection.fetch(
            f"SELECT job_id, seq, type, state, reason FROM {ALL_EVENTS} AS events WHERE {chosen.format('job_id')} "
            # What a run says lies in a table of its own, and in the same row of numbers.
            f"UNION ALL SELECT job_id, seq, type, state, reason FROM chatter WHERE {chosen.format('job_id')} "
            "ORDER BY job_id, seq",
            wanted,
        )
        due = await connection.fetch(
            f"SELECT job_id, seq, type FROM {ALL_DELIVERIES} AS deliveries WHERE {chosen.format('job_id')}",
            wanted,
        )
        for table in (
            "outbox",
            "events_rest",
            "deliveries_rest",
            *(() if pruned else ("events", "deliveries")),
        ):
            stray = await connection.fetch(
                f"SELECT * FROM {table} AS stray WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE id = stray.job_id)"
            )
            assert stray == [], f"of no job, in {table}: {[dict(row) for row in stray]}"
        await live_tables.check(connection)
        assert await connection.fetch(SHARED_NUMBERS) == [], "a number that was drawn twice"
    by_job: dict[str, list[asyncpg.Record]] = {job["id"]: [] for job in jobs}
    for event in events:
        assert event["job_id"] in by_job, f"an event of no job: {dict(event)}"
        by_job[event["job_id"]].append(event)
    for job in jobs:
        check(job, by_job[job["id"]])
        check_outbox(job, by_job[job["id"]], [each for each in due if each["job_id"] == job["id"]])
    return len(jobs)


def check(job: asyncpg.Record, events: list[asyncpg.Record]) -> None:
    story = [(event["seq"], event["type"], event["reason"]) for event in events]
    assert [event["seq"] for event in events] == list(range(1, job["seq"] + 1)), ("seq is not gapless", story)
    replayed = Replay()
    for event in events:
        replayed.step(event, story)
    assert job["state"] == replayed.state, ("the row is not where its events end", job["state"], story)
    assert job["attempt"] == replayed.attempt, ("attempt", job["attempt"], story)
    assert job["deferrals"] == replayed.deferrals, ("deferrals", job["deferrals"], story)
    assert job["created_at"] is not None
    assert (job["started_at"] is not None) == replayed.claimed, ("started_at", story)
    assert (job["completed_at"] is not None) == (job["state"] in TERMINAL), ("completed_at", story)
    running = job["state"] in RUNNING
    assert (job["lease_token"] is not None) == running, ("lease_token", job["state"])
    assert (job["lease_expires_at"] is not None) == running, ("lease_expires_at", job["state"])
    assert 0 <= job["attempt"] <= job["max_attempts"]
    assert job["key_number"] is None or job["concurrency_key"] is not None, "a number without a key"
    if job["state"] == State.FAILED:
        assert job["error"] is not None
        assert set(orjson.loads(job["error"])) == {"code", "message", "retryable"}
    if job["state"] == State.DONE:
        assert job["error"] is None
        assert job["result"] is not None
    else:
        assert job["result"] is None, ("a result before the end", story)


class Replay:
    """Walks the transition table along a job's events."""

    def __init__(self) -> None:
        self.state: State | None = None
        self.attempt = 0
        self.deferrals = 0
        self.claimed = False

    def step(self, event: asyncpg.Record, story: Any) -> None:
        if event["type"] not in set(State):
            assert event["type"] in EXTRA_EVENT_TYPES, ("an unknown event", story)
            assert event["state"] == self.state, ("an event that is no transition changed the state", story)
            return
        verb = Verb(event["reason"])
        transition = TRANSITIONS[verb]
        assert self.state in transition.sources, (
            "a transition that the table does not have",
            self.state,
            verb,
            story,
        )
        if verb is Verb.COMPLETE:
            assert self.state is State.WORKING, ("complete passes through working", story)
        assert event["type"] == event["state"] == transition.target, (
            "not the verb's target",
            event["type"],
            verb,
        )
        self.state = transition.target
        self.attempt += {Verb.CLAIM: 1, Verb.DEFER: -1, Verb.RELEASE: -1}.get(verb, 0)
        self.deferrals += verb is Verb.DEFER
        if verb is Verb.REVIVE:
            self.attempt = self.deferrals = 0
        self.claimed |= verb is Verb.CLAIM


def check_outbox(job: asyncpg.Record, events: list[asyncpg.Record], due: list[asyncpg.Record]) -> None:
    """A delivery for each wanted event, and none else."""
    wanted = set()
    if job["webhook_url"] is not None:
        chosen = job["webhook_events"]
        for event in events:
            if event["type"] in chosen if chosen is not None else event["type"] in set(State):
                wanted.add((event["seq"], event["type"]))
    assert {(each["seq"], each["type"]) for each in due} == wanted
