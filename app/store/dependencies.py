"""depends_on: a job waits behind the gate `waiting_for` until the jobs it names have ended.

One row per thing still waited for. Only a job that exists can be named and its id is not known before it exists,
so there is no cycle to be made. A job that others wait for is marked (`has_dependents`), so that the end of any
other costs nothing.
"""

from collections import Counter
from collections.abc import Sequence

import asyncpg

from app.jobs.states import State
from app.store.changes import Changes
from app.store.control import cancel
from app.store.database import Database, Runner
from app.store.live import moved_in_queue
from app.store.rows import looked_up
from app.telemetry import GATES_PASSED

GATE = "waiting_for"
FAILURE_REASON = "dependency_failed"

ADD = """
WITH added AS (
    INSERT INTO dependencies (job_id, depends_on) SELECT * FROM unnest($1::text[], $2::text[])
)
UPDATE jobs SET has_dependents = true WHERE id = ANY ($2::text[]) AND NOT has_dependents
"""


async def add(connection: Runner, pairs: Sequence[tuple[str, str]]) -> None:
    """Remember (job, what it waits for); the caller holds the rows of what is waited for."""
    await connection.execute(ADD, [job_id for job_id, _ in pairs], [other for _, other in pairs])


# How many of those who wait are handled in one commit; each job that ended has its share of them.
STEP = 1000
# A job that was removed has left its verdict (see control.DELETE); one that is gone without a trace counts as failed.
ENDED = """
SELECT d.job_id, d.depends_on, coalesce(job.state, d.outcome, 'failed') AS state
FROM unnest($1::text[]) AS ended (id)
CROSS JOIN LATERAL (SELECT job_id, depends_on, outcome FROM dependencies WHERE depends_on = ended.id LIMIT $2) AS d
LEFT JOIN LATERAL (SELECT * FROM jobs WHERE id = d.depends_on LIMIT 1) AS job ON true
WHERE job.id IS NULL OR job.completed_at IS NOT NULL
"""
# Those who wait for the same job are handled one after the other, so that the last one sees that it is the last.
HOLD = "SELECT id, tenant, gate, state, on_dependency_failure FROM jobs WHERE id = ANY ($1::text[]) ORDER BY id FOR UPDATE"
FORGET = f"""
DELETE FROM dependencies AS d USING unnest($1::text[], $2::text[]) AS ended (job_id, depends_on)
WHERE {looked_up("(d.job_id, d.depends_on)", "(ended.job_id, ended.depends_on)")}
"""
# Through this gate, and on to the next: time, then the key.
LET_THROUGH = (
    """
WITH through AS (
    UPDATE jobs SET
        ready_at = CASE WHEN run_at <= now() AND concurrency_key IS NULL THEN now() END,
        gate = CASE WHEN run_at <= now() AND concurrency_key IS NOT NULL THEN 'key' END,
        reason = CASE WHEN run_at > now() THEN 'scheduled' WHEN concurrency_key IS NOT NULL THEN 'key_busy' END
    WHERE id = ANY ($1::text[]) AND state = 'queued' AND gate = 'waiting_for'
      AND (SELECT true FROM dependencies WHERE job_id = jobs.id LIMIT 1) IS NULL
    RETURNING jobs.*
)
"""
    + moved_in_queue("through")
    + "SELECT queue, lane, concurrency_key AS key, ready_at IS NOT NULL AS ready FROM through"
)


async def resolve(database: Database, job_ids: Sequence[str]) -> Changes[None]:
    """These jobs have ended: let go or cancel those who waited for them, as each of those wanted it.

    One step of it, however many they are: those that more waited for are among `ended` once more.
    """
    share = max(1, STEP // len(job_ids)) if job_ids else 0
    async with database.transaction() as connection:
        ended: list[asyncpg.Record] = await connection.fetch(ENDED, job_ids, share)
        if not ended:
            return Changes()
        waiting = {row["id"]: row for row in await connection.fetch(HOLD, [row["job_id"] for row in ended])}
        await connection.execute(
            FORGET, [row["job_id"] for row in ended], [row["depends_on"] for row in ended]
        )
        doomed: dict[str, list[str]] = {}
        for row in ended:
            job = waiting.get(row["job_id"])
            if job and job["gate"] == GATE and _fails(row["state"], job["on_dependency_failure"]):
                doomed.setdefault(job["tenant"], []).append(row["job_id"])
        waited_for = Counter(row["depends_on"] for row in ended)
        changes: Changes[None] = Changes(
            ended={each for each, waiters in waited_for.items() if waiters == share}
        )
        for tenant, ids in doomed.items():
            changes.add(await cancel(connection, sorted(set(ids)), tenant, FAILURE_REASON))
        for row in await connection.fetch(LET_THROUGH, list(waiting)):
            if row["ready"]:
                changes.work.add((row["queue"], row["lane"]))
                changes.count(GATES_PASSED, GATE)
            elif row["key"] is not None:
                changes.keys.add((row["queue"], row["key"]))
            else:
                changes.delayed = True
    return changes


def _fails(state: str, on_failure: str | None) -> bool:
    return state != State.DONE and on_failure != "run"


# What a crash left undone: dependencies on jobs that have ended. A bounded look from where the last one stopped.
UNRESOLVED = """
SELECT seen.depends_on, job.id IS NULL OR job.completed_at IS NOT NULL AS ended FROM (
    SELECT depends_on FROM dependencies WHERE depends_on > $1 ORDER BY depends_on LIMIT $2
) AS seen LEFT JOIN LATERAL (SELECT * FROM jobs WHERE id = seen.depends_on LIMIT 1) AS job ON true
"""


async def find_unresolved(database: Runner, after: str, limit: int) -> tuple[list[str], str | None]:
    """Ended jobs that someone still waits for, from `after` on; and where to go on from."""
    rows = await database.fetch(UNRESOLVED, after, limit)
    ended = sorted({row["depends_on"] for row in rows if row["ended"]})
    return ended, max(row["depends_on"] for row in rows) if len(rows) == limit else None
