"""Schedules: periodic jobs. A tick and the job that it makes are one commit, so each tick makes one job."""

from dataclasses import dataclass
from datetime import datetime

import asyncpg

from app.jobs.cron import next_tick
from app.store.changes import Changes
from app.store.database import Database, Runner
from app.store.tables import Schedule, columns_of

NOW = "SELECT now() AS now"
_COLUMNS = columns_of(Schedule)

# The tick to come stays when neither the expression nor the zone changes.
PUT = f"""
INSERT INTO schedules AS s (name, tenant, cron, timezone, job, next_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE SET
    cron = excluded.cron, timezone = excluded.timezone, job = excluded.job, updated_at = now(),
    next_at = CASE WHEN s.cron = excluded.cron AND s.timezone = excluded.timezone THEN s.next_at
                   ELSE excluded.next_at END
WHERE s.tenant = excluded.tenant
RETURNING {columns_of(Schedule, "s")}, xmax = 0 AS created
"""


async def put(
    database: Database, name: str, tenant: str, cron: str, timezone: str, job: str
) -> Changes[asyncpg.Record]:
    """Make or change a schedule; answers it as it is, nothing when the name is another tenant's."""
    now: datetime = (await database.fetch(NOW))[0]["now"]
    following = next_tick(cron, timezone, now)
    return Changes(await database.fetch(PUT, name, tenant, cron, timezone, job, following), schedules=True)


LIST = f"""
SELECT {_COLUMNS} FROM schedules WHERE tenant = $1 AND ($2::text IS NULL OR name = $2) ORDER BY name LIMIT 1000
"""


async def list_schedules(database: Database, tenant: str, name: str | None = None) -> list[asyncpg.Record]:
    return await database.fetch(LIST, tenant, name)


DELETE = "DELETE FROM schedules WHERE tenant = $1 AND name = $2 RETURNING name"


async def delete(database: Database, tenant: str, name: str) -> bool:
    return await database.fetchval(DELETE, tenant, name) is not None


# The row is held until its job is committed with it. Others skip it, and find it moved on.
DUE = f"""
SELECT {_COLUMNS}, clock_timestamp() AS now FROM schedules WHERE next_at <= now()
ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED
"""


async def take_due(connection: Runner) -> asyncpg.Record | None:
    """The schedule that is due longest, held by this transaction."""
    rows = await connection.fetch(DUE)
    return rows[0] if rows else None


@dataclass(frozen=True, slots=True)
class Ticked:
    """What came of the last tick."""

    at: datetime
    outcome: str
    job_id: str | None = None
    error: str | None = None


MOVE_ON = """
UPDATE schedules SET next_at = $2, last_at = $3, last_outcome = $4, last_job_id = coalesce($5, last_job_id), last_error = $6
WHERE name = $1
"""


async def move_on(connection: Runner, name: str, following: datetime, ticked: Ticked) -> None:
    await connection.execute(MOVE_ON, name, following, ticked.at, ticked.outcome, ticked.job_id, ticked.error)


NEXT = "SELECT extract(epoch FROM min(next_at) - now())::float8 AS seconds FROM schedules"


async def seconds_until_next(database: Database) -> float | None:
    return (await database.fetch(NEXT))[0]["seconds"]  # type: ignore[no-any-return]
