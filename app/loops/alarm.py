"""An alarm: one waiter, any number of those who may wake it. While it waits it is a future and a timer."""

import asyncio


class Alarm:
    """Rung while nobody waits, it is remembered: the next wait returns at once."""

    __slots__ = ("_rung", "_waiter")

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        if self._waiter is not None:
            _release(self._waiter)

    def forget(self) -> None:
        """What it was rung for is being seen to."""
        self._rung = False

    async def wait(self, timeout: float) -> bool:
        """Until it rings, or the time is over: then False."""
        if not self._rung:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = loop.call_later(timeout, _release, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None
        rung, self._rung = self._rung, False
        return rung


def _release(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
