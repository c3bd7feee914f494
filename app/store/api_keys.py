"""API keys: kept as their SHA-256, found by it."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

import msgspec
import orjson

from app.jobs.ids import new_id
from app.store import locks
from app.store.database import Database, Runner, in_transaction
from app.store.rows import columns


class ApiKey(msgspec.Struct, gc=False):
    """A key, without what it is recognised by. `limits` is JSON text."""

    id: str
    tenant: str
    name: str
    scopes: list[str]
    limits: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


class KnownKey(msgspec.Struct, gc=False):
    """What it takes to let somebody in."""

    id: str
    tenant: str
    name: str
    scopes: list[str]
    limits: str
    # From now on; below zero when it has expired.
    expires_in_seconds: float | None
    revoked: bool


_LIMITS = "limits::text"
_ENDS = "date_part('epoch', expires_at - clock_timestamp())"
FIND = f"""
SELECT k.hash, {columns(KnownKey, "k", limits=f"k.{_LIMITS}", expires_in_seconds=_ENDS, revoked="revoked_at IS NOT NULL")}
FROM unnest($1::bytea[]) AS wanted (hash)
CROSS JOIN LATERAL (SELECT * FROM api_keys WHERE hash = wanted.hash LIMIT 1) AS k
"""


async def find(database: Database, hashes: Collection[bytes]) -> dict[bytes, KnownKey]:
    """By their hashes, those that there are."""
    found = await database.fetch(FIND, list(hashes))
    return {row["hash"]: KnownKey(*row[1:]) for row in found}


# A key in use is written down once a minute, by whoever comes first; nobody waits for another who does the same.
NOTE_USE = """
UPDATE api_keys SET last_used_at = now() WHERE id = ANY (ARRAY(
    SELECT id FROM api_keys
    WHERE id = ANY ($1::text[]) AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')
    ORDER BY id FOR UPDATE SKIP LOCKED
))
"""


async def note_use(database: Database, key_ids: Collection[str]) -> None:
    await database.execute(NOTE_USE, list(key_ids))


KNOW_TENANT = "INSERT INTO tenants (name) VALUES ($1) ON CONFLICT DO NOTHING"
ADD = f"""
INSERT INTO api_keys (id, tenant, name, hash, scopes, limits, expires_at)
VALUES ($1, $2, $3, $4, $5, $6::jsonb, now() + $7::float8 * interval '1 second')
ON CONFLICT (hash) DO NOTHING
RETURNING {columns(ApiKey, limits=_LIMITS)}
"""


class NewKey(msgspec.Struct):
    """`limits` is JSON text; without a lifetime it holds until it is revoked."""

    tenant: str
    name: str
    hash: bytes
    scopes: Sequence[str]
    limits: str = "{}"
    lifetime_seconds: float | None = None


async def add(database: Runner, key: NewKey) -> ApiKey | None:
    """Nothing where that very key is there already, or was."""

    async def steps(connection: Runner) -> list[Any]:
        await connection.execute(KNOW_TENANT, key.tenant)
        return await connection.fetch(
            ADD,
            new_id(),
            key.tenant,
            key.name,
            key.hash,
            list(key.scopes),
            key.limits,
            key.lifetime_seconds,
        )

    rows = await in_transaction(database, steps)
    return ApiKey(*rows[0]) if rows else None


LIST = f"""
SELECT {columns(ApiKey, limits=_LIMITS)} FROM api_keys
WHERE id < $1 AND revoked_at IS NULL AND ($2::text IS NULL OR tenant = $2) ORDER BY id DESC LIMIT $3
"""


async def list_keys(database: Database, before: str, tenant: str | None, limit: int) -> list[ApiKey]:
    """Newest first."""
    return [ApiKey(*row) for row in await database.fetch(LIST, before, tenant, limit)]


GET = f"SELECT {columns(ApiKey, limits=_LIMITS)} FROM api_keys WHERE id = $1 AND revoked_at IS NULL"


async def get(database: Database, key_id: str) -> ApiKey | None:
    rows = await database.fetch(GET, key_id)
    return ApiKey(*rows[0]) if rows else None


REVOKE = """
WITH uncounted AS (DELETE FROM key_jobs WHERE key_id = $1)
UPDATE api_keys SET revoked_at = now() WHERE id = $1 AND revoked_at IS NULL RETURNING id
"""


async def revoke(database: Database, key_id: str) -> bool:
    return await database.fetchval(REVOKE, key_id) is not None


ANY = "SELECT true FROM api_keys WHERE revoked_at IS NULL LIMIT 1"


async def add_first(database: Database, key: NewKey, tell: Callable[[ApiKey], None]) -> ApiKey | None:
    """The first key of all, told before it is committed: nothing where there is any already. Two servers that start
    together make one."""
    async with database.transaction() as connection:
        await locks.lock(connection, {locks.FIRST_KEY: True})
        if await connection.fetch(ANY):
            return None
        made = await add(connection, key)
        if made is not None:
            tell(made)
        return made


def limits_text(limits: object) -> str:
    return orjson.dumps(msgspec.to_builtins(limits)).decode()


SUBMITTERS = """
SELECT j.id, k.name FROM jobs j CROSS JOIN LATERAL (SELECT name FROM api_keys WHERE id = j.key_id LIMIT 1) AS k
WHERE j.id = ANY ($1::text[]) AND j.tenant = $2
"""


async def submitters(database: Database, job_ids: Sequence[str], tenant: str) -> dict[str, str]:
    """The names of the keys that submitted these jobs, by job; where that is not known, it is missing."""
    return {row["id"]: row["name"] for row in await database.fetch(SUBMITTERS, list(job_ids), tenant)}
