"""Schedules: periodic jobs. A tick and the job that it makes are one commit, so each tick makes one job."""

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec

from app.jobs.cron import next_tick
from app.jobs.tenants import scoped, unscoped
from app.store.changes import Changes
from app.store.database import Database, Runner, in_transaction
from app.store.rows import arrays, as_rows, columns

# How many ticks of each schedule are remembered.
KEPT_TICKS = 10


class Schedule(msgspec.Struct, gc=False):
    """A periodic job. `job` is a submission as it was sent; `next_at` is the tick to come. `name` is as it is kept."""

    name: str
    tenant: str
    cron: str
    timezone: str
    job: str
    next_at: datetime
    last_at: datetime | None
    last_job_id: str | None
    last_outcome: str | None
    last_error: str | None
    created_at: datetime
    updated_at: datetime

    @property
    def own_name(self) -> str:
        """As its tenant knows it."""
        return unscoped(self.tenant, self.name)


class DueSchedule(Schedule, gc=False):
    """One whose tick has come, and the moment at which that was found out."""

    now: datetime


NOW = "SELECT now() AS now"

# The tick to come stays when neither the expression nor the zone changes.
PUT = f"""
INSERT INTO schedules AS s (name, tenant, cron, timezone, job, next_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE SET
    cron = excluded.cron, timezone = excluded.timezone, job = excluded.job, updated_at = now(),
    next_at = CASE WHEN s.cron = excluded.cron AND s.timezone = excluded.timezone THEN s.next_at
                   ELSE excluded.next_at END
WHERE s.tenant = excluded.tenant
RETURNING {columns(Schedule, "s")}, xmax = 0 AS created
"""


async def put(
    database: Database, name: str, tenant: str, cron: str, timezone: str, job: str
) -> Changes[tuple[Schedule, bool]]:
    """Make or change a schedule; answers it and whether it is new."""
    now: datetime = (await database.fetch(NOW))[0]["now"]
    following = next_tick(cron, timezone, now)
    records = await database.fetch(PUT, scoped(tenant, name), tenant, cron, timezone, job, following)
    return Changes([(Schedule(*record[:-1]), record["created"]) for record in records], schedules=True)


LIST = f"""
SELECT {columns(Schedule)} FROM schedules WHERE tenant = $1 AND ($2::text IS NULL OR name = $2) ORDER BY name LIMIT 1000
"""


async def list_schedules(database: Database, tenant: str, name: str | None = None) -> list[Schedule]:
    kept = None if name is None else scoped(tenant, name)
    return as_rows(Schedule, await database.of(tenant).fetch(LIST, tenant, kept))


NAMES = "SELECT name FROM schedules WHERE tenant = $1 ORDER BY name"


async def schedule_names(database: Database, tenant: str) -> list[str]:
    """Of all of them, as their tenant knows them, in the order in which they are listed."""
    rows = await database.of(tenant).fetch(NAMES, tenant)
    return [unscoped(tenant, row["name"]) for row in rows]


NAMED = f"""
SELECT {columns(Schedule)} FROM schedules WHERE tenant = $1 AND name = ANY ($2::text[]) ORDER BY name
"""


async def schedules_named(database: Database, tenant: str, names: Sequence[str]) -> list[Schedule]:
    kept = [scoped(tenant, name) for name in names]
    return as_rows(Schedule, await database.of(tenant).fetch(NAMED, tenant, kept))


class Ticked(msgspec.Struct, frozen=True, gc=False):
    """What came of a tick."""

    at: datetime
    outcome: str
    job_id: str | None = None
    error: str | None = None


LAST_TICKS = f"""
SELECT wanted.name, {columns(Ticked, "tick")} FROM unnest($1::text[]) AS wanted (name)
CROSS JOIN LATERAL (
    SELECT {columns(Ticked)} FROM schedule_ticks WHERE name = wanted.name ORDER BY at DESC LIMIT {KEPT_TICKS}
) AS tick
"""


async def last_ticks(database: Database, names: Collection[str]) -> dict[str, list[Ticked]]:
    """By the names of schedules as they are kept, newest first: the names were read behind the fence of their tenant,
    ticks have none."""
    ticks: dict[str, list[Ticked]] = {name: [] for name in names}
    for record in await database.fetch(LAST_TICKS, list(ticks)):
        ticks[record["name"]].append(Ticked(*record[1:]))
    for each in ticks.values():
        each.sort(key=lambda tick: tick.at, reverse=True)
    return ticks


DELETE = "DELETE FROM schedules WHERE tenant = $1 AND name = $2 RETURNING name"
# After that, in a statement of its own: it may have waited for a tick that was just being written.
DELETE_TICKS = "DELETE FROM schedule_ticks WHERE name = $1"


async def delete(database: Database, tenant: str, name: str) -> bool:
    kept = scoped(tenant, name)

    async def steps(connection: Runner) -> bool:
        if not await connection.fetch(DELETE, tenant, kept):
            return False
        await connection.execute(DELETE_TICKS, kept)
        return True

    return await in_transaction(database, steps)


# The row is held until its job is committed with it. Others skip it, and find it moved on.
DUE = f"""
SELECT {columns(DueSchedule, now="clock_timestamp()")} FROM schedules WHERE next_at <= now()
ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED
"""


async def take_due(connection: Runner) -> DueSchedule | None:
    """The schedule that is due longest, held by this transaction."""
    found = as_rows(DueSchedule, await connection.fetch(DUE))
    return found[0] if found else None


# The ticks that are there already make room for the new ones, which this statement does not see yet.
MOVE_ON = f"""
WITH moved AS (
    UPDATE schedules SET
        next_at = $2, last_at = $3, last_outcome = $4, last_job_id = coalesce($5, last_job_id), last_error = $6
    WHERE name = $1
)
, forgotten AS (
    DELETE FROM schedule_ticks WHERE name = $1 AND at <> ALL ($7::timestamptz[]) AND at <= (
        SELECT at FROM schedule_ticks WHERE name = $1 AND at <> ALL ($7::timestamptz[])
        ORDER BY at DESC OFFSET {KEPT_TICKS} - cardinality($7::timestamptz[]) LIMIT 1
    )
)
INSERT INTO schedule_ticks (name, at, outcome, job_id, error)
SELECT $1, new.* FROM unnest($7::timestamptz[], $8::text[], $9::text[], $10::text[]) AS new (at, outcome, job_id, error)
ON CONFLICT (name, at) DO UPDATE SET outcome = excluded.outcome, job_id = excluded.job_id, error = excluded.error
"""


async def move_on(connection: Runner, name: str, following: datetime, ticks: Sequence[Ticked]) -> None:
    """On to the next tick, with what came of one or more just now."""
    last = ticks[-1]
    kept = arrays(ticks[-KEPT_TICKS:], "at", "outcome", "job_id", "error")
    await connection.execute(MOVE_ON, name, following, last.at, last.outcome, last.job_id, last.error, *kept)


NEXT = "SELECT extract(epoch FROM min(next_at) - now())::float8 AS seconds FROM schedules"


async def seconds_until_next(database: Database) -> float | None:
    return (await database.fetch(NEXT))[0]["seconds"]  # type: ignore[no-any-return]
