"""Files that callers keep here, and those that batches leave. Their bytes lie where those of artifacts do.

As with artifacts, a location stands in the trash unless a row refers to it: see app/store/artifacts.py.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from app.store.database import Database, Runner, in_transaction
from app.store.rows import as_row, as_rows, columns


class File(msgspec.Struct, gc=False):
    """Its bytes are at `location`."""

    id: str
    tenant: str
    filename: str
    purpose: str
    size: int
    location: str
    created_at: datetime
    expires_at: datetime | None


class NewFile(msgspec.Struct, frozen=True, gc=False):
    """A file whose bytes are where they belong. ADD is sent the fields in this order."""

    id: str
    tenant: str
    filename: str
    purpose: str
    size: int
    location: str
    # None for one that is kept until somebody deletes it.
    keep_seconds: float | None


ADD = f"""
WITH taken_out AS (DELETE FROM artifact_trash WHERE location = $6)
INSERT INTO files (id, tenant, filename, purpose, size, location, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, now() + $7::float8 * interval '1 second')
RETURNING {columns(File)}
"""


async def add(runner: Runner, file: NewFile) -> File:
    """Make it visible, and keep its bytes out of the trash."""
    [row] = await runner.fetch(ADD, *msgspec.structs.astuple(file))
    return File(*row)


_IS_THERE = "(expires_at IS NULL OR expires_at > now())"
GET = f"SELECT {columns(File)} FROM files WHERE id = $1 AND tenant = $2 AND {_IS_THERE}"


async def get(database: Database, file_id: str, tenant: str) -> File | None:
    return as_row(File, await database.of(tenant).fetchrow(GET, file_id, tenant))


# Compared as pairs, so that the index of the tenant is the one that has the order.
_PAGE = f"""
SELECT {columns(File)} FROM files
WHERE tenant = $1 AND (tenant, id) {{beyond}} ($1, $2) AND ($3::text IS NULL OR purpose = $3) AND {_IS_THERE}
ORDER BY tenant {{order}}, id {{order}} LIMIT $4
"""
NEWEST_FIRST = _PAGE.format(beyond="<", order="DESC")
OLDEST_FIRST = _PAGE.format(beyond=">", order="ASC")


async def page(
    database: Database, tenant: str, purpose: str | None, after: str, limit: int, *, newest_first: bool
) -> list[File]:
    """Those that follow the one with the id `after`."""
    statement = NEWEST_FIRST if newest_first else OLDEST_FIRST
    return as_rows(File, await database.of(tenant).fetch(statement, tenant, after, purpose, limit))


# Held first, in a statement of its own: a batch that is being made of it has committed by then (it holds the row,
# too), and is seen by the next one.
HOLD = "SELECT id FROM files WHERE id = ANY ($1::text[]) AND tenant = $2 ORDER BY id FOR UPDATE"
HOLD_EXPIRED = """
SELECT id FROM files WHERE expires_at IS NOT NULL AND expires_at <= now()
  AND (SELECT true FROM batches WHERE input_file_id = files.id AND finalized_at IS NULL LIMIT 1) IS NULL
ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
"""
# What a batch still reads stays.
DELETE = """
WITH gone AS (
    DELETE FROM files WHERE id = ANY ($1::text[])
      AND (SELECT true FROM batches WHERE input_file_id = files.id AND finalized_at IS NULL LIMIT 1) IS NULL
    RETURNING id, location
)
, trashed AS (INSERT INTO artifact_trash (location) SELECT location FROM gone ON CONFLICT DO NOTHING)
SELECT id FROM gone
"""


async def delete(database: Database, file_id: str, tenant: str) -> bool | None:
    """Whether it is gone now; False while a batch still reads it, None when there is no such file."""

    async def steps(runner: Runner) -> bool | None:
        held = await runner.fetch(HOLD, [file_id], tenant)
        return bool(await _delete(runner, [row["id"] for row in held])) if held else None

    return await in_transaction(database, steps)


async def delete_expired(database: Database, limit: int) -> int:
    """How many of those whose time is over are gone now; what a batch still reads is left for later."""

    async def steps(runner: Runner) -> int:
        held = await runner.fetch(HOLD_EXPIRED, limit)
        return len(await _delete(runner, [row["id"] for row in held]))

    return await in_transaction(database, steps)


async def _delete(runner: Runner, held: Sequence[str]) -> list[str]:
    return [row["id"] for row in await runner.fetch(DELETE, held)] if held else []
