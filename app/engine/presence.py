"""Presence: remembers which workers were seen and writes it down now and then."""

from app.loops.loop import Loop
from app.store.database import Database
from app.store.workers import Presence, seen

WRITE_SECONDS = 5.0


class PresenceBook:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: dict[tuple[str, str], Presence] = {}
        self._own: Presence | None = None
        self._loop = Loop("presence", self._write, interval=WRITE_SECONDS)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    def introduce(self, own: Presence) -> None:
        """This process's own worker: about as long as the process is."""
        self._own = own

    def saw(self, presence: Presence) -> None:
        new = (presence.tenant, presence.name) not in self._seen
        self._seen[presence.tenant, presence.name] = presence
        if new:
            self._loop.wake()

    async def _write(self) -> float | None:
        current, self._seen = self._seen, {}
        for presence in [*current.values(), *([self._own] if self._own else [])]:
            await seen(self._database, presence)
        return None
