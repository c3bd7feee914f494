"""Tables in daily partitions: days are made ahead and dropped whole, so that old rows cost nothing to remove.

Some go by the moment of the row: what runs say, and announcements. A day of those is dropped when it is old enough.
Others go by the day of the job, which its id tells (`events`, `deliveries`): a job's rows stay together however long it
lives, and a day of those is dropped when its jobs are gone. Long before that, most of them are: when few are left, their
rows move to the rest in the transaction that drops the day, and go with their jobs from there.

A day is made beside its table and then attached, and everything gives up quickly when somebody holds a lock:
to wait would make everyone else queue up behind us. What could not be done is done in the next round.

A machine that slept through all the days that were made ahead wakes up on one that has none. What is written then goes
to the rest, and moves into its day when that is made.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import asyncpg

from app.jobs.ids import id_floor
from app.store import locks
from app.store.database import Database
from app.store.tables import METADATA

DAYS_AHEAD = 3
REST_BATCH = 5000
REST_BATCHES = 20
# Moved out of the rest at once, under a lock; a day that has more there stays there until it is over.
MAX_MOVED = 50_000
# Which go by their jobs, and after how many days it is worth looking whether those are gone.
OF_JOBS = ("events", "deliveries")
JOB_DAYS = 1
# Moved into the rest at once, while nobody can read or write the table; a day that has more is left for later.
MAX_JOBS_LEFT = 1_000
MAX_ROWS_LEFT = 10_000
# Longer than jobs are usually kept. A day that is older and still has more than that left, because some queue keeps its
# jobs for ever, is not waited for: what belongs to no job any more is deleted from it, row by row.
CROWDED_DAYS = 35
SWEEP_BATCH = 5_000

ONE_AT_A_TIME = locks.try_lock(locks.RENEW_PARTITIONS)
TODAY = "SELECT (now() AT TIME ZONE 'UTC')::date"
DAYS = """
SELECT c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bounds
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = $1::regclass AND c.relname <> $1 || '_rest' ORDER BY c.relname
"""
# The first one of a table may have no lower bound: it has all that was there before there were days.
_BOUNDS = re.compile(r"FROM \((?:MINVALUE|'(?P<first>[^']+)')\) TO \('(?P<end>[^']+)'\)")


@dataclass(slots=True)
class Renewal:
    """What became of one table's days."""

    made: list[date] = field(default_factory=list)
    dropped: list[date] = field(default_factory=list)
    # Days that somebody's lock, or too many rows in the rest, kept us from making or dropping.
    postponed: list[date] = field(default_factory=list)
    # Partitions that will not be dropped soon: see `sweep`.
    crowded: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Day:
    """A partition: the day by which it is called (its last, if it has several), and the values that are in it."""

    name: str
    day: date
    first: str
    end: str


async def renew(database: Database, table: str, keep_days: int) -> Renewal | None:
    """Make the days to come and drop those that are over; None when another replica is at it. Where days go by their
    jobs, those that are older than `keep_days` are dropped as soon as their jobs are gone."""
    # The lock lives as long as this transaction, which itself touches nothing: each day is made or dropped in one
    # of its own, so that a table's lock is given back at once.
    async with database.transaction() as connection:
        if not await connection.fetchval(ONE_AT_A_TIME):
            return None
        today: date = await connection.fetchval(TODAY)
        days = [_known(row["name"], row["bounds"]) for row in await connection.fetch(DAYS, table)]
        return await _renew(database, table, days, today, keep_days)


def _known(name: str, bounds: str) -> _Day:
    found = _BOUNDS.search(bounds)
    if found is None:
        raise ValueError(f"{name} is no day: {bounds}")
    day = datetime.strptime(name[-8:], "%Y%m%d").date()  # noqa: DTZ007 - the name of a day, in UTC like all of them
    return _Day(name, day, found["first"] or "", found["end"])


async def _renew(
    database: Database, table: str, days: Sequence[_Day], today: date, keep_days: int
) -> Renewal:
    renewal = Renewal()
    oldest = today - timedelta(days=keep_days)
    for day in (today + timedelta(days=n) for n in range(DAYS_AHEAD + 1)):
        if not _is_made(table, day, days):
            (renewal.made if await _make(database, table, day) else renewal.postponed).append(day)
    for each in days:
        if each.day >= oldest:
            continue
        if table not in OF_JOBS or await _few_are_left(database, each):
            (renewal.dropped if await _drop(database, table, each) else renewal.postponed).append(each.day)
        elif each.day < today - timedelta(days=CROWDED_DAYS):
            renewal.crowded.append(each.name)
    if table not in OF_JOBS:
        await _delete_rest(database, table, oldest)
    return renewal


def _is_made(table: str, day: date, days: Sequence[_Day]) -> bool:
    """By its name; or it is one of the many that the first partition of its table has."""
    first = _bound(table, day)
    return any(each.day == day or (not each.first and first < each.end) for each in days)


def _bound(table: str, day: date) -> str:
    """The first value of a day."""
    if table in OF_JOBS:
        return id_floor(datetime(day.year, day.month, day.day, tzinfo=UTC))
    return f"{day}Z"


MAKE = "CREATE TABLE IF NOT EXISTS {table}_{day:%Y%m%d} (LIKE {table} INCLUDING ALL);"
ATTACH = "ALTER TABLE {table} ATTACH PARTITION {table}_{day:%Y%m%d} FOR VALUES FROM ('{first}') TO ('{end}')"
IN_REST = """
SELECT count(*) FROM (SELECT 1 FROM {table}_rest WHERE {key} >= '{first}' AND {key} < '{end}' LIMIT {limit}) AS rows
"""
# Under the lock that attaching takes anyway: nothing may come into the rest in between.
MOVE = """
LOCK TABLE {table}_rest IN ACCESS EXCLUSIVE MODE;
WITH moved AS (DELETE FROM {table}_rest WHERE {key} >= '{first}' AND {key} < '{end}' RETURNING {columns})
INSERT INTO {table}_{day:%Y%m%d} ({columns}) SELECT {columns} FROM moved;
"""


async def _make(database: Database, table: str, day: date) -> bool:
    """Attaching, unlike creating in place, lets reads and writes of the table go on."""
    names = {
        "table": table,
        "day": day,
        "key": "job_id" if table in OF_JOBS else "at",
        "first": _bound(table, day),
        "end": _bound(table, day + timedelta(days=1)),
        "columns": _columns(table),
    }
    in_rest = await database.fetchval(IN_REST.format(**names, limit=MAX_MOVED + 1))
    if in_rest > MAX_MOVED:
        return False
    return await _try(database, (MAKE + (MOVE if in_rest else "") + ATTACH).format(**names))


def _columns(table: str) -> str:
    """By name: a partition that was a table of its own once may have them in another order."""
    return ", ".join(METADATA.tables[table].columns.keys())


# A day without a row is of no use, whatever jobs it had: most leave nothing but a line in their own row.
IS_EMPTY = "SELECT NOT EXISTS (SELECT 1 FROM {name})"
JOBS_LEFT = """
SELECT count(*) FROM (SELECT 1 FROM jobs WHERE id >= $1 AND id < $2 ORDER BY id LIMIT $3) AS jobs
"""
ROWS_LEFT = """
SELECT count(*) FROM (
    SELECT 1 FROM (SELECT id FROM jobs WHERE id >= $1 AND id < $2 ORDER BY id OFFSET 0) AS job
    CROSS JOIN LATERAL (SELECT FROM {name} WHERE job_id = job.id LIMIT $3) AS kept
    LIMIT $3
) AS rows
"""


async def _few_are_left(database: Database, day: _Day) -> bool:
    """Whether what must not go with the day is little enough to be moved."""
    if await database.fetchval(IS_EMPTY.format(name=day.name)):
        return True
    jobs = await database.fetchval(JOBS_LEFT, day.first, day.end, MAX_JOBS_LEFT + 1)
    if jobs == 0 or jobs > MAX_JOBS_LEFT:
        return bool(jobs == 0)
    rows = await database.fetchval(ROWS_LEFT.format(name=day.name), day.first, day.end, MAX_ROWS_LEFT + 1)
    return bool(rows <= MAX_ROWS_LEFT)


DROP = "DROP TABLE {name}"
# What is left is looked for once more, now that nobody can add to it. Rows of jobs that retention has removed stay.
DROP_BUT_KEEP = """
ALTER TABLE {table} DETACH PARTITION {name};
INSERT INTO {table}_rest ({columns})
SELECT {columns} FROM (SELECT id FROM jobs WHERE id >= '{first}' AND id < '{end}' ORDER BY id OFFSET 0) AS job
CROSS JOIN LATERAL (SELECT {columns} FROM {name} WHERE job_id = job.id OFFSET 0) AS kept;
DROP TABLE {name};
"""


async def _drop(database: Database, table: str, day: _Day) -> bool:
    statements = DROP_BUT_KEEP if table in OF_JOBS else DROP
    names = {"table": table, "name": day.name, "first": day.first, "end": day.end}
    return await _try(database, statements.format(**names, columns=_columns(table)))


SWEEP = """
WITH seen AS MATERIALIZED (
    SELECT job_id, seq FROM {name} WHERE (job_id, seq) > ($1, $2::int) ORDER BY job_id, seq LIMIT $3
)
, gone AS (
    DELETE FROM {name} WHERE job_id = ANY (ARRAY(
        SELECT DISTINCT job_id FROM seen WHERE (SELECT true FROM jobs WHERE id = seen.job_id) IS NULL
    ))
)
SELECT job_id, seq FROM seen ORDER BY job_id DESC, seq DESC LIMIT 1
"""


async def sweep(database: Database, name: str, after: tuple[str, int]) -> tuple[str, int] | None:
    """Look at the next rows of a crowded day and delete those of jobs that are gone; where to go on from, or None when
    that was all, or the day itself is gone."""
    try:
        row = await database.fetchrow(SWEEP.format(name=name), *after, SWEEP_BATCH)
    except asyncpg.UndefinedTableError:
        return None
    return None if row is None else (row["job_id"], row["seq"])


# Rows for which there was no day: normally none.
DELETE_REST = """
DELETE FROM {table}_rest WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table}_rest WHERE at < $1::date LIMIT $2))
"""


async def _delete_rest(database: Database, table: str, oldest: date) -> None:
    for _ in range(REST_BATCHES):
        deleted = await database.execute(DELETE_REST.format(table=table), oldest, REST_BATCH)
        if deleted != f"DELETE {REST_BATCH}":
            break


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
