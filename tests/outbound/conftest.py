"""A witness of every socket that is connected, and clients that are closed in the end."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypedDict

import pytest
import uvloop

from app.outbound.client import GuardedClient
from app.outbound.guard import AddressPolicy

MakeClient = Callable[..., GuardedClient]


class Limits(TypedDict):
    """What every request says of the answer it takes."""

    deadline_seconds: float
    max_response_bytes: int


_witnesses: list[list[object]] = []


def _witness_connect(event: str, arguments: tuple[object, ...]) -> None:
    if event == "socket.connect":
        for witnessed in _witnesses:
            witnessed.append(arguments[1])


# The interpreter's own audit event, raised in C right before connect(2): no Python code can go around it.
sys.addaudithook(_witness_connect)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every test here runs on both loops: the server uses uvloop, whose transports are not asyncio's."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def connects() -> Iterator[list[object]]:
    """The addresses that any socket of this process was connected to during the test."""
    witnessed: list[object] = []
    _witnesses.append(witnessed)
    yield witnessed
    _witnesses.remove(witnessed)


@pytest.fixture
async def make_client() -> AsyncIterator[MakeClient]:
    """Makes clients, which may call loopback unless told otherwise."""
    clients: list[GuardedClient] = []

    def make(policy: AddressPolicy | None = None, **options: Any) -> GuardedClient:
        client = GuardedClient(policy or AddressPolicy(allow_loopback=True), **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.aclose()
