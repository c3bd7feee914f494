"""How many jobs ended, and how fast: exact, and cheap at any number of rows.

Counting ended jobs would mean reading millions of rows, and a counter row that every job updates would be the
hot spot of the whole table. So each statement that moves jobs into or out of an end appends one small row per
queue and state, in the same commit, however many jobs it moved. They are folded into totals every few seconds.
"""

from collections.abc import Mapping

from app.jobs.states import TERMINAL
from app.store import locks
from app.store.database import Database

ENDED = ", ".join(f"'{state}'" for state in sorted(TERMINAL))
# Rates look this far back; what is older is folded away.
RATE_SECONDS = 60
# Not a state: how many were accepted, for the rate of it.
ENQUEUED = "enqueued"


def tally(rows: str, *, state: str = "state", sign: str = "", name: str = "tallied") -> str:
    """The part of a statement that counts its rows, which have `queue` and the state they entered or left."""
    return f"""
, {name} AS (
    INSERT INTO queue_deltas (queue, state, jobs)
    SELECT queue, {state}, {sign}count(*) FROM {rows} WHERE {state} IN ({ENDED}) GROUP BY 1, 2
)
"""


NOTE_ENQUEUED = (
    "INSERT INTO queue_deltas (queue, state, jobs) SELECT unnest($1::text[]), $3, unnest($2::bigint[])"
)


async def note_enqueued(database: Database, jobs: Mapping[str, int]) -> None:
    """Accepted jobs by queue. For rates only, so it need not be in their commit."""
    await database.execute(NOTE_ENQUEUED, list(jobs), list(jobs.values()), ENQUEUED)


# One at a time: two folds would wait for each other on the same totals.
FOLD = f"""
WITH mine AS (
    {locks.try_lock(locks.FOLD_TALLIES)} AS ours
)
, old AS (
    DELETE FROM queue_deltas USING mine
    WHERE mine.ours AND at < now() - interval '{RATE_SECONDS} seconds'
    RETURNING queue, state, jobs
)
INSERT INTO queue_totals AS t (queue, state, jobs)
SELECT queue, state, sum(jobs) FROM old GROUP BY queue, state ORDER BY queue, state
ON CONFLICT (queue, state) DO UPDATE SET jobs = t.jobs + excluded.jobs
"""


async def fold(database: Database) -> None:
    """Move what no rate looks at any more into the totals."""
    await database.execute(FOLD)
