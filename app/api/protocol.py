"""uvicorn's HTTP protocol with patience that ends: slow, endless or broken requests are closed.

A request must make progress within the time-out (headers as a whole, then each part of the body) and
be complete within ten times that. One timer per connection, whatever the number of requests. A client that
does not read its answer is hung up on: what it has not taken is a few buffers, never more.

After a restart all event streams come back at once, and a thousand requests may be readable in one turn of
the loop. Those wait on the porch and are read a few at a time, so that whoever submits a job meanwhile is not
behind all of them (app/api/entrance.py then limits what it takes to begin them).
"""

import asyncio
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.api.entrance import EVENT_STREAM
from app.api.problems import problem_body
from app.errors import ForemanError, HeadersTooLarge, RequestTimeout, Unparsable
from app.telemetry import SLOW_READERS

MAX_HEADER_BYTES = 64 * 1024
WHOLE_REQUEST_FACTOR = 10
# How many requests for event streams are read at once, and how long the others then have the loop and the
# processor for themselves.
READ_AT_ONCE = 2
PAUSE_SECONDS = 0.002
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class Porch:
    """Where requests for event streams wait until they are read. One per process, as the loop is."""

    def __init__(self) -> None:
        self._waiting: deque[PacedProtocol] = deque()

    def wait(self, protocol: "PacedProtocol") -> None:
        self._waiting.append(protocol)
        if len(self._waiting) == 1:
            protocol.loop.call_soon(self._let_some_in)

    def _let_some_in(self) -> None:
        for _ in range(min(READ_AT_ONCE, len(self._waiting))):
            self._waiting.popleft().come_in()
        if self._waiting:
            self._waiting[0].loop.call_later(PAUSE_SECONDS, self._let_some_in)


_PORCH = Porch()


class PacedProtocol(HttpToolsProtocol):
    request_timeout: float = 20.0
    reader_timeout: float = 30.0

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        # Since when the current request has made no progress; None while no request is coming in.
        self._waiting_since: float | None = None
        self._began = 0.0
        self._header_bytes = 0
        # What came while the request waits on the porch; None when it does not.
        self._unread: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._request_expected()
        self._timer = self.loop.call_later(self.request_timeout, self._check_pace)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._reader_took_something()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reader_timer is None:
            self._reader_timer = self.loop.call_later(self.reader_timeout, self._hang_up)

    def resume_writing(self) -> None:
        self._reader_took_something()
        super().resume_writing()

    def _reader_took_something(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _hang_up(self) -> None:
        # Not close: that would wait for the buffers to drain into a reader that takes nothing.
        self._reader_timer = None
        SLOW_READERS.inc()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._unread is not None:
            self._unread += data
            if len(self._unread) > MAX_HEADER_BYTES:
                self.come_in()
        elif data.startswith(b"GET ") and EVENT_STREAM in data and self._answered():
            self._unread = data
            _PORCH.wait(self)
        else:
            self._read(data)

    def come_in(self) -> None:
        """Off the porch; it may have left in the meantime."""
        data, self._unread = self._unread, None
        if data is not None and not self.transport.is_closing():
            self._read(data)

    def _read(self, data: bytes) -> None:
        if self._waiting_since is None and self._answered():
            self._request_expected()
        self._header_bytes += len(data)
        super().data_received(data)
        if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(HeadersTooLarge(f"The headers may have at most {MAX_HEADER_BYTES} bytes."))

    def on_message_begin(self) -> None:
        self._request_expected()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._progress()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progress()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._waiting_since = None
        self._header_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Unparsable(msg))

    def _answered(self) -> bool:
        """No request is being answered: none came yet, or the last one's answer is through."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _request_expected(self) -> None:
        self._waiting_since = self._began = self.loop.time()
        self._header_bytes = 0

    def _progress(self) -> None:
        self._waiting_since = self.loop.time()
        # The headers are through; what comes now is body and is counted elsewhere.
        self._header_bytes = -(1 << 62)

    def _check_pace(self) -> None:
        if self.transport.is_closing():
            return
        wait = self.request_timeout
        if self._waiting_since is not None:
            now = self.loop.time()
            left = self._waiting_since + self.request_timeout - now
            if left <= 0 or now - self._began > self.request_timeout * WHOLE_REQUEST_FACTOR:
                self._refuse(RequestTimeout())
                return
            wait = left
        self._timer = self.loop.call_later(max(wait, 0.01), self._check_pace)

    def _refuse(self, error: ForemanError) -> None:
        """Say why, unless an answer is already on its way, and hang up."""
        if self._answered() or not self.cycle.response_started:
            body = problem_body(error)
            self.transport.write(
                b"HTTP/1.1 %d %b\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%b" % (error.status, _REASONS[error.status], len(body), body)
            )
        self.transport.close()


def paced(request_timeout: float, reader_timeout: float) -> type[PacedProtocol]:
    """The protocol with these time-outs; uvicorn makes its instances itself and takes only a class."""
    return type(
        "Paced", (PacedProtocol,), {"request_timeout": request_timeout, "reader_timeout": reader_timeout}
    )
