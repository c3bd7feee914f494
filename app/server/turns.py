"""Requests that wait for their turn to be read, so that many at once do not keep everybody else waiting."""

import asyncio
from collections import deque
from collections.abc import Callable

# How many are read at once, and how long the others then have the loop and the processor for themselves.
READ_AT_ONCE = 2
PAUSE_SECONDS = 0.002


class Turns:
    """A few at a time are let go on. For the whole process, as the loop is."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False

    def wait(self, loop: asyncio.AbstractEventLoop, go_on: Callable[[], None]) -> None:
        self._waiting.append(go_on)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._let_some_go_on, loop)

    def _let_some_go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            for _ in range(min(READ_AT_ONCE, len(self._waiting))):
                self._waiting.popleft()()
        finally:
            self._is_due = bool(self._waiting)
            if self._is_due:
                loop.call_later(PAUSE_SECONDS, self._let_some_go_on, loop)
