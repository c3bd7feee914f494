"""Retention: removes jobs that ended long enough ago, with all they own, and idempotency keys that are over.

A walk along the ids, oldest first, that stops where no job can be old enough. It needs no index of its own, so that
the end of a job costs nothing more. One walk goes through all jobs; a queue that keeps its jobs for a shorter time
has one of its own. How far each has come is a row, so any replica goes on where another stopped: a walk goes on with
what has grown old enough since, and begins anew only now and then, for those that ended long after they came. What a
queue keeps is read from its settings in the statement itself. A job with a webhook still to be delivered is kept, and so
are the lines of a batch whose files are still to be written.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import asyncpg

from app.jobs.ids import id_floor
from app.store import locks
from app.store.changes import Changes
from app.store.control import prune_locked
from app.store.database import Database
from app.telemetry import PRUNED

BATCH = 500
# A walk begins anew after this part of the time for which jobs are kept: nothing is kept longer than that in vain.
ANEW_SHARE = 1 / 20
# How long a walk rests that has come to its end, as part of that time; within these limits.
PAUSE_SHARE = 1 / 1000
MAX_PAUSE_SECONDS = 600.0
# Works at most a fifth of the time, however much there is to remove.
REST_SHARE = 4
# The walk through all jobs.
ALL = ""

ONE_AT_A_TIME = locks.try_lock(locks.PRUNE)

# Compared as pairs, so that only the index of the queue has them in this order, and never the primary key. (That the
# queue is the one is said once more, or PostgreSQL would not see that the index has all of them.)
_OF_QUEUE = "queue >= $1 AND (queue, id) > ($1, $2) AND (queue, id) < ($1, $3) ORDER BY queue, id"
_OF_ALL = "id > $2 AND id < $3 ORDER BY id"
# Who holds such a row is about to read it or to note something: it is found again on the next walk. What is kept for
# no time at all, or is not named, is kept for ever.
_OVER = """
WITH seen AS MATERIALIZED (
    SELECT id, queue, state, completed_at, parent_id FROM jobs WHERE {walk} LIMIT $4
)
, over AS MATERIALIZED (
    SELECT jobs.id FROM jobs WHERE jobs.completed_at IS NOT NULL AND jobs.id = ANY (ARRAY(
        SELECT seen.id FROM seen
        JOIN unnest($5::text[], $6::float8[]) AS usual (state, seconds) ON usual.state = seen.state
        CROSS JOIN LATERAL (SELECT coalesce((
            SELECT (settings->'retention'->>seen.state)::float8 FROM queues WHERE name = seen.queue
        ), usual.seconds) AS seconds) AS kept
        WHERE kept.seconds > 0 AND seen.completed_at < now() - kept.seconds * interval '1 second'
          AND (SELECT true FROM outbox WHERE job_id = seen.id LIMIT 1) IS NULL
          AND (SELECT true FROM batches WHERE job_id = ANY (ARRAY[seen.id, seen.parent_id]) AND finalized_at IS NULL LIMIT 1)
              IS NULL
    ))
    FOR UPDATE SKIP LOCKED
)
SELECT seen.id, over.id IS NOT NULL AS over FROM seen LEFT JOIN over ON over.id = seen.id ORDER BY seen.id
"""
OVER_IN_QUEUE = _OVER.replace("{walk}", _OF_QUEUE)
# The first parameter is the queue in the other one; here it is there to be there.
OVER_OF_ALL = _OVER.replace("{walk}", f"$1 = '' AND {_OF_ALL}")

# The one that has waited longest.
TAKE = f"""
SELECT queue, horizon_seconds, after_id,
    began_at < now() - horizon_seconds * {ANEW_SHARE} * interval '1 second' AS is_old
FROM retention_walks WHERE due_at <= now() ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
"""
WALKED = """
UPDATE retention_walks SET
    after_id = $2, began_at = CASE WHEN $2 = '' THEN now() ELSE began_at END,
    due_at = clock_timestamp() + $3 * interval '1 second'
WHERE queue = $1
"""


@dataclass(frozen=True, slots=True)
class Pruned:
    changes: Changes[str]
    rest_seconds: float


async def prune(database: Database, usual: Mapping[str, float], pause_seconds: float) -> Pruned | None:
    """One batch of the walk that is due; None when none is, or another replica is at it.

    `usual` is what queues keep that do not say otherwise; a walk that is at its end rests for `pause_seconds` at least.
    """
    began = time.perf_counter()
    async with database.transaction() as connection:
        if not await connection.fetchval(ONE_AT_A_TIME):
            return None
        walk: asyncpg.Record | None = await connection.fetchrow(TAKE)
        if walk is None:
            return None
        horizon = walk["horizon_seconds"]
        seen: list[asyncpg.Record] = await connection.fetch(
            OVER_OF_ALL if walk["queue"] == ALL else OVER_IN_QUEUE,
            walk["queue"],
            walk["after_id"],
            id_floor(datetime.now(UTC) - timedelta(seconds=horizon)),
            BATCH,
            list(usual),
            [float(each) for each in usual.values()],
        )
        changes = await prune_locked(connection, [row["id"] for row in seen if row["over"]])
        after = seen[-1]["id"] if seen else walk["after_id"]
        rest = pause = REST_SHARE * (time.perf_counter() - began)
        if len(seen) < BATCH:
            pause = max(pause_seconds, min(horizon * PAUSE_SHARE, MAX_PAUSE_SECONDS))
            # Never before it has come to its end, or it would never get there.
            after = "" if walk["is_old"] else after
        await connection.execute(WALKED, walk["queue"], after, pause)
    # Nobody waits for the end of a retention; the others need not be told of so many.
    changes.jobs.clear()
    changes.count(PRUNED, by=len(changes.answers))
    return Pruned(changes, rest)


# A walk whose horizon changed begins anew, at once.
PLAN = """
INSERT INTO retention_walks AS walk (queue, horizon_seconds) SELECT * FROM unnest($1::text[], $2::float8[])
ON CONFLICT (queue) DO UPDATE SET
    horizon_seconds = excluded.horizon_seconds, after_id = '', began_at = now(), due_at = now()
WHERE walk.horizon_seconds <> excluded.horizon_seconds
"""
DROP = "DELETE FROM retention_walks WHERE queue = ANY ($1::text[])"


async def plan_walks(database: Database, horizons: Mapping[str, float | None]) -> None:
    """Which queues have a walk of their own, and how old a job must be for it; None for those that have none."""
    walked = {queue: horizon for queue, horizon in sorted(horizons.items()) if horizon is not None}
    await database.execute(PLAN, list(walked), list(walked.values()))
    await database.execute(DROP, [queue for queue, horizon in horizons.items() if horizon is None])


# From where the last batch stopped, so that the entries of what was deleted are not walked over again.
FORGET_KEYS = """
WITH old AS MATERIALIZED (
    SELECT ctid, created_at FROM idempotency_keys
    WHERE created_at >= $1 AND created_at < now() - interval '48 hours' ORDER BY created_at LIMIT $2
    FOR UPDATE SKIP LOCKED
)
, gone AS (DELETE FROM idempotency_keys WHERE ctid = ANY (ARRAY(SELECT ctid FROM old)))
SELECT count(*) AS keys, max(created_at) AS last FROM old
"""


async def forget_keys(database: Database, since: datetime) -> tuple[int, datetime | None]:
    """One batch of the idempotency keys that are over, from `since` on: how many, and where to go on from; None at
    the end, or when another replica is at it."""
    async with database.transaction() as connection:
        if not await connection.fetchval(ONE_AT_A_TIME):
            return 0, None
        forgot = await connection.fetchrow(FORGET_KEYS, since, BATCH)
    return forgot["keys"], forgot["last"] if forgot["keys"] == BATCH else None
