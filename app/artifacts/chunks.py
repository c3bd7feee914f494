"""Artifacts in PostgreSQL: rows of a quarter megabyte, written and read one by one.

No connection is held while the other side is slow.
"""

from collections.abc import AsyncIterator

from app.errors import NotFound
from app.store.artifacts import add_chunk, delete_chunks, read_chunk
from app.store.database import Database

CHUNK_BYTES = 256 * 1024


class Chunks:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        number = 0
        pending = bytearray()
        async for chunk in chunks:
            pending += chunk
            while len(pending) >= CHUNK_BYTES:
                await add_chunk(self._database, key, number, bytes(pending[:CHUNK_BYTES]))
                del pending[:CHUNK_BYTES]
                number += 1
        if pending:
            await add_chunk(self._database, key, number, bytes(pending))

    async def read(self, key: str, start: int, length: int) -> AsyncIterator[bytes]:
        end = start + length
        while start < end:
            number, offset = divmod(start, CHUNK_BYTES)
            piece = await read_chunk(
                self._database, key, number, offset, min(end - start, CHUNK_BYTES - offset)
            )
            if not piece:
                raise NotFound("The artifact was replaced or deleted.")
            start += len(piece)
            yield piece

    async def delete(self, key: str) -> None:
        await delete_chunks(self._database, key)
