"""The reconciler: after a change of a queue's settings, brings the jobs that are there in line with it."""

from app.events.hub import Hub
from app.loops.loop import Loop
from app.store.database import Database
from app.store.key_memory import KeyMemory
from app.store.queues import QueueBook
from app.store.reconcile import SETTLING_SECONDS, reconcile


class Reconciler(Loop):
    """Any replica may do it; whatever is done twice does no harm."""

    def __init__(
        self, database: Database, hub: Hub, book: QueueBook, sweep_seconds: float, memory: KeyMemory
    ) -> None:
        self._database = database
        self._memory = memory
        self._hub = hub
        self._book = book
        super().__init__("reconciler", self._run_once, interval=sweep_seconds)
        hub.wakes(self, lambda changes: bool(changes.settings))

    async def _run_once(self) -> float | None:
        changes = await reconcile(self._database, self._book, self._memory)
        self._hub.announce(changes)
        # Once more when no book can be older than the change.
        return SETTLING_SECONDS if changes.answers else None
