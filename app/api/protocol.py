"""uvicorn's HTTP protocol with patience that ends: slow, endless or broken requests are closed.

A request must make progress within the time-out (headers as a whole, then each part of the body) and
be complete within ten times that. One timer per connection, whatever the number of requests. A client that
does not read its answer is hung up on: what it has not taken is a few buffers, never more.

One request at a time: what comes behind a request that is not answered yet stays unparsed, and when there is
much of it, unread. So a connection costs its buffers, however many requests are pipelined on it. For that the
parser is given exactly one head or one body at a time. What follows a chunked body, whose end only the parser
finds, is not taken at all: the connection ends with the answer, as RFC 9112 allows.

Nobody is upgraded to anything: a request that offers to be (Java's client offers h2c with everything) is read
as if it had not, its body included. Trailers are counted and thrown away, never taken for headers.

A refusal while the request is still coming is followed by a lingering close: what comes is thrown away for a
while. Closed at once with input unread, the connection would be reset, and the answer be lost with it.

After a restart all event streams come back at once, and a thousand requests may be readable in one turn of
the loop. Those wait on the porch and are read a few at a time, so that whoever submits a job meanwhile is not
behind all of them (app/api/entrance.py then limits what it takes to begin them). So does a body in crumbs: a
thousand chunks of a byte cost more to read than a megabyte in one.
"""

import asyncio
from collections import deque
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.api.entrance import EVENT_STREAM
from app.api.problems import problem_body
from app.errors import ForemanError, HeadersTooLarge, MethodNotAllowed, RequestTimeout, Unparsable
from app.telemetry import NO_ROUTE, REQUESTS, SLOW_READERS

MAX_HEADER_BYTES = 64 * 1024
MAX_TRAILER_BYTES = 8 * 1024
# How much of what comes behind an unanswered request is read ahead. Not nothing: as long as the connection is
# read, its end is noticed, and with it that nobody waits for the answer any more.
MAX_UNREAD_BYTES = 64 * 1024
WHOLE_REQUEST_FACTOR = 10
# How many requests for event streams are read at once, and how long the others then have the loop and the
# processor for themselves.
READ_AT_ONCE = 2
PAUSE_SECONDS = 0.002
# How much of a chunked body is parsed at once, and with how many chunks in that the rest waits its turn.
CHUNKED_AT_ONCE = 32 * 1024
MANY_CHUNKS = 1000
# How long, and for how much, an end waits for a client that is still sending.
LINGER_SECONDS = 5.0
LINGER_BYTES = 32 * 1024 * 1024
MAX_LENGTH_DIGITS = 18
END_OF_HEAD = b"\r\n\r\n"
BEGINS_AN_ANSWER = b"HTTP/1.1 "
# Where in a request the parser is; a number above is what is left of a body that said its length.
IN_HEAD = 0
IN_CHUNKED_BODY = -1
_REASONS = {
    400: b"Bad Request",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
}


class Porch:
    """Where requests wait until they are read, a few at a time. For the whole process, as the loop is."""

    def __init__(self) -> None:
        self._waiting: deque[PacedProtocol] = deque()
        self._opens = False

    def wait(self, protocol: "PacedProtocol") -> None:
        self._waiting.append(protocol)
        if not self._opens:
            self._opens = True
            protocol.loop.call_soon(self._let_some_in)

    def _let_some_in(self) -> None:
        try:
            for _ in range(min(READ_AT_ONCE, len(self._waiting))):
                self._waiting.popleft().come_in()
        finally:
            self._opens = bool(self._waiting)
            if self._opens:
                self._waiting[0].loop.call_later(PAUSE_SECONDS, self._let_some_in)


_PORCH = Porch()
_CRUMBS = Porch()


class _Gathering:
    """A connection on which the head of an answer leaves together with the first of its body.

    uvloop sends at once what is written: a short answer would be two system calls and wake its reader twice.
    It ends gently: what a client was told while it still spoke is not lost.
    """

    __slots__ = ("_flushing", "_head", "_lingering", "_loop", "_protocol", "_room", "_transport")

    def __init__(self, transport: asyncio.Transport, protocol: "PacedProtocol") -> None:
        self._transport = transport
        self._protocol = protocol
        self._loop = protocol.loop
        self._head = b""
        self._flushing: asyncio.Handle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._room = LINGER_BYTES

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
            data, self._head = self._head + data, b""
        elif data.startswith(BEGINS_AN_ANSWER):
            # Where nothing follows in this turn of the loop, it leaves by itself.
            self._head = data
            self._flushing = self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._lingering is not None or self._transport.is_closing()

    def close(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flush()
        if self.is_closing():
            return
        if self._transport.can_write_eof() and self._protocol.stop_listening():
            self._transport.write_eof()
            self._lingering = self._loop.call_later(LINGER_SECONDS, self._transport.close)
        else:
            self._transport.close()

    def throw_away(self, size: int) -> None:
        """So much more came that nobody listens to."""
        if self._lingering is not None:
            self._room -= size
            if self._room < 0:
                self._transport.close()

    def end(self) -> None:
        """Wait no longer for a client that was told already."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._transport.close()

    def _flush(self) -> None:
        self._flushing = None
        data, self._head = self._head, b""
        self._transport.write(data)


class _Flow(FlowControl):
    """Reading is also held back for reasons of ours, which no request that waits for its body knows of."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._held_back = False

    def hold_back(self) -> None:
        self._held_back = True
        self.pause_reading()

    def let_go(self) -> None:
        if self._held_back:
            self._held_back = False
            self.resume_reading()

    def resume_reading(self) -> None:
        if not self._held_back:
            super().resume_reading()


class _Trailers(list[tuple[bytes, bytes]]):
    """Where the parser puts what looks like headers after the body: counted and forgotten."""

    def __init__(self) -> None:
        self._room = MAX_TRAILER_BYTES

    def append(self, trailer: tuple[bytes, bytes]) -> None:
        self._room -= len(trailer[0]) + len(trailer[1])
        if self._room < 0:
            raise _trailers_too_large()


def _trailers_too_large() -> HeadersTooLarge:
    return HeadersTooLarge(f"The trailers may have at most {MAX_TRAILER_BYTES} bytes.")


class _Pipelined(Exception):
    """A request came behind a chunked one, before that was answered."""


class PacedProtocol(HttpToolsProtocol):
    request_timeout: float = 20.0
    reader_timeout: float = 30.0

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        # Since when the current request has made no progress; None while no request is coming in.
        self._waiting_since: float | None = None
        self._began = 0.0
        self._place = IN_HEAD
        self._head_bytes = 0
        # The end of a head that is not complete: what ends it may come in two parts.
        self._seam = b""
        # What of a chunked body came since there was last something of the body itself in it.
        self._framing_bytes = 0
        # The chunks of one read, in the order they came.
        self._chunks: list[bytes] = []
        self._chunks_seen = 0
        # What came while the request waits on the porch, or for the answer to the one before it; None when
        # nothing waits. It begins at an offset: it may hold thousands of requests, taken one by one.
        self._unread: bytes | None = None
        self._unread_from = 0
        # Whatever else comes is not listened to.
        self._deaf = False
        self._shutting_down = False
        self._timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wire = _Gathering(transport, self)
        self.transport = self._wire  # type: ignore[assignment]
        self.flow: _Flow = _Flow(transport)
        self._request_expected()
        self._timer = self.loop.call_later(self.request_timeout, self._check_pace)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._reader_took_something()
        self._wire.end()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self._shutting_down = True
        self._wire.end()
        super().shutdown()

    def stop_listening(self) -> bool:
        """The connection ends. Whether the client may still be speaking: then what it says is thrown away."""
        if self._shutting_down or not self._speaks():
            return False
        self._deaf = True
        self._unread = None
        self._chunks.clear()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None:
            # Nobody waits for the rest of the body, or holds what came of it, until the connection is gone.
            cycle.disconnected = not cycle.response_complete
            cycle.body = bytearray()
            cycle.message_event.set()
        self.flow.let_go()
        self.flow.resume_reading()
        return True

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
            self._wait_with(self._unread[self._unread_from :] + data, 0)
        elif self._deaf:
            self._wire.throw_away(len(data))
        elif data.startswith(b"GET ") and EVENT_STREAM in data and self._is_idle():
            self._wait_with(data, 0)
            _PORCH.wait(self)
        else:
            self._read(data, 0)

    def _wait_with(self, data: bytes, start: int) -> None:
        self._unread, self._unread_from = data, start
        if len(data) - start > MAX_UNREAD_BYTES:
            self.flow.hold_back()

    def come_in(self) -> None:
        """Off the porch, or next in line; it may have left in the meantime."""
        data, start, self._unread = self._unread, self._unread_from, None
        if data is not None and not self.transport.is_closing():
            self.flow.let_go()
            self._read(data, start)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unread is not None:
            self.loop.call_soon(self.come_in)

    def _read(self, data: bytes, start: int) -> None:
        """Hand the parser one head or one body at a time, until a request has to be answered first."""
        self._unset_keepalive_if_required()
        if self._waiting_since is None and self._answered():
            self._request_expected()
        end = len(data)
        while start < end and not self._deaf and not self.transport.is_closing():
            if self._place > 0:
                stop = min(end, start + self._place)
                left = self._place - (stop - start)
                self._parse(data[start:stop])
                # Its end is the parser's to say; what is left then is only a wish.
                if self._place != IN_HEAD:
                    self._place = left or IN_CHUNKED_BODY
                start = stop
            elif self._place == IN_CHUNKED_BODY:
                stop = min(end, start + CHUNKED_AT_ONCE)
                self._framing_bytes += stop - start
                self._chunks_seen = 0
                self._parse(data[start:stop])
                start = stop
                if self._framing_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
                    self._refuse(_trailers_too_large())
                elif self._chunks_seen > MANY_CHUNKS and start < end and not self.transport.is_closing():
                    self._wait_with(data, start)
                    _CRUMBS.wait(self)
                    return
            elif self._answered():
                start = self._read_head(data, start)
            else:
                self._wait_with(data, start)
                return

    def _read_head(self, data: bytes, start: int) -> int:
        """As much of a head as there is; where it ends."""
        seam = self._seam
        found = (seam + data[start : start + 3]).find(END_OF_HEAD) if seam else -1
        if found >= 0:
            stop = start + found + 4 - len(seam)
        else:
            found = data.find(END_OF_HEAD, start)
            stop = found + 4 if found >= 0 else len(data)
        self._head_bytes += stop - start
        if self._head_bytes > MAX_HEADER_BYTES:
            self._refuse(HeadersTooLarge(f"The headers may have at most {MAX_HEADER_BYTES} bytes."))
            return stop
        if found < 0:
            self._seam = (seam + data[max(start, stop - 3) : stop])[-3:]
        else:
            self._seam = b""
            if _ends_with_body(data, start, stop):
                stop = len(data)
        return start + self._parse(data[start:stop] if start or stop < len(data) else data)

    def _parse(self, data: bytes) -> int:
        """Returns how much of it the parser took."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offered:
            self._begin_without_upgrade()
            return int(offered.args[0])
        except httptools.HttpParserError as problem:
            # What a callback raised is its context.
            cause = problem.__context__
            if isinstance(cause, _Pipelined):
                self._deaf = True
                self.cycle.keep_alive = False
            else:
                self._refuse(
                    cause if isinstance(cause, ForemanError) else Unparsable("Invalid HTTP request received.")
                )
        if self._chunks:
            self._hand_on_chunks()
        return len(data)

    def _begin_without_upgrade(self) -> None:
        """Read the head again without its offer. The parser would take the body for another protocol."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(MethodNotAllowed("This is not a proxy."))
            return
        head = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        head += [b"%b: %b" % each for each in self.headers if each[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._parse(b"\r\n".join(head) + END_OF_HEAD)

    def on_message_begin(self) -> None:
        if not self._answered():
            raise _Pipelined
        self._request_expected()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if self.url[:1] != b"/":
            self._target_names_host()
        self._progress()
        length = _body_length(self.headers)
        super().on_headers_complete()
        self._place = length
        if self._place == IN_CHUNKED_BODY:
            self.headers = _Trailers()

    def _target_names_host(self) -> None:
        """`GET http://host/path`: the Host header is to be ignored then (RFC 9112, 3.2.2)."""
        target = httptools.parse_url(self.url)
        if not target.host:
            return
        host = b"[%b]" % target.host if b":" in target.host else target.host
        named = b"%b:%d" % (host, target.port) if target.port else host
        self.headers[:] = [each for each in self.headers if each[0] != b"host"]
        self.headers.append((b"host", named))
        self.url = (target.path or b"/") + (b"?" + target.query if target.query else b"")

    def on_body(self, body: bytes) -> None:
        if self._place == IN_CHUNKED_BODY:
            self._chunks.append(body)
        else:
            self._progress()
            super().on_body(body)

    def _hand_on_chunks(self) -> None:
        """As one part: of one byte each there may be thousands in one read."""
        body = b"".join(self._chunks)
        self._chunks_seen += len(self._chunks)
        self._chunks.clear()
        self._progress()
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if self._chunks:
            self._hand_on_chunks()
        self._waiting_since = None
        self._place = IN_HEAD
        self._head_bytes = self._framing_bytes = 0
        super().on_message_complete()

    def _answered(self) -> bool:
        """No request is being answered: none came yet, or the last one's answer is through."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _speaks(self) -> bool:
        """The client is in the middle of a request, or has said more than was read."""
        return self._head_bytes > 0 or self._unread is not None or self._deaf

    def _is_idle(self) -> bool:
        """What comes now begins a request."""
        return self._place == IN_HEAD and not self._head_bytes and self._answered()

    def _request_expected(self) -> None:
        self._waiting_since = self._began = self.loop.time()

    def _progress(self) -> None:
        self._waiting_since = self.loop.time()

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
            REQUESTS.labels("other", NO_ROUTE, str(error.status)).observe(self.loop.time() - self._began)
            self.transport.write(
                b"HTTP/1.1 %d %b\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%b" % (error.status, _REASONS[error.status], len(body), body)
            )
        self.transport.close()


def _ends_with_body(data: bytes, start: int, stop: int) -> bool:
    """Whether all that comes after the head is its body: the usual case, and then the parser is called once.

    Only a guess, which may be wrong: should a header of another name look like the length, the parser finds
    what is pipelined behind, as it does behind a chunked body.
    """
    at = data.find(b"ontent-", start, stop)
    while at >= 0:
        if data[at + 7 : at + 14].lower() == b"length:":
            length = data[at + 14 : data.find(b"\r", at, stop)].strip()
            return length.isdigit() and len(length) < 12 and stop + int(length) == len(data)
        at = data.find(b"ontent-", at + 7, stop)
    return False


def _body_length(headers: list[tuple[bytes, bytes]]) -> int:
    """As far as the headers say it; the parser has found them sound."""
    length = 0
    for name, value in headers:
        if name == b"transfer-encoding":
            return IN_CHUNKED_BODY
        if name == b"content-length":
            # Python refuses to read thousands of digits, and the parser takes them if they are zeros.
            if len(value) > MAX_LENGTH_DIGITS and len(value.strip()) > MAX_LENGTH_DIGITS:
                raise Unparsable(f"A Content-Length has at most {MAX_LENGTH_DIGITS} digits.")
            length = int(value)
    return length


def paced(request_timeout: float, reader_timeout: float) -> type[PacedProtocol]:
    """The protocol with these time-outs; uvicorn makes its instances itself and takes only a class."""
    return type(
        "Paced", (PacedProtocol,), {"request_timeout": request_timeout, "reader_timeout": reader_timeout}
    )
