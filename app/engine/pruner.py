"""The pruner: removes jobs whose retention is over, and idempotency keys that are."""

import time
from collections.abc import Mapping

from app.events.hub import Hub
from app.loops.loop import Loop
from app.store.database import Database
from app.store.low_water import THE_BEGINNING
from app.store.prune import ALL, REST_SHARE, forget_keys, plan_walks, prune
from app.store.queues import QueueBook


class Pruner(Loop):
    """Any replica may run it; one at a time does."""

    def __init__(
        self, database: Database, hub: Hub, book: QueueBook, sweep_seconds: float, usual: Mapping[str, float]
    ) -> None:
        """`usual`: for how long ended jobs are kept in queues that do not say otherwise; 0 is for ever."""
        self._database = database
        self._hub = hub
        self._book = book
        self._sweep_seconds = sweep_seconds
        self._usual = usual
        # Queues whose settings changed: their walks have to be planned anew.
        self._changed: set[str] = {ALL}
        self._keys_since = THE_BEGINNING
        super().__init__("pruner", self._run_once, interval=sweep_seconds)
        book.on_change(self._settings_changed)

    def _settings_changed(self, queue: str) -> None:
        self._changed.add(queue)

    async def _run_once(self) -> float | None:
        """One batch of jobs and one of keys; soon again while there is more."""
        began = time.perf_counter()
        if self._changed:
            await self._plan()
        pruned = await prune(self._database, self._usual, self._sweep_seconds)
        if pruned is not None:
            self._hub.announce(pruned.changes)
        _, last = await forget_keys(self._database, self._keys_since)
        self._keys_since = last or THE_BEGINNING
        if pruned is None and last is None:
            return None
        return REST_SHARE * (time.perf_counter() - began)

    async def _plan(self) -> None:
        """Write down which walks there are to be."""
        changed, self._changed = self._changed, set()
        try:
            await plan_walks(self._database, {queue: self._horizon(queue) for queue in changed})
        except BaseException:
            self._changed |= changed
            raise

    def _horizon(self, queue: str) -> float | None:
        """How old a job must be for the walk through its queue; None where the walk through all will do."""
        everywhere = _shortest(self._usual)
        if queue == ALL:
            return everywhere
        rules = self._book.rules(queue)
        own = None if rules is None else _shortest(rules.retention(self._usual))
        return own if own is not None and (everywhere is None or own < everywhere) else None


def _shortest(retention: Mapping[str, float]) -> float | None:
    return min((seconds for seconds in retention.values() if seconds > 0), default=None)
