"""Reading logs together: whoever is woken at the same moment is answered by one query.

A restart brings thousands of readers back at once, and an event wakes everyone who follows its job. Their
wishes are gathered (natural batching), equal ones are asked once, and no more than two connections of the
pool are ever taken up by reading.
"""

from collections.abc import Sequence

from app.loops.batcher import Batcher
from app.store.database import Database
from app.store.events import Page, Want, read_pages
from app.telemetry import LOG_READERS_PER_QUERY

IN_FLIGHT = 2
# What one query may bring into memory at the most, and for how many readers.
MAX_BYTES = 8 * 1024 * 1024
MAX_READERS = 250


class LogReader:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._batcher: Batcher[Want, Page | None] = Batcher(
            "log", self._flush, max_weight=MAX_BYTES, weight=_weight, in_flight=IN_FLIGHT
        )

    async def read(self, want: Want) -> Page | None:
        """The next page; None when there is no such job. Raises Unavailable when the database is away."""
        return await self._batcher.put(want)

    async def _flush(self, wants: Sequence[Want]) -> list[Page | Exception | None]:
        different = list(dict.fromkeys(wants))
        LOG_READERS_PER_QUERY.observe(len(wants))
        pages = dict(zip(different, await read_pages(self._database, different), strict=True))
        return [pages[want] for want in wants]


def _weight(want: Want) -> int:
    return max(want.max_bytes, MAX_BYTES // MAX_READERS)
