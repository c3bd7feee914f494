"""The pruner: walks through the queues that have a retention and removes what is over."""

import time

from app.loops.loop import Loop
from app.store.database import Database
from app.store.prune import prune
from app.store.queues import QueueBook
from app.telemetry import PRUNED

# Works at most a fifth of the time, however much there is to remove.
REST_SHARE = 4


class Pruner:
    """Any replica may run it; one at a time does."""

    def __init__(self, database: Database, book: QueueBook, sweep_seconds: float) -> None:
        self._database = database
        self._book = book
        self._places: dict[str, str] = {}
        self._loop = Loop("pruner", self._run_once, interval=sweep_seconds)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    async def _run_once(self) -> float | None:
        """One batch of each queue; soon again while there is more."""
        began = time.perf_counter()
        more = False
        for rules in self._book.all():
            retention = rules.settings.retention
            if not retention:
                continue
            pruned = await prune(self._database, rules.name, retention, self._places.get(rules.name, ""))
            if pruned is None:
                return None
            PRUNED.inc(pruned.jobs)
            self._places[rules.name] = pruned.after or ""
            more = more or pruned.after is not None
        return REST_SHARE * (time.perf_counter() - began) if more else None
