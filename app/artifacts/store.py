"""Where artifacts lie. A location says by itself where that is, so the place can be changed at any time.

    postgres:<upload id>                       chunks in the database
    file:///var/lib/foreman/<job>/<upload>…    a file
    s3://bucket/prefix/<job>/<upload>…         an object

Nothing is ever overwritten: each upload has a location of its own.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Protocol

import structlog

from app.artifacts.bucket import Bucket
from app.artifacts.chunks import Chunks
from app.errors import Unavailable
from app.jobs.ids import new_id
from app.store.database import Database

log = structlog.get_logger()

POSTGRES = "postgres"
# <job id>/<upload id>-<name>
_KEY_PARTS = 2


class Place(Protocol):
    """Somewhere to put bytes. Raises Unavailable when it cannot be reached, NotFound when they are gone."""

    async def write(self, key: str, chunks: AsyncIterator[bytes]) -> None: ...

    def read(self, key: str, start: int, length: int) -> AsyncIterator[bytes]: ...

    async def delete(self, key: str) -> None:
        """Also fine when there is nothing."""


class ArtifactStore:
    """Writes to the configured place, reads and deletes wherever a location points."""

    def __init__(self, database: Database, url: str | None) -> None:
        self._url = None if url is None else url.rstrip("/")
        self._chunks = Chunks(database)
        self._buckets: dict[str, Bucket] = {}

    @property
    def in_database(self) -> bool:
        return self._url is None

    def new_location(self, job_id: str, name: str) -> str:
        if self._url is None:
            return f"{POSTGRES}:{new_id()}"
        return f"{self._url}/{job_id}/{new_id()}-{name}"

    async def write(self, location: str, chunks: AsyncIterator[bytes]) -> None:
        place, key = self._find(location)
        await place.write(key, chunks)

    def read(self, location: str, start: int, length: int) -> AsyncIterator[bytes]:
        place, key = self._find(location)
        return place.read(key, start, length)

    async def delete(self, locations: Iterable[str]) -> list[str]:
        """Those that are gone now; the others are to be tried again."""
        gone = []
        for location in locations:
            try:
                place, key = self._find(location)
                await place.delete(key)
                gone.append(location)
            except Unavailable as problem:
                log.warning("artifacts.not_deleted", location=location, problem=problem.detail)
        return gone

    def _find(self, location: str) -> tuple[Place, str]:
        if location.startswith(f"{POSTGRES}:"):
            return self._chunks, location.removeprefix(f"{POSTGRES}:")
        parts = location.rsplit("/", _KEY_PARTS)
        base, key = parts[0], "/".join(parts[1:])
        bucket = self._buckets.get(base)
        if bucket is None:
            bucket = self._buckets[base] = Bucket(base)
        return bucket, key
