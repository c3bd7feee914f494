"""enqueue, claim and start in one commit: for jobs that come in when their slot is free already.

They are what a job is that was enqueued, claimed and started by one statement after the other: the same row, events,
lease and numbers. Whether one may pass the queue by is decided in here, by what the claim would have seen: where
something waits that goes before it, or its queue is paused, it is enqueued and no more.
"""

import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

import asyncpg

from app.jobs.retry import DEFAULT_MAX_ATTEMPTS
from app.jobs.states import Verb
from app.jobs.submission import NewJob
from app.store.changes import Changes, Place
from app.store.claims import Claimant, claim_changes
from app.store.database import Database
from app.store.effects import announced
from app.store.enqueue import STORED, Enqueued, Rows, accept, unnested
from app.store.history import line
from app.store.idempotency import Receipt, Submission
from app.store.job import ClaimedJob
from app.store.live import enter_queue, enter_run
from app.store.low_water import LowWater
from app.store.rows import arrays
from app.store.tables.live import IN_LANES
from app.telemetry import SETTLEMENTS


@dataclass(frozen=True, slots=True)
class Arrival:
    """A submission of one job, and the target that has a slot for it."""

    submission: Submission
    runs_on: str

    @property
    def job(self) -> NewJob:
        return self.submission.jobs[0]


@dataclass(frozen=True, slots=True)
class Arrived:
    """What came in, answered one by one; and which of these run now."""

    enqueued: Enqueued
    claimed: Changes[ClaimedJob]


def may_arrive(submission: Submission) -> bool:
    """Whether it is a job that somebody waits for, and nothing but slots could hold it back. (A key that makes a second
    try harmless has the usual way: what it was answered first must be looked for.)"""
    if len(submission.jobs) != 1 or submission.idempotency_key is not None:
        return False
    job = submission.jobs[0]
    return (
        job.interactive
        and job.run_at is None
        and job.delay_seconds is None
        and job.depends_on is None
        and job.parent_id is None
        and job.webhook_url is None
    )


# What is sent beside a job's own inputs.
_BESIDE = (("lease_token", "text"), ("runs_on", "text"))
_CLAIM_DATA = """'{{"attempt":1,"worker":' || to_json(worker) || '}}'"""
# What the claim and the start make of a row, beside what it is enqueued with: see claims.py.
_RUNNING = {
    "state": "'working'",
    "seq": "3",
    "history": line("'2'", "claim", _CLAIM_DATA) + " || " + line("'3'", "start"),
    "attempt": "1",
    "worker": "worker",
    "runs_on": "runs_on",
    "lease_token": "lease_token",
    "lease_seconds": "lease_seconds",
    "lease_expires_at": """statement_timestamp() + least(lease_seconds, max_duration_seconds) * interval '1 second'""",
    "attempt_expires_at": "statement_timestamp() + max_duration_seconds * interval '1 second'",
    "started_at": "statement_timestamp()",
}
_OTHERWISE = {"attempt": "0"} | {name: STORED[name] for name in _RUNNING if name in STORED}
_VALUES = STORED | {
    name: f"CASE WHEN runs THEN {value} ELSE {_OTHERWISE.get(name, 'NULL')} END"
    for name, value in _RUNNING.items()
}

# Lanes are looked at as by a claim, from the same marks on (see claims.py); but only for who stands first in each range.
_ARRIVE = f"""
WITH ahead AS MATERIALIZED (
    SELECT span.queue, span.lane, first.rank
    FROM unnest({{spans}}) AS span (queue, lane, low, high, mark)
    CROSS JOIN LATERAL (
        SELECT q.rank FROM queued q
        WHERE q.queue = span.queue AND q.lane = span.lane AND {IN_LANES}
          AND q.rank BETWEEN span.low AND span.high AND q.ready_at >= span.mark
        ORDER BY q.rank DESC, q.ready_at, q.id
        LIMIT 1
    ) AS first
)
, input AS (
    SELECT *, now() AS due_at, {{worker}}::text AS worker, {{lease_seconds}}::float8 AS lease_seconds,
        NOT EXISTS (SELECT 1 FROM queues WHERE name = input.queue AND paused_at IS NOT NULL)
        AND NOT EXISTS (
            SELECT 1 FROM ahead
            WHERE ahead.queue = input.queue AND ahead.lane = input.lane
              AND ahead.rank >= input.priority * 2 + input.interactive::int
        )
        AND coalesce({STORED["deadline"]} > statement_timestamp(), true) AS runs
    FROM ({{input}}) AS input
)
, moved AS (
    INSERT INTO jobs ({", ".join(_VALUES)})
    SELECT {", ".join(_VALUES.values())} FROM input
    RETURNING id, seq, state, queue, lane, rank, ready_at, run_at, gate, concurrency_key, fair_value, deadline, key_number,
        worker, runs_on, entered_at
)
, waiting AS (SELECT * FROM moved WHERE state = 'queued')
, claimed AS (SELECT * FROM moved WHERE state = 'working')
{enter_queue("waiting")}
{enter_run("claimed")}
{announced("moved", "seq")}
SELECT id, state, rank, ready_at, entered_at, deadline FROM moved
"""


@cache
def arrive_statement(used: tuple[int, ...], *, one_place: bool) -> str:
    """The statement for a batch that uses these inputs of jobs: see `enqueue_statement`."""
    after = len(used) + len(_BESIDE)
    kinds = ("text", "text", "smallint", "smallint", "timestamptz")
    return _ARRIVE.format(
        input=unnested(used, one_place=one_place, beside=_BESIDE),
        worker=f"${after + 1}",
        lease_seconds=f"${after + 2}",
        spans=", ".join([f"${after + n}::{kind}[]" for n, kind in enumerate(kinds, 3)]),
    )


async def arrive(
    database: Database, low_water: LowWater, claimant: Claimant, arrivals: Sequence[Arrival]
) -> Arrived:
    """→ queued → loading → working for those that need not wait, and → queued for the others."""
    began = time.monotonic()
    rows, tokens = Rows(), [secrets.token_hex(18) for _ in arrivals]
    for each in arrivals:
        rows.add(each.job, each.submission, {})
    used, one_place, sent = rows.sent()
    places = dict.fromkeys([(each.job.queue, each.job.lane) for each in arrivals])
    spans = [(queue, span) for queue, lane in places for span in low_water.ranges(queue, [lane])]
    async with database.connection() as connection:
        records = await connection.fetch(
            arrive_statement(used, one_place=one_place),
            *sent,
            tokens,
            [each.runs_on for each in arrivals],
            claimant.worker,
            claimant.lease_seconds,
            [queue for queue, _ in spans],
            *arrays([span for _, span in spans], "lane", "low", "high", "mark"),
        )
    found = {record["id"]: record for record in records}
    enqueued: Enqueued = Changes([Receipt([each.job.id]) for each in arrivals])
    accept(enqueued, [each.job for each in arrivals])
    running: list[ClaimedJob] = []
    for each, token in zip(arrivals, tokens, strict=True):
        record = found[each.job.id]
        if record["state"] == "working":
            running.append(_claimed(each, record, token, claimant.lease_seconds))
        else:
            enqueued.work.add((each.job.queue, each.job.lane))
    return Arrived(enqueued, _told(low_water, places, running, time.monotonic() - began))


def _told(
    low_water: LowWater, places: Collection[Place], running: list[ClaimedJob], seconds: float
) -> Changes[ClaimedJob]:
    """What claims would have: to those who listen, and for the next look at these places."""
    changes: Changes[ClaimedJob] = Changes(list(running))
    for queue, lane in places:
        here = [job for job in running if (job.queue, job.lane) == (queue, lane)]
        if here:
            low_water.learn(queue, here, [lane], seconds=seconds)
            changes.add(claim_changes(queue, here, seconds))
    changes.count(SETTLEMENTS, Verb.START.value, "true", by=len(running))
    return changes


def _claimed(arrival: Arrival, record: asyncpg.Record, token: str, lease_seconds: float) -> ClaimedJob:
    """As the claim would return it; what may be large is not sent back and forth."""
    job = arrival.job
    return ClaimedJob(
        id=job.id,
        tenant=job.tenant,
        queue=job.queue,
        lane=job.lane,
        rank=record["rank"],
        kind=job.kind,
        model=job.model,
        target=job.target,
        attempt=1,
        max_attempts=DEFAULT_MAX_ATTEMPTS if job.max_attempts is None else job.max_attempts,
        deferrals=0,
        deadline=record["deadline"],
        traceparent=job.traceparent,
        # Of the claim.
        seq=2,
        payload=job.payload,
        ready_at=record["ready_at"],
        entered_at=record["entered_at"],
        lease_token=token,
        lease_seconds=lease_seconds,
        max_duration_seconds=job.max_duration_seconds,
        backoff_seconds=job.backoff_seconds,
        webhook_url=None,
        dialect=job.dialect or "ollama",
        fair_value=None,
        waited_seconds=0.0,
        started=True,
    )
