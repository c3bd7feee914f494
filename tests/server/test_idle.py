"""A kept connection is hung up on when it has been idle for long enough, and never while there is a request."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from app.server.idle import IdleTimer


class Clock:
    """A loop whose time is told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        timer = (self.now + seconds, callback)
        self.timers.append(timer)

        class Handle:
            @staticmethod
            def cancel() -> None:
                self.timers.remove(timer)

        return Handle()

    def pass_on(self, seconds: float) -> None:
        ends = self.now + seconds
        while due := [each for each in self.timers if each[0] <= ends]:
            first = min(due, key=lambda each: each[0])
            self.timers.remove(first)
            self.now = first[0]
            first[1]()
        self.now = ends


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ends() -> list[float]:
    return []


@pytest.fixture
def idle(clock: Clock, ends: list[float]) -> IdleTimer:
    return IdleTimer(cast("asyncio.AbstractEventLoop", clock), 75, lambda: ends.append(clock.now))


def test_an_idle_connection_ends_when_its_time_is_over(
    idle: IdleTimer, clock: Clock, ends: list[float]
) -> None:
    idle.begin()
    clock.pass_on(74)
    assert not ends
    clock.pass_on(2)
    assert ends == [75]


def test_its_time_begins_anew_with_every_answer(idle: IdleTimer, clock: Clock, ends: list[float]) -> None:
    for _ in range(10):
        idle.begin()
        assert len(clock.timers) == 1
        clock.pass_on(50)
        idle.end()
        clock.pass_on(1)
    idle.begin()
    clock.pass_on(200)
    assert ends == [10 * 51 + 75]


def test_a_request_may_take_as_long_as_it_takes(idle: IdleTimer, clock: Clock, ends: list[float]) -> None:
    idle.begin()
    idle.end()
    clock.pass_on(1000)
    assert not ends
    idle.begin()
    clock.pass_on(1000)
    assert ends == [1000 + 75]


def test_a_connection_that_is_gone_leaves_no_timer(idle: IdleTimer, clock: Clock, ends: list[float]) -> None:
    idle.begin()
    idle.cancel()
    clock.pass_on(1000)
    assert not ends
