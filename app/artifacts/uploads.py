"""Bytes on their way to where they will lie: listed in the trash until a row refers to them."""

import contextlib
from collections.abc import AsyncIterator

from app.artifacts.store import ArtifactStore
from app.errors import Unavailable
from app.store import artifacts
from app.store.database import Database


async def upload(
    database: Database, store: ArtifactStore, location: str, chunks: AsyncIterator[bytes]
) -> None:
    """What was written is removed in a day, unless a commit takes the location out of the trash; and at once
    where it could not all be written."""
    await artifacts.begin_upload(database, location)
    try:
        await store.write(location, chunks)
    except BaseException:
        await abandon(database, location)
        raise


async def abandon(database: Database, location: str) -> None:
    """Nobody wants these bytes after all."""
    with contextlib.suppress(Unavailable):
        await artifacts.abandon_upload(database, location)
