"""The small tables in which live work is found (see tables/live.py), kept by every statement that moves jobs.

The row of `jobs` is the one lock and the truth: whoever changes a job's row here holds that one. A statement sees these
tables as they were when it began, and the job's row as it is when it got its lock. So whoever has to wait for a lock
does that in a statement of its own, before the one that moves; a claim never waits, and takes a job only as it was
found (`ready_at`).
"""

from collections.abc import Sequence

import asyncpg

from app.jobs.lanes import TARGET_ASLEEP
from app.jobs.states import TERMINAL, State
from app.store.database import Runner, in_transaction
from app.store.history import TAKES_EVENTS

TROUBLED = ", ".join(f"'{state}'" for state in sorted(TERMINAL - {State.DONE}))

_QUEUED = "id, queue, lane, rank, ready_at, run_at, gate, concurrency_key, fair_value, deadline, key_number"
_IS_ASLEEP = f"ready_at IS NULL AND reason IS NOT DISTINCT FROM '{TARGET_ASLEEP}'"
_RUNNING = "id, queue, worker, runs_on, concurrency_key, deadline, key_number"


# The row of a job that a claim has found as `q`: held, unless somebody else holds it or it is no longer as it was found.
HELD = f"""
            SELECT {TAKES_EVENTS} AS logs_itself FROM jobs j
            WHERE j.id = q.id AND j.state = 'queued' AND j.ready_at = q.ready_at LIMIT 1
            FOR UPDATE SKIP LOCKED"""


def enter_queue(rows: str) -> str:
    """For rows of `jobs` that were just inserted, all of them queued."""
    return f"""
, entered_queue AS (INSERT INTO queued ({_QUEUED}, asleep) SELECT {_QUEUED}, false FROM {rows})
"""


def enter_queue_again(rows: str) -> str:
    """The part of a statement for those of its rows of `jobs` that are queued now and were not before."""
    return f"""
, entered_queue AS (
    INSERT INTO queued ({_QUEUED}, asleep) SELECT {_QUEUED}, {_IS_ASLEEP} FROM {rows} WHERE state = 'queued'
    ON CONFLICT (id) DO UPDATE SET
        ready_at = excluded.ready_at, run_at = excluded.run_at, gate = excluded.gate, deadline = excluded.deadline,
        asleep = excluded.asleep, key_number = excluded.key_number
)
"""


def moved_in_queue(rows: str) -> str:
    """For those that stay queued, but become claimable, or are held back."""
    return f"""
, moved_in_queue AS (
    UPDATE queued AS q SET ready_at = m.ready_at, run_at = m.run_at, gate = m.gate, asleep = m.asleep,
        key_number = m.key_number
    FROM (SELECT id, ready_at, run_at, gate, key_number, {_IS_ASLEEP} AS asleep FROM {rows}) AS m
    WHERE q.id = ANY (ARRAY(SELECT id FROM {rows})) AND q.id = m.id
)
"""


def leave_queue(rows: str) -> str:
    """For those that are not queued any more."""
    return f"""
, left_queue AS (DELETE FROM queued WHERE id = ANY (ARRAY(SELECT id FROM {rows} WHERE state <> 'queued')))
"""


def enter_run(rows: str) -> str:
    """For those that were just claimed."""
    return f"""
, entered_run AS (
    INSERT INTO running ({_RUNNING}, claimed_at) SELECT {_RUNNING}, statement_timestamp() FROM {rows}
)
"""


def leave_run(rows: str) -> str:
    """For those that run no more."""
    return f"""
, left_run AS (
    DELETE FROM running WHERE id = ANY (ARRAY(SELECT id FROM {rows} WHERE state NOT IN ('loading', 'working')))
)
"""


def end(rows: str) -> str:
    """For those that may have ended."""
    return f"""
, ended_otherwise AS (
    INSERT INTO endings (id, queue, state, concurrency_key)
    SELECT id, queue, state, concurrency_key FROM {rows} WHERE state IN ({TROUBLED})
    ON CONFLICT (id) DO UPDATE SET state = excluded.state
)
""" + book(rows)


def book(rows: str) -> str:
    """For those whose usage may have to be booked: they have ended, and said how much it was."""
    return f"""
, to_be_booked AS (
    INSERT INTO unbooked_usage (id)
    SELECT id FROM {rows} WHERE usage IS NOT NULL AND NOT usage_booked AND completed_at IS NOT NULL
    ON CONFLICT DO NOTHING
)
"""


def stop(rows: str) -> str:
    """For those that were running and have been stopped: queued again, or at their end."""
    return leave_run(rows) + enter_queue_again(rows) + end(rows)


# What no verb leaves behind, but somebody who removes jobs by hand: rows of jobs that are gone, or are elsewhere. A
# bounded look from where the last one stopped. In one snapshot a job and its row here always agree.
_STRAYS = """
WITH seen AS MATERIALIZED (SELECT id FROM {table} WHERE id > $1 ORDER BY id LIMIT $2)
SELECT (SELECT count(*) FROM seen) AS seen, (SELECT max(id) FROM seen) AS last, ARRAY(
    SELECT seen.id FROM seen LEFT JOIN LATERAL (SELECT state FROM jobs WHERE id = seen.id LIMIT 1) AS job ON true
    WHERE (job.state IN ({states})) IS NOT TRUE
) AS strays
"""
_FORGET_STRAYS = """
DELETE FROM {table} AS stray WHERE id = ANY ($1::text[])
  AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = stray.id AND state IN ({states}))
"""
HOLD = "SELECT id FROM jobs WHERE id = ANY ($1::text[]) ORDER BY id FOR UPDATE"
STATES = {"queued": "'queued'", "running": "'loading', 'working'"}


async def forget_strays(connection: Runner, table: str, after: str, limit: int) -> str:
    """Look at so many rows of `queued` or `running`; from where the next look goes on, '' when it begins anew."""
    named = {"table": table, "states": STATES[table]}
    [found] = await connection.fetch(_STRAYS.format(**named), after, limit)
    if found["strays"]:
        await connection.fetch(HOLD, found["strays"])
        await connection.execute(_FORGET_STRAYS.format(**named), found["strays"])
    return found["last"] if found["seen"] == limit else ""


async def move_held(
    runner: Runner, hold: str, arguments: Sequence[object], move: str, *more: object
) -> list[asyncpg.Record]:
    """Hold the jobs that the first statement finds, and move them by the second, which is sent their ids; in one
    transaction. What the second returns."""

    async def steps(connection: Runner) -> list[asyncpg.Record]:
        held = [row["id"] for row in await connection.fetch(hold, *arguments)]
        return await connection.fetch(move, held, *more) if held else []

    return await in_transaction(runner, steps)
