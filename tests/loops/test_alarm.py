"""An alarm: rung or timed out, with one timer for many waits."""

import asyncio

from app.loops.alarm import Alarm
from tests.patience import turn_of_the_loop


async def test_rung_before_the_wait_it_is_remembered_once() -> None:
    alarm = Alarm()
    alarm.ring()
    alarm.ring()
    assert await alarm.wait(0) is True
    assert await alarm.wait(0) is False


async def test_what_rang_can_be_dealt_with_otherwise() -> None:
    alarm = Alarm()
    alarm.ring()
    alarm.clear()
    assert await alarm.wait(0) is False


async def test_a_wait_that_ended_early_leaves_its_timer_to_the_next() -> None:
    alarm = Alarm()
    timers = set()
    for _ in range(3):
        waiting = asyncio.ensure_future(alarm.wait(3600))
        await turn_of_the_loop()
        timers.add(alarm._timer)
        alarm.ring()
        assert await waiting is True
    assert len(timers) == 1
    alarm.put_away()
    assert alarm._timer is None


async def test_a_timer_that_goes_off_too_soon_for_this_wait_is_set_again() -> None:
    alarm = Alarm()
    began = asyncio.get_running_loop().time()
    alarm.ring()
    # Leaves a timer for a moment that is too early for the next wait.
    alarm.clear()
    first = asyncio.ensure_future(alarm.wait(0.02))
    await turn_of_the_loop()
    alarm.ring()
    assert await first is True
    assert await alarm.wait(0.1) is False
    assert asyncio.get_running_loop().time() - began >= 0.09


async def test_a_shorter_wait_does_not_wait_for_the_longer_ones_timer() -> None:
    alarm = Alarm()
    long = asyncio.ensure_future(alarm.wait(3600))
    await turn_of_the_loop()
    alarm.ring()
    await long
    assert await alarm.wait(0.01) is False


async def test_without_a_time_it_waits_for_the_ring_alone() -> None:
    alarm = Alarm()
    waiting = asyncio.ensure_future(alarm.wait(None))
    await turn_of_the_loop()
    assert alarm._timer is None
    assert not waiting.done()
    alarm.ring()
    assert await waiting is True
