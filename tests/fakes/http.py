"""A small HTTP/1.1 server for fakes: it can do what a real framework is careful never to do.

An exchange may be cut in mid-answer or left hanging, and the handler of a client that went away is cancelled.
"""

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable
from http.client import responses
from typing import Any, cast

import httptools

JSON_TYPE = "application/json; charset=utf-8"


class Exchange:
    """One request and the answer to it."""

    def __init__(
        self, connection: "_Connection", method: str, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.begun = False
        self._connection = connection

    async def respond(
        self, status: int, body: bytes, content_type: str = JSON_TYPE, *headers: tuple[str, str]
    ) -> None:
        """A whole answer at once."""
        more = [f"{name}: {value}" for name, value in headers]
        head = _head(status, content_type, "\r\n".join([f"Content-Length: {len(body)}", *more]))
        self.begun = True
        await self._connection.write(head if self.method == "HEAD" else head + body)

    async def respond_json(self, status: int, body: Any, *headers: tuple[str, str]) -> None:
        await self.respond(status, json.dumps(body, separators=(",", ":")).encode(), JSON_TYPE, *headers)

    async def begin(self, content_type: str) -> None:
        """The head of a streamed answer."""
        self.begun = True
        await self._connection.write(_head(200, content_type, "Transfer-Encoding: chunked"))

    async def write(self, data: bytes) -> None:
        await self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self._connection.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """The connection dies in the middle of whatever is going on."""
        self._connection.abort()


Handler = Callable[[Exchange], Awaitable[None]]


def _head(status: int, content_type: str, length: str) -> bytes:
    phrase = responses.get(status, "Unknown")
    return f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {content_type}\r\n{length}\r\n\r\n".encode()


class _Connection(asyncio.Protocol):
    def __init__(self, handler: Handler, connections: "set[_Connection]") -> None:
        self._handler = handler
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._waiting: list[Exchange] = []
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # What httptools calls.

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._url.decode("latin-1").partition("?")[0]
        method = self._parser.get_method().decode("latin-1")
        self._waiting.append(Exchange(self, method, path, self._headers, b"".join(self._body)))
        self._url, self._headers, self._body = b"", {}, []
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    # What an exchange calls.

    async def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
        await self._writable.wait()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _serve(self) -> None:
        try:
            while self._waiting:
                exchange = self._waiting.pop(0)
                try:
                    await self._handler(exchange)
                    if exchange.headers.get("connection", "").lower() == "close" and self._transport:
                        self._transport.close()
                except Exception:  # noqa: BLE001, RUF100 - a bug in the fake must show, and must not hang its client
                    traceback.print_exc()
                    self.abort()
        finally:
            self._task = None


class Server:
    """Listens on loopback; `close` drops every connection, as a process that ends does."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, port: int) -> int:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self._handler, self._connections), "127.0.0.1", port, backlog=1024
        )
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()
