"""How often something happened on a day (UTC), by name: models swapped on a target, deliveries to a receiver.

Each process counts for itself and adds what it counted every few seconds. Names of receivers are up to callers, so a
process tells only so many of a day apart.
"""

from collections import Counter
from datetime import UTC, date, datetime
from typing import Literal

import msgspec

from app.store import locks
from app.store.database import Database
from app.store.rows import as_rows, columns

Of = Literal["target", "receiver"]
SWAPPED, SWAP_AVOIDED = "swapped", "swap_avoided"
# Names that a process tells apart on one day, and what all the others are counted as.
MOST_NAMES = 500
OTHER = "other"
LONGEST_NAME = 255
KEPT_DAYS = 35
PRUNE_BATCH = 1_000


class DailyTally:
    """What this process has counted and not yet written."""

    def __init__(self) -> None:
        self._counted: Counter[tuple[str, str, str]] = Counter()
        self._names: set[tuple[str, str]] = set()
        self._day = date.min

    def count(self, of: Of, name: str, what: str, by: int = 1) -> None:
        self._counted[of, self._told_apart(of, name[:LONGEST_NAME]), what] += by

    def _told_apart(self, of: str, name: str) -> str:
        today = datetime.now(UTC).date()
        if today != self._day:
            self._day = today
            self._names.clear()
        if (of, name) not in self._names:
            if len(self._names) >= MOST_NAMES:
                return OTHER
            self._names.add((of, name))
        return name

    async def flush(self, database: Database) -> None:
        """Add it to the day of this moment. What a database that is away does not take is kept for the next time."""
        counted, self._counted = self._counted, Counter()
        if not counted:
            return
        try:
            await _add(database, counted)
        except BaseException:
            self._counted += counted
            raise


ADD = """
INSERT INTO daily_counts AS d (day, of, name, what, count)
SELECT (now() AT TIME ZONE 'UTC')::date, counted.*
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS counted (of, name, what, count)
ORDER BY of, name, what
ON CONFLICT (day, of, name, what) DO UPDATE SET count = d.count + excluded.count
"""


async def _add(database: Database, counted: Counter[tuple[str, str, str]]) -> None:
    """In the order of the key, as everybody does."""
    ofs, names, whats = zip(*counted, strict=True)
    await database.execute(ADD, ofs, names, whats, list(counted.values()))


class DailyCount(msgspec.Struct, frozen=True):
    day: date
    name: str
    what: str
    count: int


READ = f"""
SELECT {columns(DailyCount)} FROM daily_counts
WHERE day > (now() AT TIME ZONE 'UTC')::date - $2::int AND day <= (now() AT TIME ZONE 'UTC')::date AND of = $1
ORDER BY day DESC, name, what
"""


async def of_days(database: Database, of: Of, days: int = 1) -> list[DailyCount]:
    """What was counted on the last so many days, today included; newest first."""
    return as_rows(DailyCount, await database.fetch(READ, of, days))


async def of_today(database: Database, of: Of) -> dict[str, Counter[str]]:
    """By name: how often what."""
    counts: dict[str, Counter[str]] = {}
    for each in await of_days(database, of):
        counts.setdefault(each.name, Counter())[each.what] = each.count
    return counts


PRUNE = f"""
WITH old AS MATERIALIZED (
    SELECT ctid FROM daily_counts WHERE day < (now() AT TIME ZONE 'UTC')::date - {KEPT_DAYS}
    ORDER BY day LIMIT {PRUNE_BATCH}
)
, gone AS (DELETE FROM daily_counts WHERE ctid = ANY (ARRAY(SELECT ctid FROM old)) RETURNING 1)
SELECT count(*) FROM gone
"""
ONE_AT_A_TIME = locks.try_lock(locks.FORGET_DAYS)


async def prune(database: Database) -> bool:
    """Remove a batch of days that are kept no longer; whether there may be more."""
    async with database.transaction() as connection:
        if not await connection.fetchval(ONE_AT_A_TIME):
            return False
        return await connection.fetchval(PRUNE) == PRUNE_BATCH  # type: ignore[no-any-return]
