"""Asks now and then whether the database's disk has room, so that /readyz knows."""

import contextlib

from app.errors import Unavailable
from app.loops.loop import Loop
from app.store.database import Database
from app.store.disk_space import ask_for_space

ASK_SECONDS = 10.0
ASK_AGAIN_SECONDS = 1.0


class DiskWatch(Loop):
    def __init__(self, database: Database) -> None:
        self._database = database
        super().__init__("disk-watch", self._ask, interval=ASK_SECONDS)

    async def _ask(self) -> float | None:
        # Whatever is the matter, the database's own outage has told it.
        with contextlib.suppress(Unavailable):
            await ask_for_space(self._database)
        return ASK_AGAIN_SECONDS if self._database.outage.cause else None
