"""Reading jobs: one by id, many by filter, and the small look-ups that waiting needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import asyncpg
import orjson

from app.jobs.ids import id_floor
from app.store.database import Database
from app.store.tables import Job, columns_of

GET = f"""
SELECT {columns_of(Job, "j")}, (
    SELECT json_agg(
        json_build_object('name', name, 'content_type', content_type, 'size', size,
                          'inline', CASE WHEN total <= 1048576 THEN content END)
        ORDER BY name
    )
    FROM (
        SELECT *, sum(octet_length(content)) OVER (ORDER BY name) AS total FROM artifacts WHERE job_id = j.id
    ) AS a
) AS stored_artifacts
FROM jobs j WHERE j.id = $1 AND j.tenant = $2
"""


async def get_job(database: Database, job_id: str, tenant: str) -> asyncpg.Record | None:
    return await database.fetchrow(GET, job_id, tenant)


# Counted no further than an answer needs: "10,000 or more" is all that anybody wants to know.
POSITION_LIMIT = 10_000
POSITION = f"""
SELECT count(*) FROM (
    SELECT 1 FROM jobs
    WHERE queue = $1 AND lane = $2 AND state = 'queued' AND ready_at IS NOT NULL
      AND (rank > $3 OR (rank = $3 AND (ready_at, id) < ($4, $5)))
    LIMIT {POSITION_LIMIT}
) AS ahead
"""


async def queue_position(database: Database, job: asyncpg.Record) -> int | None:
    """How many jobs go first (1 is next); None while it is not claimable at all."""
    if job["state"] != "queued" or job["ready_at"] is None:
        return None
    ahead = await database.fetchval(
        POSITION, job["queue"], job["lane"], job["rank"], job["ready_at"], job["id"]
    )
    return int(ahead) + 1


@dataclass(slots=True)
class Filter:
    """Which jobs; every part is optional."""

    states: Sequence[str] = ()
    queue: str | None = None
    kind: str | None = None
    model: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    before: str | None = None


# Each filter is one condition with its own parameter; a condition that is not asked for is not there,
# so that the planner sees only what matters. Newest first is the primary key backwards.
_CONDITIONS = {
    "states": "state = ANY (${}::text[])",
    "state": "state = ${}",
    "queue": "queue = ${}",
    "kind": "kind = ${}",
    "model": "model = ${}",
    "since": "id >= ${}",
    "until": "id < ${}",
    "metadata": "metadata @> ${}::jsonb",
    "before": "id < ${}",
}

_LISTED = """id, tenant, queue, lane, rank, kind, state, reason, priority, model, target, runs_on, error, progress, usage,
    metadata, attempt, max_attempts, deferrals, created_at, updated_at, run_at, ready_at, entered_at, started_at,
    completed_at, deadline, queued_seconds, loading_seconds, working_seconds, worker, lease_expires_at,
    concurrency_key, parent_id, request_id, traceparent, tracestate, seq"""


def list_statement(wanted: Filter, tenant: str, limit: int) -> tuple[str, list[object]]:
    """The statement and its parameters; values only ever travel as parameters."""
    arguments: list[object] = [tenant, limit]
    matching = " AND ".join(["tenant = $1", *conditions(wanted, arguments)])
    return f"SELECT {_LISTED} FROM jobs WHERE {matching} ORDER BY id DESC LIMIT $2", arguments


def conditions(wanted: Filter, arguments: list[object]) -> list[str]:
    """The conditions of a filter; what they compare with is appended to the arguments."""
    given: dict[str, object] = {
        "queue": wanted.queue,
        "kind": wanted.kind,
        "model": wanted.model,
        "before": wanted.before,
    }
    if len(wanted.states) == 1:
        given["state"] = wanted.states[0]
    elif wanted.states:
        given["states"] = list(wanted.states)
    if wanted.since:
        given["since"] = id_floor(wanted.since)
    if wanted.until:
        given["until"] = id_floor(wanted.until)
    if wanted.metadata:
        given["metadata"] = orjson.dumps(wanted.metadata).decode()
    found = []
    for name, value in given.items():
        if value is not None:
            arguments.append(value)
            found.append(_CONDITIONS[name].format(len(arguments)))
    return found


async def list_jobs(database: Database, wanted: Filter, tenant: str, limit: int) -> list[asyncpg.Record]:
    """Newest first."""
    statement, arguments = list_statement(wanted, tenant, limit)
    return await database.fetch_planned(statement, *arguments)


# A job that is gone has moved past everything: who waits for it is to find out.
MOVED_PAST = """
SELECT w.id FROM unnest($1::text[], $2::int[]) AS w (id, seen) LEFT JOIN jobs j ON j.id = w.id
WHERE j.seq IS NULL OR j.seq > w.seen
"""


async def moved_past(database: Database, seen: Mapping[str, int]) -> list[str]:
    """Those of the watched jobs whose log is longer than what was seen of it."""
    return [row["id"] for row in await database.fetch(MOVED_PAST, list(seen), list(seen.values()))]


KNOW_QUEUES = "INSERT INTO queues (name) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING"


async def know_queues(database: Database, names: Sequence[str]) -> None:
    """Remember that these queues exist, so that operators find them."""
    await database.execute(KNOW_QUEUES, sorted(names))
