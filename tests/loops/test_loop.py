"""A loop runs again and again, is woken, backs off after an error, and stops when told."""

import asyncio
import time

import pytest

from app.errors import DatabaseUnavailable, Unavailable
from app.loops import loop as loop_module
from app.loops.loop import Loop
from app.telemetry import LOOP_FAILURES
from tests.patience import turn_of_the_loop, until


class Counted:
    """A body that counts its runs; `rest` is what it returns, `problem` what it raises."""

    def __init__(self, rest: float | None = None) -> None:
        self.runs = 0
        self.rest = rest
        self.problem: Exception | None = None

    async def run_once(self) -> float | None:
        self.runs += 1
        if self.problem is not None:
            raise self.problem
        return self.rest


async def test_it_runs_at_once_and_then_rests_for_its_interval() -> None:
    body = Counted()
    loop = Loop("test", body.run_once, interval=0.05)
    await loop.start()
    await until(lambda: body.runs == 1)
    began = time.monotonic()
    await until(lambda: body.runs == 2)
    assert time.monotonic() - began > 0.03
    await loop.stop()


async def test_the_body_says_how_long_to_rest() -> None:
    body = Counted(rest=0)
    loop = Loop("test", body.run_once, interval=3600)
    await loop.start()
    await until(lambda: body.runs > 20)
    await loop.stop()


async def test_waking_cuts_the_rest_short() -> None:
    body = Counted()
    loop = Loop("test", body.run_once, interval=3600)
    await loop.start()
    await until(lambda: body.runs == 1)
    loop.wake()
    await until(lambda: body.runs == 2)
    await loop.stop()


async def test_a_wake_during_a_run_is_not_lost() -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()
    runs = 0

    async def run_once() -> None:
        nonlocal runs
        runs += 1
        entered.set()
        await go_on.wait()

    loop = Loop("test", run_once, interval=3600)
    await loop.start()
    await entered.wait()
    loop.wake()
    go_on.set()
    await until(lambda: runs == 2)
    await loop.stop()


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (Unavailable("away"), "unavailable"),
        (DatabaseUnavailable("away"), "database_away"),
        (ValueError("a bug"), "bug"),
    ],
)
async def test_a_round_that_failed_is_counted(problem: Exception, why: str) -> None:
    def failed() -> float:
        return float(LOOP_FAILURES.labels("tested", why)._value.get())

    body = Counted()
    body.problem = problem
    before = failed()
    loop = Loop("tested", body.run_once, interval=3600)
    await loop.start()
    await until(lambda: failed() == before + 1)
    await loop.stop()


@pytest.mark.parametrize("problem", [Unavailable("away"), ValueError("a bug")])
async def test_an_error_is_survived_with_growing_patience(
    problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "RETRY_SECONDS", 0.01)
    rests: list[float] = []
    rest = Loop._rest

    async def remember(self: Loop, seconds: float) -> None:
        rests.append(seconds)
        await rest(self, min(seconds, 0.001))

    monkeypatch.setattr(Loop, "_rest", remember)
    body = Counted()
    body.problem = problem
    loop = Loop("test", body.run_once, interval=3600)
    await loop.start()
    await until(lambda: body.runs > 6)
    # Twice as long each time, spread by half either way.
    for failures, seconds in enumerate(rests[:6], 1):
        assert 0.5 <= seconds / (0.01 * 2**failures) <= 1.5
    body.problem = None
    await until(lambda: 3600 in rests)
    await loop.stop()


@pytest.mark.parametrize(
    ("problem", "longest"),
    [
        (Unavailable("away"), loop_module.MAX_RETRY_SECONDS),
        # After a long outage nobody is still asleep when the database is back.
        (DatabaseUnavailable("away"), loop_module.MAX_AWAY_SECONDS),
    ],
)
async def test_the_patience_has_an_end(
    monkeypatch: pytest.MonkeyPatch, problem: Exception, longest: float
) -> None:
    rests: list[float] = []

    async def remember(_self: Loop, seconds: float) -> None:
        rests.append(seconds)
        await turn_of_the_loop()

    monkeypatch.setattr(Loop, "_rest", remember)
    body = Counted()
    body.problem = problem
    loop = Loop("test", body.run_once, interval=1)
    await loop.start()
    await until(lambda: body.runs > 50)
    await loop.stop()
    assert longest * 0.5 <= max(rests) <= longest * 1.5


async def test_stopping_lets_the_current_run_finish_and_starts_no_other() -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()
    finished = 0

    async def run_once() -> float:
        nonlocal finished
        entered.set()
        await go_on.wait()
        finished += 1
        return 0

    loop = Loop("test", run_once, interval=3600)
    await loop.start()
    await entered.wait()
    stopping = asyncio.create_task(loop.stop())
    await turn_of_the_loop()
    assert not stopping.done()
    go_on.set()
    async with asyncio.timeout(5):
        await stopping
    assert finished == 1


async def test_stopping_ends_a_long_rest_at_once_and_may_be_said_before_the_start() -> None:
    body = Counted()
    loop = Loop("test", body.run_once, interval=3600)
    await loop.stop()
    loop = Loop("test", body.run_once, interval=3600)
    await loop.start()
    await until(lambda: body.runs == 1)
    async with asyncio.timeout(1):
        await loop.stop()


async def test_the_longest_pause_after_failures_can_be_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what others wait for, such as the renewal of leases after an outage."""
    pauses: list[float] = []
    enough = asyncio.Event()

    async def away() -> float | None:
        raise Unavailable("away")

    async def rest(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 30:
            enough.set()
        await turn_of_the_loop()

    loop = Loop("keeper", away, interval=60, longest_retry=0.5)
    monkeypatch.setattr(loop, "_rest", rest)
    await loop.start()
    await asyncio.wait_for(enough.wait(), 25)
    await loop.stop()
    assert 0.25 <= min(pauses) <= max(pauses) <= 0.75
