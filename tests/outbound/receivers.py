"""Receivers of every temper, on loopback: each runs a script per connection and keeps what it was sent."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Visit:
    """One connection, from the receiver's side."""

    def __init__(
        self, receiver: "Receiver", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.receiver = receiver
        self.reader = reader
        self.writer = writer

    async def read_request(self) -> bytes:
        """One whole request: its head, and a body of Content-Length."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        request = head + await self.reader.readexactly(int(lengths[0]) if lengths else 0)
        self.receiver.requests.append(request)
        return request

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def stop_reading(self) -> None:
        cast(asyncio.Transport, self.writer.transport).pause_reading()

    async def wait_for_hang_up(self) -> None:
        with suppress(OSError):  # a reset is one too
            await self.reader.read()
        self.receiver.hang_ups += 1


Script = Callable[[Visit], Awaitable[None]]


class Receiver:
    """A server on 127.0.0.1; `async with` starts and stops it."""

    def __init__(self, script: Script | bytes = OK, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._script = script
        self._ssl_context = ssl_context
        self._tasks: set[asyncio.Task[None]] = set()
        self.accepted = 0
        self.hang_ups = 0
        self.requests: list[bytes] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def __aenter__(self) -> "Receiver":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._ssl_context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.accepted += 1
        with suppress(asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            await self._follow_script(Visit(self, reader, writer))
        with suppress(OSError):
            writer.close()

    async def _follow_script(self, visit: Visit) -> None:
        if callable(self._script):
            await self._script(visit)
            return
        while True:
            await visit.read_request()
            await visit.send(self._script)


def once(answer: bytes) -> Script:
    """Answers one request, then waits for the client to hang up."""

    async def script(visit: Visit) -> None:
        await visit.read_request()
        await visit.send(answer)
        await visit.wait_for_hang_up()

    return script


def once_and_close(answer: bytes) -> Script:
    """Answers one request and hangs up."""

    async def script(visit: Visit) -> None:
        await visit.read_request()
        await visit.send(answer)

    return script
