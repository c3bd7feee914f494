"""How long a connection is kept for a next request."""

import asyncio
from collections.abc import Callable


class IdleTimer:
    """One timer that goes on from request to request: one for each would be set and cancelled thousands of
    times a second, and hardly ever run out."""

    __slots__ = ("_hang_up", "_loop", "_seconds", "_since", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, hang_up: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._hang_up = hang_up
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def since(self) -> float | None:
        """Since when the connection is idle; None while there is a request."""
        return self._since

    def begin(self) -> None:
        """From now on the connection is idle."""
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def end(self) -> None:
        """There is a request."""
        self._since = None

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._since is None:
            # Armed again by the next answer.
            return
        left = self._since + self._seconds - self._loop.time()
        if left <= 0:
            self._hang_up()
        else:
            self._timer = self._loop.call_later(left, self._look)
