"""One HTTP/1.1 connection: sends a request, gives its answer as it comes, says whether another may follow.

The parser is llhttp in its strict mode. Whatever the peer sends, the memory held is bounded: headers have a
cap, and beyond some unread body the peer is made to wait. An answer that is not finished cleanly makes the
connection unusable for the next request.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from app.loops.alarm import Alarm
from app.outbound.errors import AnswerCutError, ConnectionDropped, OutboundProtocolError, OutboundTimeout

MAX_HEAD_BYTES = 64 * 1024
# Chunk framing may multiply the bytes on the wire; an answer that is mostly framing is cut off all the same.
WIRE_BYTES_PER_BODY_BYTE = 8
# Beyond this much unread the peer has to wait.
HIGH_WATER = 256 * 1024

Sink = Callable[[bytes], None]


class Connection(asyncio.Protocol):
    """One request at a time; `is_reusable` tells whether another may follow."""

    def __init__(self) -> None:
        self.on_closed: Callable[[], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        # Rings whenever something came, good or bad.
        self._came = Alarm()
        # Between the sending of a request and the end of its answer, good or bad.
        self._is_answering = False
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self._is_head = False
        self._has_head = False
        self._length_known = False
        self._keeps_alive = False
        self._failure: OutboundProtocolError | OutboundTimeout | None = None
        self._body = bytearray()
        self._head_bytes = 0
        self._wire_bytes = 0
        self._max_wire_bytes: int | None = None
        self._high_water = HIGH_WATER
        self._is_paused = False
        self._was_cut_off = False
        # Takes the body as it comes, where somebody wants it so; what it raised; when something last came.
        self._sink: Sink | None = None
        self._objection: Exception | None = None
        self._heard_at = 0.0
        self._time: Callable[[], float] = lambda: 0.0

    @property
    def is_reusable(self) -> bool:
        transport = self._transport
        return (
            self._keeps_alive
            and not self._body  # left unread
            and not self._is_paused
            and transport is not None
            and not transport.is_closing()
            and transport.get_write_buffer_size() == 0  # answered before it had read all of the request
        )

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close without waiting for anything, be it unsent bytes or a TLS farewell."""
        if self._transport is not None:
            self._transport.abort()

    async def send(self, request: bytes, *, is_head: bool, idle_seconds: float | None) -> None:
        """Send `request` and wait for the answer's head. However this ends but by returning, it hangs up."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionDropped("the connection was closed without an answer")
        self._begin()
        self._is_head = is_head
        self._is_answering = True
        try:
            self._transport.write(request)
            while not self._has_head:
                if self._failure is not None:
                    raise self._failure
                await self._more(idle_seconds)
        except BaseException:
            self.abort()
            raise

    async def next_chunk(self, idle_seconds: float | None) -> bytes | None:
        """All of the body that has come since the last one; None at its end."""
        while not self._body:
            if self._failure is not None:
                raise self._failure
            if not self._is_answering:
                return None
            await self._more(idle_seconds)
        chunk = bytes(self._body)
        self._body.clear()
        self._resume()
        return chunk

    async def pour(self, sink: Sink, idle_seconds: float | None) -> None:
        """Hand the body to `sink` as it comes, right where it is read, until its end. What it raises ends it.

        A reader that is woken for each chunk would cost more than most of what comes.
        """
        loop = asyncio.get_running_loop()
        self._sink, self._heard_at, self._time = sink, loop.time(), loop.time
        try:
            if self._body:
                self._pour()
            while self._is_answering:
                left = None if idle_seconds is None else self._heard_at + idle_seconds - loop.time()
                if left is not None and left <= 0:
                    self._fail(OutboundTimeout(f"nothing came for {idle_seconds:g} s"))
                else:
                    await self._came.wait(left)
        finally:
            self._sink = None
        problem = self._objection or self._failure
        if problem is not None:
            raise problem

    def _pour(self) -> None:
        chunk = bytes(self._body)
        self._body.clear()
        self._resume()
        try:
            if self._sink is not None:
                self._sink(chunk)
        except Exception as problem:
            # The run's own: it is raised where the run waits.
            self._sink, self._objection = None, problem
            self._keeps_alive = False
            self._end()
            self.abort()

    async def rest(self, max_bytes: int, idle_seconds: float | None) -> tuple[bytes, bool]:
        """The whole of the body, or its first `max_bytes`; then True: no more is waited for."""
        self._max_wire_bytes = MAX_HEAD_BYTES + WIRE_BYTES_PER_BODY_BYTE * max_bytes
        self._high_water = max(HIGH_WATER, max_bytes)
        self._resume()
        while self._is_answering and len(self._body) <= max_bytes:
            await self._more(idle_seconds)
        truncated = self._was_cut_off or len(self._body) > max_bytes
        if self._failure is not None and not truncated:
            raise self._failure
        body = bytes(self._body[:max_bytes])
        self._body.clear()
        return body, truncated

    def _resume(self) -> None:
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    async def _more(self, idle_seconds: float | None) -> None:
        if not await self._came.wait(idle_seconds):
            self._fail(OutboundTimeout(f"nothing came for {idle_seconds:g} s"))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its base class

    def data_received(self, data: bytes) -> None:
        if not self._is_answering:
            self.abort()  # nobody asked
            return
        self._wire_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(OutboundProtocolError("the receiver switched protocols"))
        except httptools.HttpParserError:
            self._fail(OutboundProtocolError("the answer is no HTTP"))
        if self._sink is not None and self._body:
            self._pour()
        if self._is_answering:
            self._enforce_limits()
        if self._sink is not None and self._is_answering:
            self._heard_at = self._time()
        else:
            self._came.ring()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if exc is None and self._has_head and not self._length_known:
            self._end()  # an answer without a length ends where the connection ends
        elif self._wire_bytes == 0:
            self._fail(ConnectionDropped("the connection was closed without an answer"))
        else:
            self._fail(AnswerCutError("the connection was closed in the middle of the answer"))
        if self.on_closed is not None:
            self.on_closed()

    # httptools callbacks: an exception in here would be swallowed by the parser, so none raises

    def on_message_begin(self) -> None:
        if not self._is_answering:
            self._keeps_alive = False  # bytes behind the end of the answer

    def on_status(self, status: bytes) -> None:
        self._count_head(len(status))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + 4)
        if self._has_head or not self._is_answering:
            return  # a trailer, or a second answer
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        if key == "content-length" or (key == "transfer-encoding" and "chunked" in text.lower()):
            self._length_known = True
        self.headers.append((key, text))

    def on_headers_complete(self) -> None:
        if not self._is_answering:
            return
        status = self._parser.get_status_code()
        if status == 101:
            self._fail(OutboundProtocolError("the receiver switched protocols"))
        elif status >= 200:
            self.status = status
            self._has_head = True
            if self._is_head:
                # The parser would wait for the body that Content-Length describes: no use for another call.
                self._end()
                self.abort()

    def on_body(self, body: bytes) -> None:
        if self._is_answering:
            self._body += body

    def on_message_complete(self) -> None:
        if not self._is_answering:
            return
        if not self._has_head:  # 100 Continue, 103 Early Hints: the answer proper is still to come
            self.headers.clear()
            self._length_known = False
            return
        # Only known in here: the parser forgets the answer's headers once it is through.
        self._keeps_alive = self._parser.should_keep_alive()
        self._end()

    # endings

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._fail(OutboundProtocolError("the answer's headers are too large"))

    def _enforce_limits(self) -> None:
        if not self._has_head:
            if self._wire_bytes > MAX_HEAD_BYTES:
                self._fail(OutboundProtocolError("the answer's headers are too large"))
        elif self._max_wire_bytes is not None and self._wire_bytes > self._max_wire_bytes:
            self._was_cut_off = True
            self._end()
            self.abort()
        elif len(self._body) > self._high_water and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _end(self) -> None:
        self._is_answering = False
        self._came.put_away()
        self._came.ring()

    def _fail(self, failure: OutboundProtocolError | OutboundTimeout) -> None:
        """What has ended stays as it is; the connection is of no more use either way."""
        self._keeps_alive = False
        if self._is_answering:
            self._failure = failure
            self._end()
        self.abort()
