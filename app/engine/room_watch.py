"""The room watch: asks now and then whether the database's disk has room, so that /readyz knows."""

import contextlib

from app.errors import Unavailable
from app.loops.loop import Loop
from app.store.database import Database
from app.store.room import ask_for_room

ASK_SECONDS = 10.0
ASK_AGAIN_SECONDS = 1.0


class RoomWatch(Loop):
    def __init__(self, database: Database) -> None:
        self._database = database
        super().__init__("room-watch", self._ask, interval=ASK_SECONDS)

    async def _ask(self) -> float | None:
        # Whatever is the matter, the database's own outage has told it.
        with contextlib.suppress(Unavailable):
            await ask_for_room(self._database)
        return ASK_AGAIN_SECONDS if self._database.outage.cause else None
