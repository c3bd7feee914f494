"""Retention: removes jobs that ended long enough ago, with all they own, in small batches.

A walk along the index of the queue, oldest first, that stops where no job can be old enough. It needs no index of
its own, so that the end of a job costs nothing more. A job with a webhook still to be delivered is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import asyncpg

from app.jobs.ids import id_floor
from app.store import locks
from app.store.database import Database
from app.store.steer import delete_locked

BATCH = 500
ONE_AT_A_TIME = locks.try_lock(locks.PRUNE)

# Compared as pairs, so that only the index of the queue has them in this order, and never the primary key.
# Who holds such a row is about to read it or to note something: it is found again on the next walk.
OVER = """
WITH seen AS MATERIALIZED (
    SELECT id, state, completed_at FROM jobs WHERE (queue, id) > ($1, $2) AND (queue, id) < ($1, $3)
    ORDER BY queue, id LIMIT $4
)
, over AS MATERIALIZED (
    SELECT jobs.id FROM jobs WHERE jobs.completed_at IS NOT NULL AND jobs.id IN (
        SELECT seen.id FROM seen JOIN unnest($5::text[], $6::float8[]) AS kept (state, seconds) ON kept.state = seen.state
        WHERE seen.completed_at < now() - kept.seconds * interval '1 second'
          AND (SELECT true FROM deliveries WHERE job_id = seen.id AND seq >= 0 AND state = 'pending' LIMIT 1) IS NULL
    )
    FOR UPDATE SKIP LOCKED
)
SELECT seen.id, over.id IS NOT NULL AS over FROM seen LEFT JOIN over ON over.id = seen.id ORDER BY seen.id
"""


@dataclass(frozen=True, slots=True)
class Pruned:
    jobs: int
    # Where to go on from; None at the end of the walk.
    after: str | None


async def prune(database: Database, queue: str, retention: Mapping[str, float], after: str) -> Pruned | None:
    """One batch of the walk through a queue; None when another replica is at it."""
    until = id_floor(datetime.now(UTC) - timedelta(seconds=min(retention.values())))
    async with database.transaction() as connection:
        if not await connection.fetchval(ONE_AT_A_TIME):
            return None
        seen: list[asyncpg.Record] = await connection.fetch(
            OVER, queue, after, until, BATCH, list(retention), [float(each) for each in retention.values()]
        )
        gone = await delete_locked(connection, [row for row in seen if row["over"]])
    return Pruned(len(gone), seen[-1]["id"] if len(seen) == BATCH else None)
