"""Keeps this process's book of queue settings up to date, and the tallies small.

A change is hinted at by NOTIFY, and found by itself within half a second when the hint is lost.
"""

import time
from collections import Counter
from typing import Any

from app.events.hub import Hub
from app.loops.loop import Loop
from app.store import tallies
from app.store.changes import Changes
from app.store.database import Database
from app.store.queues import QueueBook

# Twice within the second in which a change has to count everywhere.
REFRESH_SECONDS = 0.4
FOLD_SECONDS = 5.0


class SettingsRefresher:
    def __init__(self, database: Database, hub: Hub, book: QueueBook) -> None:
        self._database = database
        self._book = book
        # Accepted here since the last fold, by queue; for rates.
        self._accepted: Counter[str] = Counter()
        self._folded_at = 0.0
        self._refresher = Loop("queue-book", self._refresh, interval=REFRESH_SECONDS)
        self._folder = Loop("tallies", self._fold, interval=1.0)
        hub.subscribe(self._heard)

    def _heard(self, changes: Changes[Any]) -> None:
        self._accepted.update(changes.accepted)
        if changes.settings:
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
        accepted, self._accepted = self._accepted, Counter()
        if accepted:
            await tallies.note_enqueued(self._database, accepted)
        if time.monotonic() - self._folded_at >= FOLD_SECONDS:
            self._folded_at = time.monotonic()
            await tallies.fold(self._database)
        return None
