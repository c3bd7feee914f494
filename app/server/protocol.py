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
the loop. Those are read a few at a time, so that whoever submits a job meanwhile is not behind all of them
(app/api/edge.py then limits what it takes to begin them). So is a body in very small chunks: a
thousand of a byte cost more to read than a megabyte in one.
"""

import asyncio
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.api.edge import EVENT_STREAM
from app.api.open_streams import AT_ONCE, CONNECTION
from app.api.problems import error_response
from app.errors import ForemanError, HeadersTooLarge, MethodNotAllowed, RequestTimeout, Unparsable
from app.identity.account import Account
from app.server.at_once import AnswerAtOnce
from app.server.connection import Connection, Flow
from app.server.connection_limit import ConnectionLimit, Droppable
from app.server.framing import (
    END_OF_HEAD,
    IN_CHUNKED_BODY,
    IN_HEAD,
    MAX_HEADER_BYTES,
    Trailers,
    body_length,
    ends_with_body,
    origin_form,
    trailers_too_large,
)
from app.server.idle import IdleTimer
from app.server.turns import Turns
from app.telemetry import NO_ROUTE, REQUESTS, SLOW_READERS

# How much of what comes behind an unanswered request is read ahead. Not nothing: as long as the connection is
# read, its end is noticed, and with it that nobody waits for the answer any more.
MAX_UNREAD_BYTES = 64 * 1024
WHOLE_REQUEST_FACTOR = 10
# How much of a chunked body is parsed at once, and with how many chunks in that the rest waits its turn.
CHUNKED_AT_ONCE = 32 * 1024
MANY_CHUNKS = 1000

# Those who wait: requests for event streams, bodies in very small chunks.
_STREAMS = Turns()
_CHUNKED = Turns()


class _Pipelined(Exception):
    """A request came behind a chunked one, before that was answered."""


class PacedProtocol(HttpToolsProtocol):
    request_timeout: float = 20.0
    reader_timeout: float = 30.0
    connection_limit = ConnectionLimit(20_000)

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        # Since when the current request has made no progress; None while no request is coming in.
        self._waiting_since: float | None = None
        self._began = 0.0
        self.url = b""
        self._place = IN_HEAD
        self._head_bytes = 0
        # The end of a head that is not complete: what ends it may come in two parts.
        self._seam = b""
        # What of a chunked body came since there was last something of the body itself in it.
        self._framing_bytes = 0
        # The chunks of one read, in the order they came.
        self._chunks: list[bytes] = []
        self._chunks_seen = 0
        # What came while the request waits for its turn, or for the answer to the one before it; None when
        # nothing waits. It begins at an offset: it may hold thousands of requests, taken one by one.
        self._unread: bytes | None = None
        self._unread_from = 0
        # Whatever else comes is thrown away.
        self._ignores_input = False
        self._shutting_down = False
        self._idle = IdleTimer(self.loop, self.timeout_keep_alive, self.timeout_keep_alive_handler)
        self._timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        # Whose requests come by it; behind a proxy that may change with each of them.
        self.account: Account | None = None
        self.waits = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.scheme == "https":
            # TLS would hold half a megabyte for each slow reader.
            transport.set_write_buffer_limits(HIGH_WATER_LIMIT)
        self._connection = Connection(transport, self.loop, self._stop_listening)
        self.transport = self._connection  # type: ignore[assignment]
        self.flow: Flow = Flow(transport)
        self._request_expected()
        self._timer = self.loop.call_later(self.request_timeout, self._check_pace)
        self.connection_limit.enforce(cast("set[Droppable]", self.connections))

    def drop_order(self) -> tuple[bool, float] | None:
        asked = self._unread is not None or (not self._answered() and self._place == IN_HEAD)
        if asked:
            return None
        return self.account is not None, max(self._began, self._idle.since or 0.0)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._idle.cancel()
        self._reader_took_something()
        self._connection.lost()
        if self.account is not None:
            self.account.connections.discard(self)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self._shutting_down = True
        self._connection.end()
        super().shutdown()

    def _stop_listening(self) -> bool:
        """The connection ends. Whether the client may still be speaking: then what it says is thrown away."""
        if self._shutting_down or not self._speaks():
            return False
        self._ignores_input = True
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
            self._reader_timer = self.loop.call_later(self.reader_timeout, self._leave_slow_reader)

    def resume_writing(self) -> None:
        self._reader_took_something()
        super().resume_writing()

    def _reader_took_something(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _leave_slow_reader(self) -> None:
        self._reader_timer = None
        SLOW_READERS.inc()
        self.hang_up()

    def hang_up(self) -> None:
        # Not close: that would wait for the buffers to drain into a reader that takes nothing.
        self.transport.abort()

    def key_ended(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        begun = cycle is not None and cycle.response_started and not cycle.response_complete
        if self.waits or begun or self._place != IN_HEAD:
            self.hang_up()

    def belong_to(self, account: Account) -> None:
        """Raises RateLimited when that account has too many."""
        account.comes_by(self)
        if self.account is not None:
            self.account.connections.discard(self)
        self.account = account

    def data_received(self, data: bytes) -> None:
        if self._unread is not None:
            self._wait_with(self._unread[self._unread_from :] + data, 0)
        elif self._ignores_input:
            self._connection.throw_away(len(data))
        elif data.startswith(b"GET ") and EVENT_STREAM in data and self._is_idle():
            self._wait_with(data, 0)
            _STREAMS.wait(self.loop, self.read_on)
        else:
            self._read(data, 0)

    def _wait_with(self, data: bytes, start: int) -> None:
        self._unread, self._unread_from = data, start
        if len(data) - start > MAX_UNREAD_BYTES:
            self.flow.hold_back()

    def read_on(self) -> None:
        """It is this one's turn; the client may have left in the meantime."""
        data, start, self._unread = self._unread, self._unread_from, None
        if data is not None and not self.transport.is_closing():
            self.flow.let_go()
            self._read(data, start)

    def on_response_complete(self) -> None:
        """As uvicorn's own, but with a timer of ours, and nothing that is parsed ahead."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._idle.begin()
        if self._unread is not None:
            self.loop.call_soon(self.read_on)

    def _unset_keepalive_if_required(self) -> None:
        self._idle.end()

    def _read(self, data: bytes, start: int) -> None:
        """Hand the parser one head or one body at a time, until a request has to be answered first."""
        self._unset_keepalive_if_required()
        if self._waiting_since is None and self._answered():
            self._request_expected()
        end = len(data)
        while start < end and not self._ignores_input and not self.transport.is_closing():
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
                    self._refuse(trailers_too_large())
                elif self._chunks_seen > MANY_CHUNKS and start < end and not self.transport.is_closing():
                    self._wait_with(data, start)
                    _CHUNKED.wait(self.loop, self.read_on)
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
            if ends_with_body(data, start, stop):
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
                self._ignores_input = True
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
            self.url = origin_form(self.url, self.headers)
        self._progress()
        length = body_length(self.headers)
        super().on_headers_complete()
        extensions: dict[str, Any] = {AT_ONCE: AnswerAtOnce(self.cycle), CONNECTION: self}
        self.scope["extensions"] = extensions
        self._place = length
        if self._place == IN_CHUNKED_BODY:
            self.headers = Trailers()

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
        self.url = b""
        self._place = IN_HEAD
        self._head_bytes = self._framing_bytes = 0
        super().on_message_complete()

    def _answered(self) -> bool:
        """No request is being answered: none came yet, or the last one's answer is through."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _speaks(self) -> bool:
        """The client is in the middle of a request, or has said more than was read."""
        return self._head_bytes > 0 or self._unread is not None or self._ignores_input

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
            REQUESTS.labels("other", NO_ROUTE, str(error.status)).observe(self.loop.time() - self._began)
            # Of its path there is as much as was read.
            path = self.url.partition(b"?")[0].decode("latin-1")
            said = error_response(path, error)
            head = [b"HTTP/1.1 %d %b" % (error.status, HTTPStatus(error.status).phrase.encode())]
            head += [b"%b: %b" % each for each in said.raw_headers if each[0] != b"connection"]
            head.append(b"connection: close")
            self.transport.write(b"\r\n".join(head) + END_OF_HEAD + bytes(said.body))
        self.transport.close()


def paced(
    request_timeout: float,
    reader_timeout: float,
    connection_limit: ConnectionLimit = PacedProtocol.connection_limit,
) -> type[PacedProtocol]:
    """The protocol with these time-outs; uvicorn makes its instances itself and takes only a class."""
    settings = {
        "request_timeout": request_timeout,
        "reader_timeout": reader_timeout,
        "connection_limit": connection_limit,
    }
    return type("Paced", (PacedProtocol,), settings)
