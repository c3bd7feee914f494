"""promote: scheduled jobs and those that backed off become claimable when their moment comes. No state changes."""

from app.store.changes import Changes
from app.store.database import Database
from app.store.live import move_held, moved_in_queue

# A loose index scan: one probe per queue that has waiting jobs, which finds the first of them to come due.
_WAITING = """
WITH RECURSIVE waiting AS (
    (SELECT queue, run_at FROM queued WHERE ready_at IS NULL AND gate IS NULL ORDER BY queue, run_at LIMIT 1)
    UNION ALL
    SELECT following.queue, following.run_at FROM waiting CROSS JOIN LATERAL (
        SELECT queue, run_at FROM queued WHERE ready_at IS NULL AND gate IS NULL AND queue > waiting.queue
        ORDER BY queue, run_at LIMIT 1
    ) AS following
)
"""

# Ready what has come due: scheduled jobs and those that backed off. No state changes, so no event. With a key
# they have yet to stand in line for it. Each queue with something due has an equal share of the round, so that a
# crowd in one holds up none of the others; if there are more queues than a round has room for, chance decides
# whose turn it is, so that none is passed over twice in a row for its name.
HOLD_DUE = (
    _WAITING
    + """
, crowds AS MATERIALIZED (SELECT queue FROM waiting WHERE run_at <= now() ORDER BY random() LIMIT $1)
SELECT found.id FROM crowds CROSS JOIN LATERAL (
    SELECT q.id FROM queued q CROSS JOIN LATERAL (
        SELECT 1 FROM jobs
        WHERE id = q.id AND state = 'queued' AND ready_at IS NULL AND gate IS NULL AND run_at <= now()
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) AS held
    WHERE q.queue = crowds.queue AND q.ready_at IS NULL AND q.gate IS NULL AND q.run_at <= now()
    ORDER BY q.run_at LIMIT greatest($1 / (SELECT count(*) FROM crowds), 1)
) AS found
"""
)
PROMOTE = (
    """
WITH promoted AS (
    UPDATE jobs AS j SET
        ready_at = CASE WHEN j.concurrency_key IS NULL THEN now() END,
        gate = CASE WHEN j.concurrency_key IS NOT NULL THEN 'key' END,
        reason = CASE WHEN j.concurrency_key IS NOT NULL THEN 'key_busy' END
    WHERE j.id = ANY ($1::text[])
    RETURNING j.*
)
"""
    + moved_in_queue("promoted")
    + "SELECT DISTINCT queue, lane, concurrency_key AS key FROM promoted"
)

NEXT_DUE = _WAITING + "SELECT date_part('epoch', min(run_at) - now()) FROM waiting WHERE run_at < 'infinity'"


async def promote(database: Database, limit: int = 1000) -> Changes[None]:
    """Let due jobs through to the claim, or to the gate of their key."""
    rows = await move_held(database, HOLD_DUE, (limit,), PROMOTE)
    return Changes(
        work={(row["queue"], row["lane"]) for row in rows if row["key"] is None},
        keys={(row["queue"], row["key"]) for row in rows if row["key"] is not None},
    )


async def seconds_until_next_due(database: Database) -> float | None:
    return await database.fetchval(NEXT_DUE)  # type: ignore[no-any-return]
