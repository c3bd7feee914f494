"""Sessions of people who signed in to the dashboard: a cookie, kept as its SHA-256, that stands for an API key."""

import msgspec

from app.store.database import Database
from app.store.rows import as_row, columns

# Those that are over go with the next that comes.
ADD = """
WITH over AS (DELETE FROM sessions WHERE expires_at < now())
INSERT INTO sessions (hash, key_id, expires_at) VALUES ($1, $2, now() + $3::float8 * interval '1 second')
"""


async def add(database: Database, digest: bytes, key_id: str, seconds: float) -> None:
    await database.execute(ADD, digest, key_id, seconds)


class KnownSession(msgspec.Struct, gc=False):
    """By which key it was opened, and for how long it holds."""

    key_hash: bytes
    ends_in_seconds: float


_ENDS = "date_part('epoch', s.expires_at - clock_timestamp())"
FIND = f"""
SELECT {columns(KnownSession, key_hash="k.hash", ends_in_seconds=_ENDS)}
FROM sessions s JOIN api_keys k ON k.id = s.key_id WHERE s.hash = $1 AND s.expires_at > clock_timestamp()
"""


async def find(database: Database, digest: bytes) -> KnownSession | None:
    return as_row(KnownSession, await database.fetchrow(FIND, digest))


END = "DELETE FROM sessions WHERE hash = $1"


async def end(database: Database, digest: bytes) -> None:
    await database.execute(END, digest)
