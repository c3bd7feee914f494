"""Slots of targets, held by processes: exact over all replicas, and free of charge while nobody else wants them.

A process holds slots under a lease of its own and runs jobs only on slots it holds, so a claim needs no
look at the other replicas. Taking more is serialised per target; giving back and renewing are not.

A slot is free when its call has ended. The hold of a process that is stalled runs out while its calls go on: until
their leases run out as well, the jobs themselves are counted.
"""

from collections.abc import Mapping, Sequence

import msgspec

from app.store.database import Database
from app.store.rows import as_rows, columns

LOCK = "SELECT pg_advisory_xact_lock(726134, hashtext($1))"

# A statement, and so a snapshot, of its own: taken after the lock. All of the others' rows are locked, those that
# seem to have expired as well: a renewal of one that is just on its way is waited for, and one that comes later finds
# its row gone. A holder is a worker's name, a colon and eight digits.
TAKE = """
WITH theirs AS MATERIALIZED (
    SELECT holder, slots, expires_at FROM target_holdings WHERE target = $1 AND holder <> $2
    ORDER BY holder FOR UPDATE
)
, held AS (
    SELECT left(holder, -9) AS worker, sum(slots) AS slots FROM theirs
    WHERE expires_at > now()
    GROUP BY 1
)
, running AS (
    SELECT r.worker, count(*) AS jobs FROM running r CROSS JOIN LATERAL (
        SELECT 1 FROM jobs WHERE id = r.id AND state IN ('loading', 'working') AND lease_expires_at > now() LIMIT 1
    ) AS leased
    WHERE r.runs_on = $1 AND r.worker <> left($2, -9)
    GROUP BY r.worker
)
, others AS (
    SELECT coalesce(sum(greatest(held.slots, running.jobs)), 0)::int AS slots
    FROM held FULL JOIN running ON running.worker = held.worker
)
, expired AS (DELETE FROM target_holdings WHERE target = $1 AND holder <> $2 AND expires_at <= now())
, asked AS (
    UPDATE target_holdings SET wanted = true
    WHERE target = $1 AND holder <> $2 AND expires_at > now() AND (SELECT slots FROM others) + $4 > $3
)
INSERT INTO target_holdings (target, holder, slots, expires_at)
SELECT $1, $2, greatest(0, least($4, $3 - others.slots)), now() + $5 * interval '1 second' FROM others
ON CONFLICT (target, holder) DO UPDATE SET slots = EXCLUDED.slots, expires_at = EXCLUDED.expires_at, wanted = false
RETURNING slots
"""


async def take(
    database: Database, target: str, holder: str, *, total: int, wanted: int, lease_seconds: float
) -> int:
    """Hold up to `wanted` of the target's slots; returns how many. The others are asked for what is missing."""
    async with database.transaction() as connection:
        await connection.execute(LOCK, target)
        return int(await connection.fetchval(TAKE, target, holder, total, wanted, lease_seconds))


class Holding(msgspec.Struct, gc=False):
    """How many of a target's slots a process holds, and whether somebody else wants of them."""

    target: str
    slots: int
    wanted: bool


# In the order of the targets, one after the other: so it never waits in a circle with those who take.
RENEW = f"""
WITH mine AS MATERIALIZED (
    SELECT target FROM target_holdings WHERE holder = $1 AND target = ANY ($2::text[]) AND expires_at > now()
    ORDER BY target FOR UPDATE
)
UPDATE target_holdings AS h SET expires_at = now() + $3 * interval '1 second'
FROM mine WHERE h.holder = $1 AND h.target = mine.target
RETURNING {columns(Holding, "h")}
"""


async def renew(
    database: Database, holder: str, targets: Sequence[str], lease_seconds: float
) -> list[Holding]:
    """Keep what is held; a target missing from the answer is held no longer."""
    return as_rows(Holding, await database.fetch(RENEW, holder, list(targets), lease_seconds))


LOOK = f"""
SELECT {columns(Holding)} FROM target_holdings WHERE holder = $1 AND target = ANY ($2::text[]) AND expires_at > now()
"""


async def look(database: Database, holder: str, targets: Sequence[str]) -> list[Holding]:
    """The same answer, and nothing is written: between two renewals."""
    return as_rows(Holding, await database.fetch(LOOK, holder, list(targets)))


SHRINK = """
UPDATE target_holdings AS h SET slots = least(h.slots, given.slots), wanted = false
FROM unnest($2::text[], $3::int[]) AS given (target, slots)
WHERE h.holder = $1 AND h.target = given.target
"""


async def shrink(database: Database, holder: str, keep: Mapping[str, int]) -> None:
    """Give back all but so many slots of each target."""
    targets = sorted(keep)
    await database.execute(SHRINK, holder, targets, [keep[target] for target in targets])


RELEASE = "DELETE FROM target_holdings WHERE holder = $1"


async def release(database: Database, holder: str) -> None:
    await database.execute(RELEASE, holder)
