"""Slots of targets, held by processes: exact over all replicas, and free of charge while nobody else wants them.

A process holds slots under a lease of its own and runs jobs only on slots it holds, so a claim needs no
look at the other replicas. Taking more is serialised per target; giving back and renewing are not.
"""

from collections.abc import Mapping, Sequence

import asyncpg

from app.store.database import Database

LOCK = "SELECT pg_advisory_xact_lock(726134, hashtext($1))"

# A statement, and so a snapshot, of its own: taken after the lock.
TAKE = """
WITH others AS (
    SELECT coalesce(sum(slots), 0) AS slots FROM target_holdings
    WHERE target = $1 AND holder <> $2 AND expires_at > now()
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


RENEW = """
UPDATE target_holdings AS h SET expires_at = now() + $3 * interval '1 second'
WHERE h.holder = $1 AND h.target = ANY ($2::text[]) AND h.expires_at > now()
RETURNING h.target, h.slots, h.wanted
"""


async def renew(
    database: Database, holder: str, targets: Sequence[str], lease_seconds: float
) -> list[asyncpg.Record]:
    """Keep what is held; a target missing from the answer is held no longer."""
    return await database.fetch(RENEW, holder, list(targets), lease_seconds)


SHRINK = """
UPDATE target_holdings AS h SET slots = least(h.slots, given.slots), wanted = false
FROM unnest($2::text[], $3::int[]) AS given (target, slots)
WHERE h.holder = $1 AND h.target = given.target
"""


async def shrink(database: Database, holder: str, keep: Mapping[str, int]) -> None:
    """Give back all but so many slots of each target."""
    await database.execute(SHRINK, holder, list(keep), list(keep.values()))


RELEASE = "DELETE FROM target_holdings WHERE holder = $1"


async def release(database: Database, holder: str) -> None:
    await database.execute(RELEASE, holder)
