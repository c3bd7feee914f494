"""The gatekeeper: when a job leaves, lets in those who waited for it.

Whoever moves jobs tells it who left. It hands out the places of their keys, releases or cancels those that
depended on them, and says when a queue with max_running has room. All of that comes after the commit that
it follows from, and out of the way of those who made it; what a crash leaves undone is found by the next
repair, by any replica.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import asyncpg

from app.events.hub import Hub
from app.jobs.states import TERMINAL
from app.loops.loop import Loop
from app.store import dependencies, keys
from app.store.claims import ROOM
from app.store.database import Database
from app.store.keys import Key
from app.store.queues import QueueBook
from app.store.repair import Place, find_undone
from app.store.settle import Settled
from app.store.steer import Steered
from app.telemetry import GATES_PASSED

BATCH = 500
# A key whose next row is just being moved by somebody else is looked at again after this.
AGAIN_SECONDS = 0.02


class Gatekeeper(Loop):
    def __init__(
        self,
        database: Database,
        hub: Hub,
        book: QueueBook,
        on_delayed: Callable[[], None],
        repair_seconds: float,
    ) -> None:
        self._database = database
        self._hub = hub
        self._book = book
        self._on_delayed = on_delayed
        self._repair_seconds = repair_seconds
        self._keys: set[Key] = set()
        self._again: set[Key] = set()
        self._ended: set[str] = set()
        self._repaired_at = 0.0
        self._place = Place()
        super().__init__("gatekeeper", self._run_once, interval=repair_seconds)

    async def stop(self) -> None:
        """Finish what was asked for, then end."""
        await super().stop()
        await self._follow()

    # -- being told --------------------------------------------------------------------------------

    def settled(self, settled: Iterable[Settled]) -> None:
        queues = set()
        for each in settled:
            if each.queue is not None and each.state is not None and each.state != "working":
                queues.add(each.queue)
                # Nearly always there is neither; this is on the way of every job.
                if each.key is not None or each.has_dependents:
                    self._left(each.job_id, each.state, each.queue, each.key, each.has_dependents)
        self._make_room(queues)

    def steered(self, steered: Iterable[Steered]) -> None:
        for each in steered:
            if each.changed:
                self._left(each.id, each.state, each.queue, each.key, each.has_dependents)

    def swept(self, records: Sequence[asyncpg.Record]) -> None:
        for each in records:
            self._left(each["id"], each["state"], each["queue"], each["key"], each["has_dependents"])
        self._make_room({each["queue"] for each in records})

    def open_keys(self, found: Iterable[Key]) -> None:
        """There may be places to hand out."""
        self._keys.update(found)
        if self._keys:
            self.wake()

    def ended(self, job_ids: Iterable[str]) -> None:
        """Jobs that others wait for have ended."""
        self._ended.update(job_ids)
        if self._ended:
            self.wake()

    def _left(self, job_id: str, state: str, queue: str, key: str | None, has_dependents: bool) -> None:
        if key is not None:
            self.open_keys([(queue, key)])
        if has_dependents and state in TERMINAL:
            self.ended([job_id])

    def _make_room(self, queues: Iterable[str]) -> None:
        for queue in queues:
            rules = self._book.rules(queue)
            if rules is not None and rules.settings.max_running is not None:
                self._hub.work_ready([(queue, ROOM)])

    # -- the loop ----------------------------------------------------------------------------------

    async def _run_once(self) -> float | None:
        self._keys |= self._again
        self._again = set()
        await self._follow()
        if time.monotonic() - self._repaired_at >= self._repair_seconds:
            self._repaired_at = time.monotonic()
            await self._repair()
        if self._keys or self._ended:
            return 0
        return AGAIN_SECONDS if self._again else None

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
        awaited = await keys.with_waiting(self._database, found)
        if not awaited:
            return
        readied = await keys.ready_next(self._database, awaited)
        if readied.work:
            GATES_PASSED.labels("key").inc(len(readied.work))
            self._hub.work_ready(readied.work)
        self._again.update(readied.unfinished)

    async def _resolve(self, ended: list[str]) -> None:
        resolved = await dependencies.resolve(self._database, ended)
        # In turn with everything else that waits to be done here.
        self._ended.update(resolved.unfinished)
        if resolved.work:
            GATES_PASSED.labels(dependencies.GATE).inc(len(resolved.work))
            self._hub.work_ready(resolved.work)
        self._keys |= resolved.keys
        if resolved.delayed:
            self._on_delayed()
        if resolved.cancelled:
            self._hub.jobs_changed([each.id for each in resolved.cancelled if each.changed])
            self._hub.cancel_requested([each.id for each in resolved.cancelled if each.cancel_requested])
            self.steered(resolved.cancelled)

    async def _repair(self) -> None:
        """Look for what was left undone, by us or by a replica that is no more."""
        undone = await find_undone(self._database, self._place)
        if undone is not None:
            self._place = undone.place
            self._keys.update(undone.keys)
            self._ended.update(undone.ended)


Item = TypeVar("Item", str, Key)


def _split(asked: set[Item]) -> tuple[list[Item], set[Item]]:
    ordered = sorted(asked)
    return ordered[:BATCH], set(ordered[BATCH:])
