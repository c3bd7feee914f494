"""The unblocker: when a job leaves, lets in those who waited for it.

It hears of all changes. It hands out the places of keys that were left, releases or cancels those that
depended on a job, and says when a queue with max_running has room. All of that comes after the commit that
it follows from, and out of the way of those who made it; what a crash leaves undone is found by the next
repair, by any replica.
"""

import time
from collections.abc import Iterable
from typing import Any, TypeVar

from app.events.hub import Hub
from app.loops.loop import Loop
from app.store import dependencies, keys
from app.store.changes import Changes, Key
from app.store.database import Database
from app.store.key_memory import KeyMemory
from app.store.queues import QueueBook
from app.store.repair import Place, find_undone

BATCH = 500
# A key whose next row is just being moved by somebody else is looked at again after this.
AGAIN_SECONDS = 0.02
# A repair that takes long, as while a transaction held open elsewhere keeps what was, comes after so many
# times as long: it is a small share of all. After a minute at the latest: the database may only have hung.
REPAIR_SHARE = 5
LONGEST_REPAIR_PAUSE_SECONDS = 60.0


class Unblocker(Loop):
    def __init__(
        self,
        database: Database,
        hub: Hub,
        book: QueueBook,
        repair_seconds: float,
        memory: KeyMemory | None = None,
    ) -> None:
        self._database = database
        self._hub = hub
        self._book = book
        self._memory = memory or KeyMemory()
        self._repair_seconds = repair_seconds
        self._keys: set[Key] = set()
        self._again: set[Key] = set()
        # Nobody was found where somebody was expected to wait: when all that may wait is looked at.
        self._doubts: dict[Key, float] = {}
        self._ended: set[str] = set()
        self._next_repair = 0.0
        self._place = Place()
        super().__init__("unblocker", self._run_once, interval=repair_seconds)
        hub.subscribe(self._heard)

    async def stop(self) -> None:
        """Finish what was asked for, then end."""
        await super().stop()
        await self._follow()

    def _heard(self, changes: Changes[Any]) -> None:
        if changes.stopped:
            self._make_room(changes.stopped)
        if changes.keys or changes.ended:
            self._keys |= changes.keys
            self._ended |= changes.ended
            self.wake()

    def _make_room(self, queues: Iterable[str]) -> None:
        room = {
            queue
            for queue in queues
            if (rules := self._book.rules(queue)) is not None and rules.settings.max_running is not None
        }
        if room:
            self._hub.announce(Changes(room=room))

    # -- the loop ----------------------------------------------------------------------------------

    async def _run_once(self) -> float | None:
        self._keys |= self._again
        self._again = set()
        now = time.monotonic()
        self._keys |= {key for key, at in self._doubts.items() if at <= now}
        await self._follow()
        began = time.monotonic()
        if began >= self._next_repair:
            self._next_repair = began + self._repair_seconds
            await self._repair()
            took = time.monotonic() - began
            pause = min(REPAIR_SHARE * took, took + LONGEST_REPAIR_PAUSE_SECONDS)
            self._next_repair = began + max(self._repair_seconds, pause)
        if self._keys or self._ended:
            return 0
        if self._again:
            return AGAIN_SECONDS
        return self._seconds_of_doubt()

    def _seconds_of_doubt(self) -> float | None:
        if not self._doubts:
            return None
        return min(self._repair_seconds, max(0.0, min(self._doubts.values()) - time.monotonic()))

    async def _follow(self) -> None:
        while self._ended or self._keys:
            if self._ended:
                batch, self._ended = _split(self._ended)
                try:
                    await self._resolve(batch)
                except BaseException:
                    self._ended.update(batch)
                    raise
            if self._keys:
                found, self._keys = _split(self._keys)
                try:
                    await self._ready_next(found)
                except BaseException:
                    self._keys.update(found)
                    raise

    async def _ready_next(self, found: list[Key]) -> None:
        awaited = await keys.with_waiting(self._database, found, self._memory)
        if awaited:
            changes = await keys.ready_next(self._database, awaited, self._memory)
            self._hub.announce(changes)
            self._again.update(changes.answers)
        for key in found:
            self._doubts.pop(key, None)
        self._doubts |= self._memory.lines.doubts(found)

    async def _resolve(self, ended: list[str]) -> None:
        self._hub.announce(await dependencies.resolve(self._database, ended))

    async def _repair(self) -> None:
        """Look for what was left undone, by us or by a replica that is no more."""
        undone = await find_undone(self._database, self._place, self._memory)
        if undone is not None:
            self._place = undone.place
            self._keys.update(undone.keys)
            self._ended.update(undone.ended)


Item = TypeVar("Item", str, Key)


def _split(asked: set[Item]) -> tuple[list[Item], set[Item]]:
    ordered = sorted(asked)
    return ordered[:BATCH], set(ordered[BATCH:])
