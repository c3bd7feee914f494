"""Requests that wait for their turn to be read, so that many at once do not keep everybody else waiting."""

import asyncio
from collections import deque
from typing import Protocol

# How many are read at once, and how long the others then have the loop and the processor for themselves.
READ_AT_ONCE = 2
PAUSE_SECONDS = 0.002


class Reader(Protocol):
    loop: asyncio.AbstractEventLoop

    def read_on(self) -> None: ...


class Turns:
    """A few at a time are let go on. For the whole process, as the loop is."""

    def __init__(self) -> None:
        self._waiting: deque[Reader] = deque()
        self._is_due = False

    def wait(self, reader: Reader) -> None:
        self._waiting.append(reader)
        if not self._is_due:
            self._is_due = True
            reader.loop.call_soon(self._let_some_go_on)

    def _let_some_go_on(self) -> None:
        try:
            for _ in range(min(READ_AT_ONCE, len(self._waiting))):
                self._waiting.popleft().read_on()
        finally:
            self._is_due = bool(self._waiting)
            if self._is_due:
                self._waiting[0].loop.call_later(PAUSE_SECONDS, self._let_some_go_on)
