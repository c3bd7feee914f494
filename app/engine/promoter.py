"""The promoter: makes scheduled and backed-off jobs claimable when their moment comes.

It sleeps until the next job is due, at most a poll interval, and is woken when a sooner one arrives.
"""

from collections.abc import Callable, Iterable

from app.events.hub import Hub
from app.loops.loop import Loop
from app.store.claims import promote, seconds_until_next_due
from app.store.database import Database
from app.store.keys import Key

BATCH = 1000


class Promoter(Loop):
    """Every replica runs one; they skip each other's rows."""

    def __init__(
        self, database: Database, hub: Hub, poll_seconds: float, on_keys: Callable[[Iterable[Key]], None]
    ) -> None:
        self._database = database
        self._hub = hub
        self._on_keys = on_keys
        self._poll_seconds = poll_seconds
        super().__init__("promoter", self._run_once, interval=poll_seconds)

    async def _run_once(self) -> float | None:
        promoted = await promote(self._database, BATCH)
        if promoted.work or promoted.keys:
            self._hub.work_ready(promoted.work)
            self._on_keys(promoted.keys)
            return 0
        seconds = await seconds_until_next_due(self._database)
        return None if seconds is None else min(max(seconds, 0.005), self._poll_seconds)
