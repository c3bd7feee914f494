"""A look at the database that may take its time: repeated only after ten times as long as it took, a minute at most.

Everybody who asks meanwhile gets what was found last. One look at a time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from app.errors import Unavailable

# A look that takes no longer than this is taken anew each time.
CHEAP_SECONDS = 0.1
KEEP_SHARE = 10
LONGEST_KEPT_SECONDS = 60.0

Found = TypeVar("Found")


class Kept(Generic[Found]):
    def __init__(self, look: Callable[[], Awaitable[Found]]) -> None:
        self._look = look
        self._lock = asyncio.Lock()
        self._found: Found | None = None
        self._good_until = 0.0
        # The loop keeps only weak references to tasks.
        self._looks: set[asyncio.Task[Found]] = set()

    async def take(self) -> Found:
        async with self._lock:
            if self._found is None or time.monotonic() >= self._good_until:
                began = time.monotonic()
                self._found = await self._look()
                took = time.monotonic() - began
                kept = min(KEEP_SHARE * took, LONGEST_KEPT_SECONDS) if took > CHEAP_SECONDS else 0
                self._good_until = time.monotonic() + kept
            return self._found

    async def take_within(self, seconds: float) -> Found:
        """For those who cannot wait for long: raises Unavailable, and the look goes on for the next who asks."""
        task = asyncio.create_task(self.take())
        self._looks.add(task)
        task.add_done_callback(self._ended)
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            raise Unavailable("The look at the database takes its time.")
        return task.result()

    def _ended(self, task: "asyncio.Task[Found]") -> None:
        self._looks.discard(task)
        # Perhaps nobody waits for it any more, nor for its trouble.
        if not task.cancelled():
            task.exception()
