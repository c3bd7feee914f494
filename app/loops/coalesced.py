"""Many ask for the same piece of work at once, and it is done as rarely as keeps each of them right."""

import asyncio
from collections.abc import Awaitable, Callable


class Coalesced:
    """Runs `work` one at a time. Who asks while it runs may have come too late for it: they wait, and the
    next run is for all of them together.
    """

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._turn = asyncio.Lock()
        self._asked = 0
        self._answered = 0

    async def __call__(self) -> None:
        """Returns when a run that began after this call is done; raises what this caller's own run raised."""
        self._asked += 1
        mine = self._asked
        async with self._turn:
            if self._answered >= mine:
                return
            asked_by_now = self._asked
            await self._work()
            self._answered = asked_by_now
