"""The long answers that this process is giving: how many there may be, and how one is held open.

A stream costs its own request's task, one that waits for the caller to hang up, and a timer: nothing else
while nothing happens. A reader that does not read is hung up on by the server (app/server/protocol.py).
"""

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Protocol

from starlette.types import Receive, Scope, Send

from app.errors import RateLimited, Unauthorized
from app.identity.account import Account, Connection
from app.identity.limits import Places
from app.telemetry import STREAMS, STREAMS_REFUSED

RETRY_AFTER_SECONDS = 5.0
# Where a server offers, as an extension of ASGI, to write without a task that waits for it (see AtOnce).
AT_ONCE = "foreman.at_once"
# Where it tells of the connection that a request came by.
CONNECTION = "foreman.connection"

HEADERS = [
    (b"cache-control", b"no-store"),
    # nginx would otherwise hold the stream back until its buffer is full.
    (b"x-accel-buffering", b"no"),
]


class OpenStreams:
    """Counts the open streams."""

    def __init__(self, limit: int, keep_alive_seconds: float) -> None:
        self._limit = limit
        self._open = 0
        self.keep_alive_seconds = keep_alive_seconds

    @contextlib.contextmanager
    def place(self, of: str, scope: Scope) -> Iterator[None]:
        """A place for one, of this process and of its caller; raises RateLimited when all are taken."""
        if self._open >= self._limit:
            STREAMS_REFUSED.inc()
            raise RateLimited(
                f"This server already serves {self._limit} streams.", retry_after=RETRY_AFTER_SECONDS
            )
        account: Account = scope["state"]["account"]
        with _waiting(scope, account, account.streams):
            self._open += 1
            gauge = STREAMS.labels(of)
            gauge.inc()
            try:
                yield
            finally:
                self._open -= 1
                gauge.dec()

    def first_quiet(self) -> float:
        """Streams that began together shall not keep themselves alive in step."""
        return self.keep_alive_seconds * random.uniform(0.5, 1.0)


def long_poll(scope: Scope, seconds: float = math.inf) -> contextlib.AbstractContextManager[None]:
    """A place for a request that waits so long; raises RateLimited when its caller has too many of them."""
    account: Account = scope["state"]["account"]
    return _waiting(scope, account, account.long_polls) if seconds > 0 else contextlib.nullcontext()


@contextlib.contextmanager
def _waiting(scope: Scope, account: Account, places: Places) -> Iterator[None]:
    """Only for as long as the caller's key is good: see `Account.end`."""
    if account.ended:
        # Since it was let in.
        raise Unauthorized("This API key is not valid any more.", problem="invalid_token")
    connection: Connection | None = scope.get("extensions", {}).get(CONNECTION)
    with places.place():
        if connection is None:
            yield
            return
        connection.waits += 1
        try:
            yield
        finally:
            connection.waits -= 1


def is_stream(scope: Scope) -> None:
    """How long a stream lasts says nothing about how long requests take."""
    scope["state"]["stream"] = True


class AtOnce(Protocol):
    """Writes to the caller right where it is called, as long as nothing has to be waited for."""

    def is_ready(self) -> bool:
        """Whether the answer has begun, and the caller is there and not behind."""

    def write(self, body: bytes) -> None:
        """The next piece of the answer. Only when ready."""


class Line(Protocol):
    """The connection that the request came by."""

    def hang_up(self) -> None:
        """At once, whatever is on its way."""


class BrokenOffError(Exception):
    """The answer cannot be completed. Where a server does not let us hang up, this makes it do so."""


class OpenStream:
    """One open answer: `begin` it, `say` what there is; `gone` once the caller has hung up."""

    def __init__(
        self,
        send: Send,
        hanging_up: "asyncio.Future[None]",
        at_once: AtOnce | None = None,
        line: Line | None = None,
    ) -> None:
        self._send = send
        self._hanging_up = hanging_up
        self._line = line
        # Not for whoever is in the middle of a `say`: that may be waiting with what comes first.
        self.at_once = at_once
        self.begun = False
        self._ended = False

    @property
    def gone(self) -> bool:
        return self._hanging_up.done()

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def say(self, body: bytes, *, last: bool = False) -> None:
        """Waits while the reader is behind."""
        self._ended = last
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})

    async def break_off(self) -> None:
        """Hang up in the middle: nobody may take what was sent for a whole answer."""
        if self._line is None:
            raise BrokenOffError
        self._line.hang_up()
        # It has left, for all who look: an answer without an end is nothing to complain of then.
        await asyncio.wait([self._hanging_up])

    async def end(self) -> None:
        if self.begun and not self._ended and not self.gone:
            await self.say(b"", last=True)


@contextlib.asynccontextmanager
async def answering(
    receive: Receive, send: Send, on_hang_up: Callable[[], object], scope: Scope | None = None
) -> AsyncIterator[OpenStream]:
    """An answer that is still to begin; it is complete when the block is left without an error."""
    extensions = scope.get("extensions", {}) if scope else {}
    hanging_up = asyncio.ensure_future(_hang_up(receive))
    hanging_up.add_done_callback(lambda _: on_hang_up())
    try:
        stream = OpenStream(send, hanging_up, extensions.get(AT_ONCE), extensions.get(CONNECTION))
        yield stream
        await stream.end()
    finally:
        hanging_up.cancel()


@contextlib.asynccontextmanager
async def open_stream(
    receive: Receive,
    send: Send,
    media_type: str,
    on_hang_up: Callable[[], None],
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> AsyncIterator[OpenStream]:
    """Begin a stream of unknown length."""
    async with answering(receive, send, on_hang_up) as stream:
        await stream.begin(200, [(b"content-type", media_type.encode()), *HEADERS, *headers])
        yield stream


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
