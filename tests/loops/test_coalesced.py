"""Asked for by many, done once for all of them; never by a run that had begun before they asked."""

import asyncio

import pytest

from app.loops.coalesced import Coalesced
from tests.patience import turn_of_the_loop


async def test_who_asks_meanwhile_shares_the_next_run() -> None:
    runs = 0
    at_once = 0
    go_on = asyncio.Event()

    async def work() -> None:
        nonlocal runs, at_once
        runs += 1
        at_once += 1
        assert at_once == 1
        await go_on.wait()
        at_once -= 1

    ask = Coalesced(work)
    first = asyncio.create_task(ask())
    await turn_of_the_loop()
    others = [asyncio.create_task(ask()) for _ in range(50)]
    await turn_of_the_loop()
    assert runs == 1
    go_on.set()
    await asyncio.gather(first, *others)
    assert runs == 2


async def test_one_who_goes_away_takes_nobody_along() -> None:
    go_on = asyncio.Event()
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        await go_on.wait()

    ask = Coalesced(work)
    first, second, third = (asyncio.create_task(ask()) for _ in range(3))
    await turn_of_the_loop()
    first.cancel()
    await turn_of_the_loop()
    second.cancel()
    go_on.set()
    await asyncio.wait_for(third, 10)
    assert runs >= 2


async def test_a_run_that_failed_is_not_taken_for_one_that_was_done() -> None:
    problems = [ZeroDivisionError(), None]

    async def work() -> None:
        if problem := problems.pop(0):
            raise problem

    ask = Coalesced(work)
    first, second = await asyncio.gather(ask(), ask(), return_exceptions=True)
    assert isinstance(first, ZeroDivisionError)
    assert second is None
    with pytest.raises(IndexError):
        await ask()
