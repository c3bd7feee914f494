"""The bookkeeper: keeps this process's book of queue settings up to date, and the tallies small.

A change is hinted at by NOTIFY, and found by itself within half a second when the hint is lost.
"""

import time

from app.engine.intake import Intake
from app.events.hub import Hub
from app.loops.loop import Loop
from app.store import tallies
from app.store.claims import SETTINGS
from app.store.database import Database
from app.store.queues import QueueBook

# Twice within the second in which a change has to count everywhere.
REFRESH_SECONDS = 0.4
FOLD_SECONDS = 5.0


class Bookkeeper:
    def __init__(self, database: Database, hub: Hub, book: QueueBook, intake: Intake) -> None:
        self._database = database
        self._book = book
        self._intake = intake
        self._folded_at = 0.0
        self._refresher = Loop("queue-book", self._refresh, interval=REFRESH_SECONDS)
        self._folder = Loop("tallies", self._fold, interval=1.0)
        hub.on_work(self._heard)

    def _heard(self, _queue: str, lane: str) -> None:
        if lane == SETTINGS:
            self._refresher.wake()

    async def start(self) -> None:
        # Before the first job is taken: a process that has just started knows the rules.
        await self._book.refresh()
        await self._refresher.start()
        await self._folder.start()

    async def stop(self) -> None:
        await self._refresher.stop()
        await self._folder.stop()
        await self._fold()

    async def _refresh(self) -> float | None:
        await self._book.refresh()
        return None

    async def _fold(self) -> float | None:
        accepted, self._intake.accepted = self._intake.accepted, type(self._intake.accepted)()
        if accepted:
            await tallies.note_enqueued(self._database, accepted)
        if time.monotonic() - self._folded_at >= FOLD_SECONDS:
            self._folded_at = time.monotonic()
            await tallies.fold(self._database)
        return None
