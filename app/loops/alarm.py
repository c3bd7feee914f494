"""An alarm: one waiter, any number of those who may wake it. While it waits it is a future and a timer."""

import asyncio

# uvloop counts whole milliseconds: what goes off that much too early is on time.
TICK_SECONDS = 0.001


class Alarm:
    """Rung while nobody waits, it is remembered: the next wait returns at once.

    The timer of a wait that ended early stays: the next wait uses it, and when it goes off too soon for that
    one, it is set again. So a stream with a word every few milliseconds sets a timer every few seconds.
    """

    __slots__ = ("_timer", "_until", "_waiter", "rung")

    def __init__(self) -> None:
        self.rung = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0

    def ring(self) -> None:
        self.rung = True
        if self._waiter is not None:
            _release(self._waiter)

    def clear(self) -> None:
        """Whatever rang so far is dealt with."""
        self.rung = False

    async def wait(self, timeout: float | None) -> bool:
        """Until it rings, or the time is over: then False."""
        if not self.rung:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            if timeout is None:
                self.put_away()
            else:
                self._set(loop, loop.time() + timeout)
            try:
                await self._waiter
            finally:
                self._waiter = None
        rung, self.rung = self.rung, False
        return rung

    def _set(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        self._until = until
        if self._timer is not None and self._timer.when() > until:
            self.put_away()
        if self._timer is None:
            self._timer = loop.call_at(until, self._time_is_over)

    def put_away(self) -> None:
        """Nobody will wait for it for a while."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_is_over(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        loop = asyncio.get_running_loop()
        if self._until - loop.time() > TICK_SECONDS:
            self._timer = loop.call_at(self._until, self._time_is_over)
        else:
            _release(self._waiter)


def _release(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
