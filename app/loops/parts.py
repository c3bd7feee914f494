"""Long-running parts: started in the order of a list, stopped in the reverse one."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.errors import Unavailable


class Part(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Also when it was never started."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A part that does nothing by itself: it may have to be opened, and is closed or drained at the end."""

    close: Callable[[], Awaitable[None]]
    open: Callable[[], Awaitable[None]] | None = None

    async def start(self) -> None:
        if self.open is not None:
            await self.open()

    async def stop(self) -> None:
        await self.close()


class Parts:
    """Several parts as one."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._started = 0
        self._stopped = False

    async def start(self) -> None:
        """Raises Unavailable when the database goes away meanwhile; called again, it goes on where it was."""
        while self._started < len(self._parts):
            await self._parts[self._started].start()
            self._started += 1

    async def stop(self) -> None:
        """Once. What the database does not take any more is found by the other replicas."""
        if self._stopped:
            return
        self._stopped = True
        for part in reversed(self._parts):
            with contextlib.suppress(Unavailable):
                await part.stop()
