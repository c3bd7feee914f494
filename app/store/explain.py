"""What is looked up to explain a job: its row, its queue, and whatever stands in its way.

Each is a look along an index that reads no further than an answer needs, however much waits. Other jobs are found by
their ids first, and then read as their tenant sees them: what is another's is counted and never named.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec

from app.store.database import Database
from app.store.effects import span
from app.store.history import of_row
from app.store.job import JobSummary
from app.store.keys import GATE as KEY
from app.store.read import POSITION_LIMIT
from app.store.rows import as_row, as_rows, columns, looked_up


class ExplainedJob(JobSummary, gc=False):
    """A job with all that can hold it back or end it, and the database's time."""

    gate: str | None
    fair_value: str | None
    on_dependency_failure: str | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    attempt_expires_at: datetime | None
    # `run_at`, where there is a moment to name.
    due_at: datetime | None
    now: datetime


# Moments that may be missing. Infinity, which only odd rows have in them, has no time zone and cannot be compared.
_MOMENTS = (
    "ready_at",
    "started_at",
    "completed_at",
    "deadline",
    "lease_expires_at",
    "cancel_requested_at",
    "attempt_expires_at",
)
_DUE_AT = "CASE WHEN isfinite(j.run_at) THEN j.run_at END"
GET = f"""
SELECT {columns(ExplainedJob, "j", due_at=_DUE_AT, now="statement_timestamp()")}
FROM jobs j WHERE j.id = $1 AND j.tenant = $2
"""


async def get_job(database: Database, job_id: str, tenant: str) -> ExplainedJob | None:
    job = as_row(ExplainedJob, await database.of(tenant).fetchrow(GET, job_id, tenant))
    if job is None:
        return None
    for name in _MOMENTS:
        at = getattr(job, name)
        if at is not None and at.tzinfo is None:
            setattr(job, name, None)
    if job.entered_at.tzinfo is None:
        job.entered_at = job.now
    return job


class StandingQueue(msgspec.Struct, gc=False):
    """A queue as it stands. `settings` is JSON text; `paused_by` is kept with its tenant (see app/jobs/tenants.py)."""

    settings: str
    paused_at: datetime | None
    paused_by: str | None
    # Its token bucket, where it has one.
    tokens: float | None
    refilled_at: datetime | None


QUEUE = f"""
SELECT {columns(StandingQueue)} FROM queues LEFT JOIN queue_limits ON queue_limits.queue = queues.name
WHERE queues.name = $1
"""


async def get_queue(database: Database, name: str) -> StandingQueue | None:
    return as_row(StandingQueue, await database.fetchrow(QUEUE, name))


RUNNING = """
SELECT count(*) FROM (
    SELECT 1 FROM running WHERE queue = $1 AND claimed_at >= '-infinity' ORDER BY claimed_at, id LIMIT $2
) AS runs
"""


async def count_running(database: Database, queue: str, limit: int) -> int:
    """How many jobs of a queue run, counted up to the limit."""
    return int(await database.fetchval(RUNNING, queue, limit))


ON_TARGETS = """
SELECT runs_on, count(*) AS jobs FROM running WHERE runs_on = ANY ($1::text[]) GROUP BY runs_on
"""


async def count_on_targets(database: Database, targets: Collection[str]) -> dict[str, int]:
    """How many jobs run on each of these targets."""
    return {row["runs_on"]: row["jobs"] for row in await database.fetch(ON_TARGETS, list(targets))}


ASLEEP_SINCE = (
    "SELECT name, asleep_since FROM targets WHERE name = ANY ($1::text[]) AND asleep_since IS NOT NULL"
)


async def asleep_since(database: Database, targets: Collection[str]) -> dict[str, datetime]:
    """Since when they have been asleep, as all replicas know it."""
    return {row["name"]: row["asleep_since"] for row in await database.fetch(ASLEEP_SINCE, list(targets))}


# Within its lane, best rank first; see the index of that order.
FAIR_AHEAD = f"""
SELECT count(*) FROM (
    SELECT 1 FROM queued
    WHERE queue = $1 AND lane = $2 AND ready_at IS NOT NULL AND (- rank) = - $3::smallint
      AND fair_value = $4 AND (ready_at, id) < ($5, $6)
    LIMIT {POSITION_LIMIT}
) AS ahead
"""


async def count_fair_ahead(database: Database, job: ExplainedJob) -> int:
    """How many jobs go first of those that take the same turns in a fair queue."""
    return int(
        await database.fetchval(
            FAIR_AHEAD, job.queue, job.lane, job.rank, job.fair_value, job.ready_at, job.id
        )
    )


_OF_KEY = f"queue = $1 AND gate = '{KEY}' AND concurrency_key = $2"
KEY_AHEAD = f"""
SELECT count(*) FROM (
    (SELECT 1 FROM queued WHERE {_OF_KEY} AND rank > $3 LIMIT {POSITION_LIMIT})
    UNION ALL
    (SELECT 1 FROM queued WHERE {_OF_KEY} AND rank = $3 AND id < $4 LIMIT {POSITION_LIMIT})
    LIMIT {POSITION_LIMIT}
) AS ahead
"""


async def count_key_ahead(database: Database, job: ExplainedJob) -> int:
    """How many jobs get a place of its key first."""
    return int(await database.fetchval(KEY_AHEAD, job.queue, job.concurrency_key, job.rank, job.id))


# Those that run, and those that could: both hold a place.
HOLDERS = """
(SELECT id FROM running WHERE queue = $1 AND concurrency_key = $2 ORDER BY key_number LIMIT $3)
UNION ALL
(SELECT id FROM queued WHERE queue = $1 AND concurrency_key = $2 AND ready_at IS NOT NULL ORDER BY key_number LIMIT $3)
LIMIT $3
"""


async def holders_of_key(database: Database, queue: str, key: str, limit: int) -> list[str]:
    return [row["id"] for row in await database.fetch(HOLDERS, queue, key, limit)]


# In the order of its primary key: by the other column alone the index of that one would be walked.
DEPENDENCIES = f"""
SELECT depends_on FROM dependencies WHERE {looked_up("job_id", "$1")} ORDER BY job_id, depends_on LIMIT $2
"""


async def dependencies_of(database: Database, job_id: str, limit: int) -> list[str]:
    """What the job still waits for."""
    return [row["depends_on"] for row in await database.fetch(DEPENDENCIES, job_id, limit)]


class RelatedJob(msgspec.Struct, gc=False):
    """As much of another job as is told of it."""

    id: str
    state: str
    entered_at: datetime
    worker: str | None
    lease_expires_at: datetime | None


RELATED = f"SELECT {columns(RelatedJob)} FROM jobs WHERE id = ANY ($1::text[]) AND tenant = $2 ORDER BY id"


async def related_jobs(database: Database, job_ids: Sequence[str], tenant: str) -> list[RelatedJob]:
    """Those of the jobs that there are, and that are this tenant's."""
    if not job_ids:
        return []
    return as_rows(RelatedJob, await database.of(tenant).fetch(RELATED, list(job_ids), tenant))


class StateEvent(msgspec.Struct, gc=False):
    """A transition: the verb, and what it said (JSON text)."""

    verb: str | None
    data: str | None


# Of its last events no more than so many are looked at: callers may have posted any number of them since.
MAX_EVENTS = 1000
LAST_STATE = f"""
SELECT reason, data FROM (
    SELECT seq, type, state, reason, data FROM events
    WHERE job_id = $1 AND {span("job_id", "$1", "$1")} ORDER BY seq DESC LIMIT {MAX_EVENTS}
) AS latest
WHERE type = state ORDER BY seq DESC LIMIT 1
"""


async def last_state_event(database: Database, job_id: str) -> StateEvent | None:
    """How the job came into its state, unless that was a claim, a start or a completion: of those its row tells."""
    return as_row(StateEvent, await database.fetchrow(LAST_STATE, job_id))


FIRST_EVENT = f"""
SELECT own.reason, own.data FROM jobs j CROSS JOIN LATERAL {of_row("j")} AS own
WHERE j.id = $1 AND own.seq = 1 AND own.data IS NOT NULL LIMIT 1
"""


async def first_event(database: Database, job_id: str) -> StateEvent | None:
    """What was said when it came in: which jobs it depends on."""
    return as_row(StateEvent, await database.fetchrow(FIRST_EVENT, job_id))
