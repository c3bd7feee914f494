"""Artifacts in a folder or an S3-compatible bucket, by way of obstore.

Credentials, region and endpoint of a bucket come from the usual AWS_* variables or the machine's role, as for
every other program that talks to S3.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, S3Store

from app.errors import NotFound, Unavailable

SCHEMES = frozenset({"file", "s3"})
RETRY_AFTER_SECONDS = 5.0
# An upload in parts: what is in memory at a time.
PART_BYTES = 5 * 1024 * 1024
PARTS_IN_FLIGHT = 2
PIECE_BYTES = 256 * 1024


class Bucket:
    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: ObjectStore | None = None
        parts = urlsplit(url)
        self._folder = Path(unquote(parts.path)) if parts.scheme == "file" else None

    async def write(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        with translated():
            if self._folder is not None:
                # Before: nobody else may look into the folder while the file is being written.
                await asyncio.to_thread(_make_private, self._folder, self._folder / key)
            await obstore.put_async(
                self._store, key, chunks, chunk_size=PART_BYTES, max_concurrency=PARTS_IN_FLIGHT
            )
            if self._folder is not None:
                await asyncio.to_thread(_make_private, self._folder, self._folder / key)

    async def read(self, key: str, start: int, length: int) -> AsyncIterator[bytes]:
        if length == 0:
            return
        with translated():
            found = await obstore.get_async(self._store, key, options={"range": (start, start + length)})
            async for piece in found.stream(min_chunk_size=PIECE_BYTES):
                yield bytes(piece)

    async def delete(self, key: str) -> None:
        with translated(), suppress(FileNotFoundError):
            await obstore.delete_async(self._store, key)

    @property
    def _store(self) -> ObjectStore:
        # Only when it is needed: a folder that cannot be made shall not keep the server from starting.
        if self._opened is None:
            self._opened = _open(self._url)
        return self._opened


def _make_private(root: Path, file: Path) -> None:
    """The file, if it is there, and the folders that lead to it: for the server's own user alone."""
    if not root.exists():
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    # Whoever deletes the last artifact of a job removes its folder; then it is made anew, not by us.
    file.parent.chmod(0o700)
    with suppress(FileNotFoundError):
        file.chmod(0o600)


def _open(url: str) -> ObjectStore:
    parts = urlsplit(url)
    if parts.scheme == "file":
        return LocalStore(Path(unquote(parts.path)), automatic_cleanup=True, mkdir=True)
    # Path style and plain HTTP are what stores other than Amazon's are often reached by.
    return S3Store(parts.netloc, prefix=parts.path.strip("/") or None, client_options={"allow_http": True})


@contextmanager
def translated() -> Iterator[None]:
    """Turn the store's troubles into ours."""
    try:
        yield
    except FileNotFoundError as problem:
        raise NotFound("The artifact was replaced or deleted.") from problem
    except (BaseError, OSError) as problem:
        raise Unavailable(
            f"The artifact store is not reachable: {type(problem).__name__}.", retry_after=RETRY_AFTER_SECONDS
        ) from problem
