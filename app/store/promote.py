"""promote: scheduled jobs and those that backed off become claimable when their moment comes. No state changes."""

import time
from datetime import datetime, timedelta

import asyncpg

from app.store.changes import Changes
from app.store.database import Database, Runner, in_transaction
from app.store.live import moved_in_queue
from app.store.low_water import THE_BEGINNING, TimeMark

# What waits for a moment from now on is seen at its commit, which may come later than that moment.
SLACK = timedelta(seconds=10)
NOW = "SELECT now() AS now"
# How long it is trusted that nothing waits behind the mark.
MARK_SECONDS = 60.0

_WAITS = "q.ready_at IS NULL AND q.gate IS NULL"
# The row of a job that was found as `q`: held, if it still waits for a moment that has come.
_HELD = """
        SELECT 1 FROM jobs
        WHERE id = q.id AND state = 'queued' AND ready_at IS NULL AND gate IS NULL AND run_at <= now()
        LIMIT 1 FOR UPDATE SKIP LOCKED"""

# What has come due, longest due first, from the mark on: what was promoted before is stepped over, also where a
# transaction held open elsewhere keeps it from being removed.
HOLD_DUE = f"""
SELECT q.id FROM queued q CROSS JOIN LATERAL ({_HELD}
    ) AS held
WHERE {_WAITS} AND q.run_at <= now() AND q.run_at >= $2::timestamptz
ORDER BY q.run_at LIMIT $1
"""

# The same where it is a crowd: each queue with something due has an equal share of the round, so that a crowd in one
# holds up none of the others; if there are more queues than a round has room for, chance decides whose turn it is,
# so that none is passed over twice in a row for its name. A loose index scan finds the queues, one probe for each.
HOLD_CROWD = f"""
WITH RECURSIVE waiting AS (
    (SELECT queue, run_at FROM queued q WHERE {_WAITS} ORDER BY queue, run_at LIMIT 1)
    UNION ALL
    SELECT following.queue, following.run_at FROM waiting CROSS JOIN LATERAL (
        SELECT queue, run_at FROM queued q WHERE {_WAITS} AND queue > waiting.queue ORDER BY queue, run_at LIMIT 1
    ) AS following
)
, crowds AS MATERIALIZED (SELECT queue FROM waiting WHERE run_at <= now() ORDER BY random() LIMIT $1)
SELECT found.id FROM crowds CROSS JOIN LATERAL (
    SELECT q.id FROM queued q CROSS JOIN LATERAL ({_HELD}
    ) AS held
    WHERE q.queue = crowds.queue AND {_WAITS} AND q.run_at <= now()
    ORDER BY q.queue, q.run_at LIMIT greatest($1 / (SELECT count(*) FROM crowds), 1)
) AS found
"""

# With a key they have yet to stand in line for it.
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

# When the next one from the mark on comes due.
NEXT_DUE = f"""
SELECT now() AS now, (
    SELECT date_part('epoch', q.run_at - now()) FROM queued q
    WHERE {_WAITS} AND q.run_at >= $1::timestamptz AND q.run_at < 'infinity'
    ORDER BY q.run_at LIMIT 1
) AS seconds
"""


def due_mark() -> TimeMark:
    """Before which nothing waits for its moment."""
    return TimeMark(SLACK, MARK_SECONDS)


async def promote(database: Database, limit: int = 1000, marks: TimeMark | None = None) -> Changes[None]:
    """Let due jobs through to the claim, or to the gate of their key."""
    mark, began = THE_BEGINNING if marks is None else marks.current(), time.monotonic()

    async def steps(connection: Runner) -> tuple[list[asyncpg.Record], datetime | None]:
        due = await connection.fetch(HOLD_DUE, limit + 1, mark)
        is_crowd = len(due) > limit
        if is_crowd:
            due = await connection.fetch(HOLD_CROWD, limit)
        rows = await connection.fetch(PROMOTE, [row["id"] for row in due]) if due else []
        return rows, None if is_crowd else (await connection.fetch(NOW))[0]["now"]

    rows, all_through_at = await in_transaction(database, steps)
    if marks is not None and all_through_at is not None:
        marks.learn(mark, all_through_at, time.monotonic() - began)
    return Changes(
        work={(row["queue"], row["lane"]) for row in rows if row["key"] is None},
        keys={(row["queue"], row["key"]) for row in rows if row["key"] is not None},
    )


async def seconds_until_next_due(database: Database, marks: TimeMark | None = None) -> float | None:
    """Zero or less when something is due; None when nothing waits for a moment that will come."""
    mark, began = THE_BEGINNING if marks is None else marks.current(), time.monotonic()
    [found] = await database.fetch(NEXT_DUE, mark)
    seconds: float | None = found["seconds"]
    if marks is not None and (seconds is None or seconds > 0):
        marks.learn(mark, found["now"], time.monotonic() - began)
    return seconds
