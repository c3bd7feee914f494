"""A look at the database that may take its time: repeated only after ten times as long as it took, a minute at most.

Everybody who asks meanwhile gets what was found last. One look at a time.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from app.errors import Unavailable

# A look that takes no longer than this is taken anew each time.
CHEAP_SECONDS = 0.1
KEEP_SHARE = 10
LONGEST_KEPT_SECONDS = 60.0
# What is looked at though nobody asked: before it is too old for those who do, and no more than this share of the time.
WARM_SECONDS = 45.0
WARM_SHARE = 0.02

Found = TypeVar("Found")


class Kept(Generic[Found]):
    def __init__(self, look: Callable[[], Awaitable[Found]]) -> None:
        self._look = look
        self._lock = asyncio.Lock()
        self._found: Found | None = None
        # When the last look that succeeded began; and the last one at all, with how long it took.
        self._looked_at = -math.inf
        self._tried_at = -math.inf
        # What a look costs: the less of the last two, because a stalled machine makes one slow that is not.
        self._took = self._took_before = 0.0
        self._good_until = 0.0
        # The look that goes on for whoever did not wait for it.
        self._renewal: asyncio.Task[Found] | None = None

    async def take(self) -> Found:
        async with self._lock:
            if self._found is None or time.monotonic() >= self._good_until:
                self._tried_at = time.monotonic()
                try:
                    self._found = await self._look()
                finally:
                    took = time.monotonic() - self._tried_at
                    self._took, self._took_before = min(took, self._took_before), took
                self._looked_at = self._tried_at
                kept = min(KEEP_SHARE * self._took, LONGEST_KEPT_SECONDS) if self._took > CHEAP_SECONDS else 0
                self._good_until = time.monotonic() + kept
            return self._found

    async def take_within(self, seconds: float) -> Found:
        """For those who cannot wait for long: raises Unavailable, and the look goes on for the next who asks."""
        renewal = self._renewed()
        done, _ = await asyncio.wait([renewal], timeout=seconds)
        if not done:
            raise Unavailable("The look at the database takes its time.")
        return renewal.result()

    async def latest(self) -> Found:
        """For those who would rather have it at once: while a look is taken that takes its time, what the last one
        saw, up to a minute old. Only the first one of a process, or after a long while, is waited for."""
        now = time.monotonic()
        if self._found is not None and now < self._good_until:
            return self._found
        renewal = self._renewed()
        if self._found is None or now - self._looked_at > LONGEST_KEPT_SECONDS:
            return await asyncio.shield(renewal)
        await asyncio.wait([renewal], timeout=CHEAP_SECONDS if self._took <= CHEAP_SECONDS else 0)
        return self._found

    def _renewed(self) -> "asyncio.Task[Found]":
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self.take(), name="kept")
            self._renewal.add_done_callback(_retrieve)
        return self._renewal

    async def keep_warm(self) -> None:
        """Look again before the last look is too old for `latest`, where that costs little."""
        if time.monotonic() - self._tried_at > WARM_SECONDS >= self._took / WARM_SHARE:
            await self.take()

    def may_look(self, seconds: float) -> bool:
        """Whether the fleet, of which somebody has looked so long ago, may look again without having been asked."""
        return min(seconds, time.monotonic() - self._tried_at) >= self._took / WARM_SHARE


def _retrieve(renewal: "asyncio.Task[Found]") -> None:
    """Perhaps nobody waits for it any more, nor for its trouble."""
    if not renewal.cancelled():
        renewal.exception()
