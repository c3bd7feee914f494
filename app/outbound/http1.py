"""One HTTP/1.1 connection: writes a request, reads one answer up to a cap, and says whether it can go on.

The parser is llhttp in its strict mode. Whatever the peer sends, the memory held is bounded by the caps, and
an answer that is not finished cleanly makes the connection unusable for the next request.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from app.outbound.errors import OutboundProtocolError
from app.outbound.response import OutboundResponse

MAX_HEAD_BYTES = 64 * 1024
# Chunk framing may multiply the bytes on the wire; an answer that is mostly framing is cut off all the same.
WIRE_BYTES_PER_BODY_BYTE = 8


class ConnectionDropped(OutboundProtocolError):
    """The peer closed before a single byte of the answer. A reused connection had most likely idled out."""


class Http1Connection(asyncio.Protocol):
    """One request at a time; `is_reusable` tells whether another may follow."""

    def __init__(self) -> None:
        self.on_closed: Callable[[], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[OutboundResponse] | None = None
        self._ended_cleanly = False
        self._is_head = False
        self._max_body_bytes = 0
        self._reset()

    def _reset(self) -> None:
        self._status = 0
        self._headers: list[tuple[str, str]] = []
        self._headers_complete = False
        self._length_known = False
        self._body = bytearray()
        self._head_bytes = 0
        self._wire_bytes = 0

    @property
    def is_reusable(self) -> bool:
        transport = self._transport
        return (
            self._ended_cleanly
            and transport is not None
            and not transport.is_closing()
            and transport.get_write_buffer_size() == 0  # answered before it had read all of the request
        )

    async def exchange(self, request: bytes, *, is_head: bool, max_body_bytes: int) -> OutboundResponse:
        """Send `request`, return the answer. However this ends but by returning, the connection is closed."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionDropped("the connection was closed without an answer")
        self._reset()
        self._ended_cleanly = False
        self._is_head = is_head
        self._max_body_bytes = max_body_bytes
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(request)
            return await self._answer
        except BaseException:
            self.abort()
            raise

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close without waiting for anything, be it unsent bytes or a TLS farewell."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_awaited:
            self.abort()  # nobody asked
            return
        self._wire_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("the receiver switched protocols")
        except httptools.HttpParserError:
            self._ended_cleanly = False
            self._fail("the answer is not valid HTTP")
        self._enforce_wire_limits()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_awaited:
            if exc is None and self._headers_complete and not self._length_known:
                self._finish()  # an answer without a length ends where the connection ends
            elif self._wire_bytes == 0:
                self._settle_with(ConnectionDropped("the connection was closed without an answer"))
            else:
                self._fail("the connection was closed in the middle of the answer")
        self._transport = None
        if self.on_closed is not None:
            self.on_closed()

    # httptools callbacks: an exception in here would be swallowed by the parser, so none raises

    def on_message_begin(self) -> None:
        if not self._is_awaited:
            self._ended_cleanly = False  # bytes behind the end of the answer

    def on_status(self, status: bytes) -> None:
        self._count_head(len(status))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + 4)
        if self._headers_complete or not self._is_awaited:
            return  # a trailer, or a second answer
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        if key == "content-length" or (key == "transfer-encoding" and "chunked" in text.lower()):
            self._length_known = True
        self._headers.append((key, text))

    def on_headers_complete(self) -> None:
        if not self._is_awaited:
            return
        self._status = self._parser.get_status_code()
        if self._status == 101:
            self._fail("the receiver switched protocols")
        elif self._status >= 200:
            self._headers_complete = True
            if self._is_head:
                # The parser would wait for the body that Content-Length describes: no use for another call.
                self._finish()
                self.abort()

    def on_body(self, body: bytes) -> None:
        if not self._is_awaited:
            return
        room = self._max_body_bytes - len(self._body)
        self._body += body[:room]
        if len(body) > room:
            self._cut_off()

    def on_message_complete(self) -> None:
        if not self._is_awaited:
            return
        if self._status < 200:  # 100 Continue, 103 Early Hints: the answer proper is still to come
            self._headers.clear()
            self._length_known = False
            return
        self._ended_cleanly = self._parser.should_keep_alive()
        self._finish()
        if not self._ended_cleanly:
            self.close()

    # endings

    @property
    def _is_awaited(self) -> bool:
        return self._answer is not None and not self._answer.done()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._fail("the answer's headers are too large")

    def _enforce_wire_limits(self) -> None:
        if not self._is_awaited:
            return
        if not self._headers_complete:
            if self._wire_bytes > MAX_HEAD_BYTES:
                self._fail("the answer's headers are too large")
        elif self._wire_bytes > MAX_HEAD_BYTES + WIRE_BYTES_PER_BODY_BYTE * self._max_body_bytes:
            self._cut_off()

    def _cut_off(self) -> None:
        self._finish(truncated=True)
        self.abort()

    def _finish(self, *, truncated: bool = False) -> None:
        if self._answer is not None and not self._answer.done():
            body = bytes(self._body)
            self._answer.set_result(OutboundResponse(self._status, self._headers, body, truncated))

    def _fail(self, reason: str) -> None:
        self._settle_with(OutboundProtocolError(reason))
        self.abort()

    def _settle_with(self, error: OutboundProtocolError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
