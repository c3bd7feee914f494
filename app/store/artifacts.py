"""Artifacts: what is known of each, the small ones whole, the chunks of large ones, and the trash.

Bytes outside of `artifacts` are always listed in `artifact_trash` unless a row refers to them: an upload
enters its location there before the first byte and takes it out in the commit that makes it visible; replacing
or deleting puts it back. So no crash leaves bytes that nobody knows of.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import msgspec
import orjson

from app.errors import RateLimited
from app.store.changes import Changes
from app.store.database import Database, Runner, in_transaction
from app.store.events import NewEvent, append
from app.store.rows import as_row, columns


@dataclass(frozen=True, slots=True)
class NewArtifact:
    """An artifact about to become visible: its bytes are in `content`, in `data` or at `location`. PUT is sent the
    fields in this order."""

    job_id: str
    name: str
    content_type: str
    size: int
    etag: str
    content: str | None = None
    data: bytes | None = None
    location: str | None = None


# A job that has all the artifacts it may have keeps them.
FULL_RETRY_SECONDS = 60.0

LEASE = "SELECT lease_token = $3 AND state IN ('loading', 'working') FROM jobs WHERE id = $1 AND tenant = $2"


async def holds_lease(database: Database, job_id: str, tenant: str, lease_token: str) -> bool | None:
    """Whether this token is the current one; None when there is no such job."""
    rows = await database.fetch(LEASE, job_id, tenant, lease_token)
    return bool(rows[0][0]) if rows else None


BEGIN_UPLOAD = "INSERT INTO artifact_trash (location, due_at) VALUES ($1, now() + interval '1 day')"


async def begin_upload(database: Database, location: str) -> None:
    """Whatever becomes of it: in a day these bytes are removed, unless the upload was finished."""
    await database.execute(BEGIN_UPLOAD, location)


ABANDON_UPLOAD = "UPDATE artifact_trash SET due_at = now() WHERE location = $1"


async def abandon_upload(database: Database, location: str) -> None:
    await database.execute(ABANDON_UPLOAD, location)


# The one that is replaced goes into the trash, the new one comes out of it. The job's row is locked, and `before`
# is read from the snapshot: with a lock of its own it would skip the row that this statement changes.
PUT = """
WITH before AS (SELECT location FROM artifacts WHERE job_id = $1 AND name = $2)
, trashed AS (
    INSERT INTO artifact_trash (location) SELECT location FROM before WHERE location IS NOT NULL
)
, taken_out AS (DELETE FROM artifact_trash WHERE location = $8)
INSERT INTO artifacts (job_id, name, content_type, size, etag, content, data, location)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (job_id, name) DO UPDATE SET
    content_type = excluded.content_type, size = excluded.size, etag = excluded.etag,
    content = excluded.content, data = excluded.data, location = excluded.location, created_at = now()
RETURNING (SELECT count(*) FROM before) = 0 AS is_new
"""


COUNT = "SELECT count(*) FROM artifacts WHERE job_id = $1"


async def put(database: Database, artifact: NewArtifact, lease_token: str, most: int) -> Changes[bool]:
    """Make it visible, with a log entry that tells of it: so the job's seq, and its ETag, change too.

    Answers whether it is new or replaced one; nothing when the lease was lost. Raises RateLimited where the job would have
    more than `most`.
    """
    document = {"name": artifact.name, "content_type": artifact.content_type, "size": artifact.size}
    message = f"artifact {artifact.name} ({artifact.size} bytes)"
    told = orjson.dumps({"level": "info", "message": message, "artifact": document}).decode()

    async def steps(runner: Runner) -> Changes[bool]:
        # First, because it locks the job's row: two uploads of one job come one after the other.
        appended = await append(runner, [NewEvent(artifact.job_id, "log", told, lease_token)])
        if appended.answers[0] is None:
            return Changes()
        [row] = await runner.fetch(PUT, *astuple(artifact))
        if row["is_new"] and (await runner.fetch(COUNT, artifact.job_id))[0]["count"] > most:
            raise RateLimited(f"A job may have {most} artifacts.", retry_after=FULL_RETRY_SECONDS)
        return Changes([bool(row["is_new"])], jobs=appended.jobs, counts=appended.counts)

    return await in_transaction(database, steps)


class Artifact(msgspec.Struct, gc=False):
    """An artifact that was put. Its bytes are in `content`, in `data` or at `location`."""

    name: str
    content_type: str
    size: int
    etag: str | None
    content: str | None
    data: bytes | None
    location: str | None


GET = f"""
SELECT {columns(Artifact, "a")}
FROM artifacts a JOIN jobs j ON j.id = a.job_id
WHERE a.job_id = $1 AND a.name = $2 AND j.tenant = $3
"""


async def get(database: Database, job_id: str, name: str, tenant: str) -> Artifact | None:
    return as_row(Artifact, await database.of(tenant).fetchrow(GET, job_id, name, tenant))


ADD_CHUNK = "INSERT INTO artifact_chunks (upload_id, number, data) VALUES ($1, $2, $3)"
READ_CHUNK = """
SELECT substring(data FROM $3::int + 1 FOR $4::int) FROM artifact_chunks WHERE upload_id = $1 AND number = $2
"""
DELETE_CHUNKS = "DELETE FROM artifact_chunks WHERE upload_id = $1"


async def add_chunk(database: Database, upload_id: str, number: int, data: bytes) -> None:
    await database.execute(ADD_CHUNK, upload_id, number, data)


async def read_chunk(
    database: Database, upload_id: str, number: int, offset: int, length: int
) -> bytes | None:
    piece: bytes | None = await database.fetchval(READ_CHUNK, upload_id, number, offset, length)
    return piece


async def delete_chunks(database: Database, upload_id: str) -> None:
    await database.execute(DELETE_CHUNKS, upload_id)


DUE_TRASH = "SELECT location FROM artifact_trash WHERE due_at <= now() ORDER BY due_at LIMIT $1"
FORGET_TRASH = "DELETE FROM artifact_trash WHERE location = ANY ($1::text[])"
LATER_TRASH = (
    "UPDATE artifact_trash SET due_at = now() + interval '10 minutes' WHERE location = ANY ($1::text[])"
)


async def due_trash(database: Database, limit: int) -> list[str]:
    return [row["location"] for row in await database.fetch(DUE_TRASH, limit)]


async def forget_trash(database: Database, locations: Sequence[str]) -> None:
    if locations:
        await database.execute(FORGET_TRASH, list(locations))


async def keep_trash(database: Database, locations: Sequence[str]) -> None:
    """Could not be removed: later again, so that it does not stand in the way of the others."""
    if locations:
        await database.execute(LATER_TRASH, list(locations))
