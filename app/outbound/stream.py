"""Calls to targets, whose answers are read as they come.

Targets are configured by operators and are not behind the guard: no addresses are refused here, everything
else is as strict. Small on purpose: an answer's time to its first byte is what callers feel, and a general
client costs more than the rest of the way together.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import cast

import httptools

from app import __version__
from app.outbound.dial import default_ssl_context
from app.outbound.errors import OutboundProtocolError, OutboundTimeout, OutboundUnreachable
from app.outbound.headers import check_headers, request_head
from app.outbound.urls import OutboundUrl, UrlInvalid, parse_url

_USER_AGENT = f"Foreman/{__version__}"
_MAX_HEAD_BYTES = 64 * 1024
# Beyond this much unread the peer is asked to wait.
_HIGH_WATER = 1024 * 1024
# A machine that went to sleep in mid-answer says nothing; the kernel finds out by asking.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


class AnswerCutError(OutboundProtocolError):
    """The connection ended in the middle of the answer."""


class _NoAnswerError(OutboundUnreachable):
    """The connection ended before a byte of the answer came."""


class StreamedAnswer:
    """One answer. `chunks` gives its body as it comes; leaving it unread closes the connection."""

    def __init__(self, connection: "_Connection", idle_seconds: float) -> None:
        self._connection = connection
        self._idle_seconds = idle_seconds
        self.status = connection.status
        self.headers = connection.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """Raises OutboundTimeout when nothing comes for too long, AnswerCutError when it ends too soon."""
        while True:
            chunk = await self._connection.next_chunk(self._idle_seconds)
            if chunk is None:
                return
            yield chunk

    async def read(self, max_bytes: int) -> bytes:
        """The body, or as much of its beginning."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) >= max_bytes:
                break
        return bytes(body[:max_bytes])


class StreamingClient:
    """Keeps connections that can be used again. Belongs to one event loop; `close` it in the end."""

    def __init__(self, *, connect_seconds: float = 5.0, keep_seconds: float = 20.0, keep: int = 64) -> None:
        self._connect_seconds = connect_seconds
        self._keep_seconds = keep_seconds
        self._keep = keep
        self._idle: dict[tuple[str, str, int], list[tuple[_Connection, float]]] = {}
        self._ssl: ssl.SSLContext | None = None

    def close(self) -> None:
        for connections in self._idle.values():
            for connection, _ in connections:
                connection.abort()
        self._idle.clear()

    @contextlib.asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        idle_seconds: float,
    ) -> AsyncIterator[StreamedAnswer]:
        """Send a request; the block begins with the answer's head. Leaving it early hangs up.

        Raises OutboundUnreachable when nothing answered at all, OutboundTimeout when it took too long,
        OutboundProtocolError when it was no HTTP.
        """
        parsed = _parsed(url)
        request = request_head(method, parsed, headers or {}, _USER_AGENT, len(content)) + content
        connection = await self._answered(parsed, request, idle_seconds)
        try:
            yield StreamedAnswer(connection, idle_seconds)
        finally:
            self._put(parsed, connection)

    async def _answered(self, url: OutboundUrl, request: bytes, idle_seconds: float) -> "_Connection":
        kept = self._take(url)
        if kept is not None:
            try:
                return await kept.ask(request, idle_seconds)
            except _NoAnswerError:
                # It had idled out just as it was used: that was no answer to this request.
                pass
        connection = await self._connect(url)
        return await connection.ask(request, idle_seconds)

    def _take(self, url: OutboundUrl) -> "_Connection | None":
        now = asyncio.get_running_loop().time()
        connections = self._idle.get(url.origin)
        while connections:
            connection, until = connections.pop()
            if until > now and connection.is_reusable:
                return connection
            connection.abort()
        return None

    def _put(self, url: OutboundUrl, connection: "_Connection") -> None:
        connections = self._idle.setdefault(url.origin, [])
        if connection.is_reusable and len(connections) < self._keep:
            connections.append((connection, asyncio.get_running_loop().time() + self._keep_seconds))
        else:
            connection.abort()

    async def _connect(self, url: OutboundUrl) -> "_Connection":
        if url.is_tls and self._ssl is None:
            self._ssl = default_ssl_context()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await loop.create_connection(
                    _Connection, url.host, url.port, ssl=self._ssl if url.is_tls else None
                )
        except TimeoutError:
            raise OutboundUnreachable(f"no connection within {self._connect_seconds:g} s") from None
        except OSError as problem:
            words = problem.strerror or type(problem).__name__
            raise OutboundUnreachable(f"could not connect: {words}") from None
        return connection


def _parsed(url: str) -> OutboundUrl:
    try:
        return parse_url(url)
    except UrlInvalid as problem:
        raise OutboundUnreachable(str(problem)) from None


def url_problem(url: str) -> str | None:
    """Why this cannot be a target's URL; None when it can."""
    try:
        parse_url(url)
    except UrlInvalid as problem:
        return str(problem)
    return None


def token_problem(token: str) -> str | None:
    return check_headers({"authorization": f"Bearer {token}"})


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed: Exception | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self._head_done = False
        self._complete = False
        self._keeps_alive = False
        self._failed: Exception | None = None
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._received = 0
        self._paused = False

    @property
    def is_reusable(self) -> bool:
        transport = self._transport
        return (
            self._complete
            and not self._chunks
            and self._failed is None
            and transport is not None
            and not transport.is_closing()
            and self._keeps_alive
        )

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, request: bytes, idle_seconds: float) -> "_Connection":
        """Send, and wait for the answer's head. However this ends but by returning, it hangs up."""
        self._begin()
        if self._transport is None or self._transport.is_closing():
            raise _NoAnswerError("the connection was closed")
        try:
            self._transport.write(request)
            while not self._head_done:
                self._raise_failure()
                await self._more(idle_seconds)
        except BaseException:
            self.abort()
            raise
        return self

    async def next_chunk(self, idle_seconds: float) -> bytes | None:
        """All that has come since the last one; None at the end."""
        while not self._chunks:
            if self._complete:
                return None
            self._raise_failure()
            await self._more(idle_seconds)
        chunk = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return chunk

    def _raise_failure(self) -> None:
        if self._failed is not None:
            raise self._failed

    async def _more(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self._time_is_over, seconds)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _time_is_over(self, seconds: float) -> None:
        self._fail(OutboundTimeout(f"nothing came for {seconds:g} s"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, problem: Exception) -> None:
        if self._failed is None and not self._complete:
            self._failed = problem
        self._wake()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in _KEEP_ALIVE:
                    if hasattr(socket, name):
                        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(OutboundProtocolError("the target switched protocols"))
        except httptools.HttpParserError:
            self._fail(OutboundProtocolError(f"no HTTP, but {len(data)} bytes of something else"))
        if not self._head_done and self._received > _MAX_HEAD_BYTES:
            self._fail(OutboundProtocolError("the answer's headers are too large"))
        if self._failed is not None:
            self.abort()
        elif self._buffered > _HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._complete:
            return
        if self._received == 0:
            self._fail(_NoAnswerError("the connection was closed without an answer"))
        elif self._head_done and exc is None and not self._has_length():
            self._complete = True  # an answer without a length ends where the connection ends
        else:
            self._fail(AnswerCutError("the connection was closed in the middle of the answer"))
        self._wake()

    def _has_length(self) -> bool:
        return "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "")

    # httptools: an exception in here would be swallowed by the parser, so none raises

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_done:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            self._head_done = True

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        if self._head_done:
            self._complete = True
            # Only known in here: the parser forgets the answer's headers once it is through.
            self._keeps_alive = bool(self._parser.should_keep_alive())
        else:
            self.headers.clear()  # 100 Continue, 103 Early Hints: the answer proper is still to come
