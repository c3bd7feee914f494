"""The promoter: makes scheduled and backed-off jobs claimable when their moment comes.

It sleeps until the next job is due, at most a poll interval, and is woken when a sooner one arrives.
"""

from app.events.hub import Hub
from app.loops.loop import Loop
from app.store.database import Database
from app.store.promote import due_mark, promote, seconds_until_next_due

BATCH = 1000


class Promoter(Loop):
    """Every replica runs one; they skip each other's rows."""

    def __init__(self, database: Database, hub: Hub, poll_seconds: float) -> None:
        self._database = database
        self._hub = hub
        self._poll_seconds = poll_seconds
        self._mark = due_mark()
        super().__init__("promoter", self._run_once, interval=poll_seconds)
        hub.wakes(self, lambda changes: bool(changes.delayed))

    async def _run_once(self) -> float | None:
        seconds = await seconds_until_next_due(self._database, self._mark)
        if seconds is not None and seconds <= 0:
            promoted = await promote(self._database, BATCH, self._mark)
            if promoted.work or promoted.keys:
                self._hub.announce(promoted)
                return 0
            # What is due is held by somebody. The mark has moved on, past those for whom that takes long.
            seconds = await seconds_until_next_due(self._database, self._mark)
        return None if seconds is None else min(max(seconds, 0.005), self._poll_seconds)
