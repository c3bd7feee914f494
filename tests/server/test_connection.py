"""How long the end of a connection waits for a client that was refused while it still spoke."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from app.server.connection import LINGER_BYTES, LINGER_IDLE_SECONDS, LINGER_SECONDS, Connection


class Clock:
    """The part of a loop that knows the time; it passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> "Clock":
        self._due.append((self.now + seconds, callback))
        return self

    def pass_to(self, moment: float) -> None:
        self.now = moment
        due = [callback for at, callback in self._due if at <= moment]
        self._due = [each for each in self._due if each[0] > moment]
        for callback in due:
            callback()


class Transport:
    def __init__(self) -> None:
        self.closed = False

    def get_extra_info(self, name: str) -> Any:
        return None

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """The client reads the end of what it is told."""

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
def connection(clock: Clock, transport: Transport) -> Connection:
    """It ends while the client still speaks."""
    loop = cast("asyncio.AbstractEventLoop", clock)
    ending = Connection(cast("asyncio.Transport", transport), loop, lambda: True)
    ending.close()
    assert ending.is_closing()
    return ending


def test_who_says_nothing_more_is_waited_for_a_moment(
    connection: Connection, clock: Clock, transport: Transport
) -> None:
    clock.pass_to(LINGER_IDLE_SECONDS - 0.1)
    assert not transport.closed
    clock.pass_to(LINGER_IDLE_SECONDS)
    assert transport.closed


def test_who_goes_on_sending_is_waited_for_longer_but_not_for_ever(
    connection: Connection, clock: Clock, transport: Transport
) -> None:
    while not transport.closed:
        assert clock.now < LINGER_SECONDS
        connection.throw_away(1)
        clock.pass_to(clock.now + LINGER_IDLE_SECONDS)
    assert clock.now == LINGER_SECONDS


def test_who_stops_in_between_is_not_waited_for_to_the_last(
    connection: Connection, clock: Clock, transport: Transport
) -> None:
    connection.throw_away(1)
    clock.pass_to(LINGER_IDLE_SECONDS)
    assert not transport.closed
    clock.pass_to(2 * LINGER_IDLE_SECONDS)
    assert transport.closed


def test_who_sends_too_much_is_not_waited_for(connection: Connection, transport: Transport) -> None:
    connection.throw_away(LINGER_BYTES)
    assert not transport.closed
    connection.throw_away(1)
    assert transport.closed
