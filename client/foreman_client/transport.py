"""The two ways a request reaches the server: awaited, or blocking.

One implementation serves both. All of the client's logic is written once, as coroutines over a Transport.
The blocking transport's coroutines call blocking httpx and never suspend, so such a coroutine runs to its end
in a single step, and `run` takes that step. Chosen over the alternatives because it needs no generated twin,
no hidden thread and no event loop: Ctrl-C, fork, debuggers and context variables behave as in any blocking
code. Both are in httpx_transport.py, which is loaded where one of them is made.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from foreman_client.wire import Reply, Request

T = TypeVar("T")


class StreamReply(Protocol):
    """An answer whose body comes piece by piece."""

    status: int
    headers: dict[str, str]

    def chunks(self) -> AsyncIterator[bytes]: ...
    async def read(self) -> bytes: ...


class Transport(Protocol):
    """What the client asks of the outside world."""

    async def send(self, request: Request) -> Reply: ...
    def stream(self, request: Request) -> AbstractAsyncContextManager[StreamReply]: ...
    async def sleep(self, seconds: float) -> None: ...
    async def close(self) -> None: ...


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end a coroutine that never waits, because its transport blocks instead."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        value: T = finished.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine over the blocking transport tried to wait")


def iterate(source: AsyncGenerator[T, None]) -> Iterator[T]:
    """The same for an asynchronous generator."""

    async def step() -> T:
        return await anext(source)

    async def close() -> None:
        await source.aclose()

    try:
        while True:
            try:
                yield run(step())
            except StopAsyncIteration:
                return
    finally:
        run(close())
