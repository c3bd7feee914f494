"""How tests wait: on a condition with a deadline, and never for a while that will surely do.

A deadline only ends a test that hangs. Where "at once" has to be told from "when something had run out", that lease,
wait or back-off is made far longer than any machine stalls. How fast things are is measured in benchmarks/.

The only sleeps of the tests are in this file (test_habits.py holds that): a look at a condition now and then, what
somebody in a test is said to be busy with, and the pace of somebody who does a thing again and again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast, overload

Value = TypeVar("Value")

# How much longer than a quiet machine a busy one may take before a test gives up on it.
PATIENCE = 10
# Sooner than a wait that was asked to take `LONG_WAIT` seconds, on any machine.
LONG_WAIT = 120
AT_ONCE = 100


def wait_until(
    condition: Callable[[], Value],
    seconds: float = 10,
    explain: Callable[[], str] | None = None,
    every: float = 0.02,
) -> Value:
    """Wait on a condition, with a deadline: as long as a quiet machine may need, times what a busy one may.

    What the condition came to.
    """
    ends = time.monotonic() + seconds * PATIENCE
    while not (found := condition()):
        if time.monotonic() > ends:
            raise AssertionError(explain() if explain else f"not within {seconds} s: {condition}")
        time.sleep(every)
    return found


@overload
async def until(condition: Callable[[], Awaitable[Value]], seconds: float = ...) -> Value: ...
@overload
async def until(condition: Callable[[], Value], seconds: float = ...) -> Value: ...
async def until(condition: Callable[[], Awaitable[Value] | Value], seconds: float = 10) -> Value:
    """The same where an event loop runs; the condition may be one that is awaited."""
    deadline = asyncio.timeout(seconds * PATIENCE)
    try:
        async with deadline:
            while True:
                found = condition()
                if isinstance(found, Awaitable):
                    found = await cast("Awaitable[Value]", found)
                if found:
                    return found
                await asyncio.sleep(0.01)
    except TimeoutError:
        if deadline.expired():
            raise AssertionError(f"not within {seconds} s: {condition}") from None
        raise


async def turn_of_the_loop() -> None:
    """What was made ready before runs first."""
    await asyncio.sleep(0)


async def for_ever() -> None:
    """Longer than any test: to be cancelled."""
    await asyncio.sleep(86400)


async def pretend_to_work(seconds: float) -> None:
    """What takes somebody in a test that long: a slow target, a slow receiver, the handler of a job."""
    await asyncio.sleep(seconds)


async def pace(seconds: float) -> None:
    """How often somebody does what is done all along. Nobody waits for it: no assertion depends on its length."""
    await asyncio.sleep(seconds)


def pace_of_thread(seconds: float) -> None:
    """`pace` where there is no event loop."""
    time.sleep(seconds)


def outlast(seconds: float) -> None:
    """Something in another process counts for so long only, and nothing tells when that is over."""
    time.sleep(seconds)
