"""The shape of every background loop: run once, rest, until told to stop; woken early by a signal."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

from app.errors import DatabaseUnavailable, Unavailable
from app.loops.alarm import Alarm
from app.telemetry import LOOP_FAILURES, child

log = structlog.get_logger()

RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 10.0
# When the database is back, all that waits for it goes on soon, however long it was away. To ask is cheap.
MAX_AWAY_SECONDS = 1.0


class Loop:
    """Calls `run_once` for ever. It returns the seconds to rest, or None for the usual interval.

    A database that is away is waited for quietly; a bug is logged with its trace and the loop goes on.
    A part that is one loop inherits from it.
    """

    def __init__(
        self,
        name: str,
        run_once: Callable[[], Awaitable[float | None]],
        interval: float,
        *,
        longest_retry: float = MAX_RETRY_SECONDS,
    ) -> None:
        self.name = name
        self._longest_retry = longest_retry
        self._body = run_once
        self._interval = interval
        self._alarm = Alarm()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)

    def wake(self) -> None:
        """Run again now (or right after the current run)."""
        self._alarm.ring()

    async def stop(self) -> None:
        """Let the current run finish, then end."""
        self._stopping = True
        self._alarm.ring()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        failures = 0
        while not self._stopping:
            self._alarm.clear()
            try:
                rest = await self._body()
                failures = 0
            except Exception as problem:
                failures += 1
                rest = self._pause(problem, failures)
                if isinstance(problem, DatabaseUnavailable):
                    why = "database_away"
                    # Told once for the whole process (app/store/outage.py), not by each loop.
                    log.debug("loop.database_away", loop=self.name, retry_seconds=round(rest, 2))
                elif isinstance(problem, Unavailable):
                    why = "unavailable"
                    log.warning("loop.unavailable", loop=self.name, problem=problem.detail)
                else:
                    why = "bug"
                    log.exception("loop.failed", loop=self.name)
                child(LOOP_FAILURES, (self.name, why)).inc()
            await self._rest(self._interval if rest is None else rest)
        self._alarm.put_away()

    def _pause(self, problem: Exception, failures: int) -> float:
        """Twice as long each time, up to a limit, and not in step with the others."""
        longest = self._longest_retry
        if isinstance(problem, DatabaseUnavailable):
            longest = min(longest, MAX_AWAY_SECONDS)
        return min(longest, RETRY_SECONDS * (1 << min(failures, 6))) * (0.5 + random.random())

    async def _rest(self, seconds: float) -> None:
        if self._stopping or seconds <= 0 or self._alarm.rung:
            # Even a loop that never rests lets the others run.
            await asyncio.sleep(0)
            return
        await self._alarm.wait(seconds)
