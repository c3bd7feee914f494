"""The slot keeper: which slots of which targets this process holds, and for how long still.

It holds what it has for as long as nobody else wants it. When another replica does, it gives back what it
does not use at the moment, down to nothing.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable

from app.errors import Unavailable
from app.loops.loop import Loop
from app.store.database import Database
from app.store.holdings import look, release, renew, shrink, take

LEASE_SECONDS = 10.0
# A hold that is older is renewed.
RENEW_SECONDS = 3.0
# How often it is asked whether somebody else wants of it.
LOOK_SECONDS = 1.0
# Before more is asked for again: whoever holds it finds out with that look.
ASK_AGAIN_SECONDS = 0.5
# Held to be lost a little before the database does.
MARGIN_SECONDS = 1.0


class SlotKeeper(Loop):
    def __init__(self, database: Database, worker: str, running: Callable[[str], int]) -> None:
        self._database = database
        # A worker's name may come back after a restart; a holder never does.
        self._holder = f"{worker}:{secrets.token_hex(4)}"
        self._running = running
        self._held: dict[str, int] = {}
        self._until: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        # What is believed here and what stands in the database are changed together, one change at a time: a
        # slot that is being given back must not be taken again in between and then be believed to be held.
        self._changing = asyncio.Lock()
        super().__init__("slots", self._renew, interval=LOOK_SECONDS, longest_retry=LOOK_SECONDS / 2)

    async def stop(self) -> None:
        await super().stop()
        # Given back at once for the others' sake; with the database away they wait for the lease to run out.
        with contextlib.suppress(Unavailable):
            await release(self._database, self._holder)

    def free(self, target: str) -> int:
        """Slots that are held and not in use."""
        if self._until.get(target, 0.0) < time.monotonic():
            return 0
        return max(0, self._held.get(target, 0) - self._running(target))

    async def more(self, target: str, total: int) -> int:
        """Try to hold all that the target has; returns how many are free now."""
        now = time.monotonic()
        complete = self._held.get(target, 0) >= total and self._until.get(target, 0.0) > now
        if not complete and now - self._asked.get(target, 0.0) >= ASK_AGAIN_SECONDS:
            self._asked[target] = now
            await self._take(target, total)
        return min(self.free(target), max(0, total - self._running(target)))

    async def confirm(self, target: str, total: int, jobs: int) -> int:
        """How many of these jobs, which were claimed just now, have a slot.

        Asked after the commit of the claim: from then on the others see them, whatever becomes of the hold.
        """
        if self.free(target) < jobs:
            await self._take(target, total)
        return min(jobs, self.free(target))

    async def _take(self, target: str, total: int) -> None:
        async with self._changing:
            began = time.monotonic()
            self._held[target] = await take(
                self._database, target, self._holder, total=total, wanted=total, lease_seconds=LEASE_SECONDS
            )
            self._until[target] = began + LEASE_SECONDS - MARGIN_SECONDS

    def forget(self, target: str) -> None:
        """Its number of slots changed: what is held is settled anew."""
        self._held.pop(target, None)
        self._asked.pop(target, None)

    async def _renew(self) -> float | None:
        async with self._changing:
            await self._renew_and_give_back()
        return None

    async def _renew_and_give_back(self) -> None:
        if not self._held:
            return
        began, targets = time.monotonic(), list(self._held)
        until = began + LEASE_SECONDS - MARGIN_SECONDS
        is_due = any(self._until.get(target, 0.0) < until - RENEW_SECONDS for target in targets)
        if is_due:
            held = await renew(self._database, self._holder, targets, LEASE_SECONDS)
        else:
            held = await look(self._database, self._holder, targets)
        rows = {row.target: row for row in held}
        keep: dict[str, int] = {}
        for target in list(self._held):
            row = rows.get(target)
            if row is None:
                self._held.pop(target, None)
                continue
            if is_due:
                self._until[target] = until
            running = self._running(target)
            if row.wanted and running < self._held[target]:
                keep[target] = self._held[target] = running
        if keep:
            await shrink(self._database, self._holder, keep)
