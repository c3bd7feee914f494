"""How many jobs of a key have not ended, for keys that may have only so many.

Each job of such a key has a row here from before it is enqueued. Nobody takes it away when the job ends: that would
cost every job something. Rows of jobs that have ended are removed when the key seems to have no room, and only then.
"""

from collections.abc import Sequence

from app.store.database import Database, Runner, in_transaction
from app.store.locks import lock, lock_number

COUNT = "SELECT count(*) FROM (SELECT 1 FROM key_jobs WHERE key_id = $1 LIMIT $2) AS counted"
# And those whose jobs never came, although they had the time to.
FORGET_ENDED = """
WITH known AS MATERIALIZED (SELECT job_id FROM key_jobs WHERE key_id = $1)
, over AS MATERIALIZED (
    SELECT known.job_id FROM known
    LEFT JOIN LATERAL (SELECT completed_at IS NOT NULL AS ended FROM jobs WHERE id = known.job_id LIMIT 1) AS job ON true
    WHERE coalesce(job.ended, known.job_id < $2)
)
DELETE FROM key_jobs WHERE key_id = $1 AND job_id = ANY (ARRAY(SELECT job_id FROM over))
"""
ADD = "INSERT INTO key_jobs (key_id, job_id) SELECT $1, unnest($2::text[]) ON CONFLICT DO NOTHING"


async def add(database: Runner, key_id: str, job_ids: Sequence[str]) -> None:
    """Room for them is known to be there."""
    await database.execute(ADD, key_id, list(job_ids))


async def add_counted(
    database: Database, key_id: str, job_ids: Sequence[str], limit: int, not_before: str
) -> int | None:
    """Count, and add these if there is room: how much is left then, or nothing where there was not enough.

    One at a time for each key. Jobs with ids from `not_before` on may be on their way into the queue.
    """

    async def steps(connection: Runner) -> int | None:
        await lock(connection, {lock_number("key_jobs", key_id): True})
        for forget in (False, True):
            if forget:
                await connection.execute(FORGET_ENDED, key_id, not_before)
            [row] = await connection.fetch(COUNT, key_id, limit + 1)
            left = limit - int(row["count"]) - len(job_ids)
            if left >= 0:
                await connection.execute(ADD, key_id, list(job_ids))
                return left
        return None

    return await in_transaction(database, steps)


REMOVE = "DELETE FROM key_jobs WHERE key_id = $1 AND job_id = ANY ($2::text[])"


async def remove(database: Database, key_id: str, job_ids: Sequence[str]) -> None:
    """They were not enqueued after all."""
    await database.execute(REMOVE, key_id, list(job_ids))
