"""Tables in daily partitions: days are made ahead and dropped whole, so that old rows cost nothing to remove.

A day is made beside its table and then attached, and everything gives up quickly when somebody holds a lock:
to wait would make everyone else queue up behind us. What could not be done is done in the next round.

A machine that slept through all the days that were made ahead wakes up on one that has none. What is written then goes
to the rest, and moves into its day when that is made.
"""

from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

import asyncpg

from app.store import locks
from app.store.database import Database

DAYS_AHEAD = 3
REST_BATCH = 5000
REST_BATCHES = 20
# Moved out of the rest at once, under a lock; a day that has more there stays there until it is over.
MAX_MOVED = 50_000

ONE_AT_A_TIME = locks.try_lock(locks.RENEW_PARTITIONS)
TODAY = "SELECT (now() AT TIME ZONE 'UTC')::date"
DAYS = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = $1::regclass AND c.relname <> $1 || '_rest'
"""


@dataclass(slots=True)
class Renewal:
    """What became of one table's days."""

    made: list[date] = field(default_factory=list)
    dropped: list[date] = field(default_factory=list)
    # Days that somebody's lock, or too many rows in the rest, kept us from making or dropping.
    postponed: list[date] = field(default_factory=list)


async def renew(database: Database, table: str, keep_days: int) -> Renewal | None:
    """Make the days to come and drop those that are over; None when another replica is at it."""
    # The lock lives as long as this transaction, which itself touches nothing: each day is made or dropped in one
    # of its own, so that a table's lock is given back at once.
    async with database.transaction() as connection:
        if not await connection.fetchval(ONE_AT_A_TIME):
            return None
        today: date = await connection.fetchval(TODAY)
        days = {_day(row["relname"]) for row in await connection.fetch(DAYS, table)}
        return await _renew(database, table, days, today, keep_days)


async def _renew(database: Database, table: str, days: set[date], today: date, keep_days: int) -> Renewal:
    renewal = Renewal()
    first = today - timedelta(days=keep_days)
    for day in (today + timedelta(days=n) for n in range(DAYS_AHEAD + 1)):
        if day not in days:
            (renewal.made if await _make(database, table, day) else renewal.postponed).append(day)
    for day in sorted(days):
        if day < first:
            is_gone = await _try(database, DROP.format(table=table, day=day))
            (renewal.dropped if is_gone else renewal.postponed).append(day)
    for _ in range(REST_BATCHES):
        deleted = await database.execute(DELETE_REST.format(table=table), first, REST_BATCH)
        if deleted != f"DELETE {REST_BATCH}":
            break
    return renewal


def _day(name: str) -> date:
    return datetime.strptime(name[-8:], "%Y%m%d").date()  # noqa: DTZ007 - the name of a day, in UTC like all of them


MAKE = "CREATE TABLE IF NOT EXISTS {table}_{day:%Y%m%d} (LIKE {table} INCLUDING ALL);"
ATTACH = """
ALTER TABLE {table} ATTACH PARTITION {table}_{day:%Y%m%d} FOR VALUES FROM ('{day}Z') TO ('{next_day}Z')
"""
IN_REST = """
SELECT count(*) FROM (SELECT 1 FROM {table}_rest WHERE at >= '{day}Z' AND at < '{next_day}Z' LIMIT {limit}) AS rows
"""
# Under the lock that attaching takes anyway: nothing may come into the rest in between.
MOVE = """
LOCK TABLE {table}_rest IN ACCESS EXCLUSIVE MODE;
WITH moved AS (DELETE FROM {table}_rest WHERE at >= '{day}Z' AND at < '{next_day}Z' RETURNING *)
INSERT INTO {table}_{day:%Y%m%d} SELECT * FROM moved;
"""


async def _make(database: Database, table: str, day: date) -> bool:
    """Attaching, unlike creating in place, lets reads and writes of the table go on."""
    names = {"table": table, "day": day, "next_day": day + timedelta(days=1)}
    in_rest = await database.fetchval(IN_REST.format(**names, limit=MAX_MOVED + 1))
    if in_rest > MAX_MOVED:
        return False
    return await _try(database, (MAKE + (MOVE if in_rest else "") + ATTACH).format(**names))


DROP = "DROP TABLE {table}_{day:%Y%m%d}"
# Rows for which there was no day: normally none.
DELETE_REST = """
DELETE FROM {table}_rest WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table}_rest WHERE at < $1::date LIMIT $2))
"""


async def _try(database: Database, statements: str) -> bool:
    """False when it is not to be had now: somebody holds a lock, or was quicker."""
    # Caught on the connection, before the pool takes a lock that is held for a database that is away.
    async with database.connection() as connection:
        try:
            async with connection.transaction():
                await connection.execute("SET LOCAL lock_timeout = '250ms'")
                await connection.execute(statements)
        except (
            asyncpg.LockNotAvailableError,
            asyncpg.DeadlockDetectedError,
            # A row for that day has just come into the rest.
            asyncpg.CheckViolationError,
            # Somebody else was quicker: a person at the database, or a replica that has just lost its lock with
            # its connection.
            asyncpg.DuplicateTableError,
            asyncpg.DuplicateObjectError,
            asyncpg.UndefinedTableError,
            asyncpg.UniqueViolationError,
            asyncpg.WrongObjectTypeError,
        ):
            return False
    return True
