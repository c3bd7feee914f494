"""`POST /jobs` by the short way: a small ordinary submission goes from the connection straight to the intake.

No task, no ASGI scope, no future: the whole request is there in one read, its job is handed to the same
batcher as everybody's, and the answer is written when the batch is committed (docs/decisions/0015).

Many clients send the head first and then the body: a head by itself is held until its body is there too, but
only for a moment. All other waiting is the business of the ordinary way (protocol.py).

It takes only what it understands completely. Whatever is unusual in any way (a header that is not among the
harmless ones, or comes twice; a body that is no valid job; a queue with rules; a webhook) is left alone, no
byte of it consumed, and goes the ordinary way, which alone refuses. Who may come in is asked of the edge.
"""

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.api.edge import (
    SECURITY_HEADERS,
    CallersConnection,
    Edge,
    Seen,
    failure_response,
    refused_seconds,
    usable_request_id,
)
from app.api.job_parameters import key_from, trace_from
from app.api.jobs import fingerprint, plain_answer, submitted_response
from app.engine.intake import Intake
from app.errors import RateLimited
from app.identity.limits import RequestRate
from app.identity.scopes import Scope as KeyScope
from app.jobs.submission import parse_job
from app.server.framing import END_OF_HEAD
from app.server.protocol import PacedProtocol
from app.store.idempotency import Receipt, Submission

REQUEST_LINE = b"POST /jobs HTTP/1.1\r\n"
PATH = "/jobs"
SCOPE = KeyScope.JOBS_WRITE
MAX_HEAD_BYTES = 8 * 1024
# How long a head waits for its body here; a client that means to send it is quicker.
HELD_SECONDS = 0.02
# What the ordinary way does not look at for this route, and what is understood here.
HARMLESS = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"authorization",
        b"connection",
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-real-ip",
        b"x-request-id",
    }
)
# Of these, those that a client says in the same words each time.
SAID_ALIKE = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"connection",
        b"content-type",
        b"host",
        b"user-agent",
    }
)
_PRINTABLE = bytes(range(0x20, 0x7F))
# Of the scope of such a request, all that decides who may come in (see app/api/guard.py).
_SCOPE: Scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": PATH, "headers": []}


class Asker(CallersConnection, Protocol):
    """The connection that a request came by."""

    # What its last request began with, and the headers in that, if they were of use.
    last_head: bytes
    last_headers: dict[bytes, bytes] | None

    def answer(self, status: int, headers: bytes, body: bytes) -> None:
        """Write the whole answer; harmless when the client has left."""


class DirectSubmissions:
    def __init__(self, edge: Edge, intake: Intake, max_depth: int) -> None:
        self._edge = edge
        self._intake = intake
        self._max_depth = max_depth
        # How long those took that were answered just now, by status.
        self._uncounted: dict[int, list[float]] = {}

    def awaits_body(self, data: bytes) -> bool:
        """Whether this is the head of such a request, as far as heads go, and nothing but it."""
        if not data.endswith(END_OF_HEAD) or data.find(END_OF_HEAD) != len(data) - len(END_OF_HEAD):
            return False
        headers = _headers(data[len(REQUEST_LINE) : -len(END_OF_HEAD)])
        return headers is not None and 0 < self._length(headers) <= self._edge.unwatched

    def take(self, data: bytes, asker: Asker) -> bool:
        """Whether this is such a request, and nothing but it; then `asker` is given the answer later."""
        began = time.perf_counter()
        end = data.find(END_OF_HEAD)
        if not 0 < end <= MAX_HEAD_BYTES or self._edge.not_yet is not None:
            return False
        head = data[len(REQUEST_LINE) : end]
        # Most clients say the same words with each of their requests.
        if head != asker.last_head:
            asker.last_head, asker.last_headers = head, _headers(head)
        headers = asker.last_headers
        if headers is None:
            return False
        begins = end + len(END_OF_HEAD)
        if not 0 < self._length(headers) == len(data) - begins <= self._edge.unwatched:
            return False
        try:
            return self._submit(headers, data[begins:], asker, began)
        except Exception:
            # Whatever it is: the ordinary way meets it too, and has the words for it.
            return False

    @staticmethod
    def _length(headers: dict[bytes, bytes]) -> int:
        """Of the body; none where the connection is not to stay."""
        length = headers.get(b"content-length", b"")
        is_kept = headers.get(b"connection", b"keep-alive").lower() == b"keep-alive"
        return int(length) if is_kept and length.isdigit() and len(length) < 10 else 0

    def _submit(self, headers: dict[bytes, bytes], body: bytes, asker: Asker, began: float) -> bool:
        request_id = usable_request_id(headers.get(b"x-request-id", b""))
        host = headers.get(b"host")
        seen = Seen(
            host,
            int(host is not None),
            len(body),
            False,
            None,
            None,
            request_id,
            headers.get(b"authorization"),
        )
        account = self._edge.admit(_SCOPE, seen, began)
        if account is None or account.jobs is not None:
            return False
        account.require(SCOPE)
        job = parse_job(body, account.tenant, self._max_depth)
        trace = trace_from(
            request_id.decode(), _text(headers.get(b"traceparent")), _text(headers.get(b"tracestate"))
        )
        job.request_id, job.traceparent, job.tracestate = (
            trace.request_id,
            trace.traceparent,
            trace.tracestate,
        )
        job.key_id = account.key_id
        submission = Submission([job], account.tenant)
        key = headers.get(b"idempotency-key")
        if key is not None:
            submission.idempotency_key = key_from(key.decode())
            submission.fingerprint = fingerprint(PATH, body)
        rate = account.rate
        try:
            self._edge.count_in(account, asker, began)
        except RateLimited as refusal:
            # Told from here: to whoever asks too often a refusal should cost us as little as may be. Without
            # its trace, which would hold this very frame: garbage that only a collection finds.
            told = refusal.with_traceback(None)
            tell = partial(self._tell, asker, request_id, None, began, told)
            asyncio.get_running_loop().call_later(refused_seconds(), tell)
            return True
        if self._intake.take(submission, partial(self._tell, asker, request_id, rate, began)):
            return True
        if rate is not None:
            rate.give_back()
        return False

    def _tell(
        self,
        asker: Asker,
        request_id: bytes,
        rate: RequestRate | None,
        began: float,
        outcome: Receipt | Exception,
    ) -> None:
        if isinstance(outcome, Receipt) and not outcome.replayed and outcome.answers is None:
            status, job_id = 202, outcome.job_ids[0].encode()
            body = plain_answer(job_id)
            headers = _ACCEPTED_HEADERS % (len(body), job_id, request_id)
        else:
            response = self._response(outcome, request_id)
            status, body = response.status_code, bytes(response.body)
            sent = [*response.raw_headers, *SECURITY_HEADERS, (b"x-request-id", request_id)]
            headers = _lines(sent)
        if rate is not None:
            headers += rate.lines()
        asker.answer(status, headers, body)
        self._count(status, time.perf_counter() - began)

    def _count(self, status: int, seconds: float) -> None:
        """Those that are answered in one burst are counted together."""
        if not self._uncounted:
            asyncio.get_running_loop().call_soon(self._count_all)
        self._uncounted.setdefault(status, []).append(seconds)

    def _count_all(self) -> None:
        counted, self._uncounted = self._uncounted, {}
        for status, seconds in counted.items():
            self._edge.count("POST", PATH, status, *seconds)

    def _response(self, outcome: Receipt | Exception, request_id: bytes) -> Response:
        if isinstance(outcome, Exception):
            return failure_response(outcome, "POST", PATH, request_id.decode())
        return submitted_response(outcome)


def _lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % each for each in headers])


# As `submitted_response` has them, and the edge; a test holds the two together.
_ACCEPTED_HEADERS = (
    b"content-length: %d\r\ncontent-type: application/json\r\nlocation: /jobs/%b\r\n"
    + _lines(SECURITY_HEADERS)
    + b"x-request-id: %b\r\n"
)


def _headers(head: bytes) -> dict[bytes, bytes] | None:
    """By lower-case name; None if there is anything that a parser could read in another way."""
    lines = head.split(b"\r\n")
    # Nothing but what can be printed and the ends of the lines; no blanks around a value.
    if (
        head.translate(None, _PRINTABLE) != b"\r\n" * (len(lines) - 1)
        or b":  " in head
        or b" \r" in head
        or head.endswith(b" ")
    ):
        return None
    headers: dict[bytes, bytes] = {}
    for line in lines:
        known = _SEEN_LINES.get(line)
        name, value = known if known is not None else _name_and_value(line)
        if name not in HARMLESS or name in headers:
            return None
        headers[name] = value
    return headers


# Lines that clients say with every request, taken apart.
_SEEN_LINES: dict[bytes, tuple[bytes, bytes]] = {}
MAX_SEEN_LINES = 1000
MAX_SEEN_LENGTH = 256


def _name_and_value(line: bytes) -> tuple[bytes, bytes]:
    """The name in lower case; none where there is no value."""
    name, _, value = line.partition(b": ")
    if not value:
        return b"", b""
    name = name.lower()
    if name in SAID_ALIKE and len(line) <= MAX_SEEN_LENGTH and len(_SEEN_LINES) < MAX_SEEN_LINES:
        _SEEN_LINES[line] = name, value
    return name, value


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


class UsualHeaders:
    """What every answer begins with (the date), as bytes: uvicorn makes a new list of them each second."""

    def __init__(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._text = b""

    def text(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        if headers is not self._headers:
            self._headers = headers
            self._text = b"".join([b"%b: %b\r\n" % each for each in headers])
        return self._text


class DirectCycle:
    """A request that is answered without ASGI, as uvicorn's protocol looks at one that is being answered."""

    __slots__ = (
        "body",
        "disconnected",
        "keep_alive",
        "message_event",
        "response_complete",
        "response_started",
    )

    def __init__(self) -> None:
        self.response_started = False
        self.response_complete = False
        self.keep_alive = True
        self.disconnected = False
        self.body = bytearray()
        self.message_event = _NOBODY_WAITS


class _NoEvent:
    def set(self) -> None:
        """Nobody waits for the rest of a request that was there as a whole."""


_NOBODY_WAITS = _NoEvent()


class ShortWay(PacedProtocol):
    """The protocol, with this way beside the ordinary one."""

    direct: DirectSubmissions

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.last_head = b""
        self.last_headers: dict[bytes, bytes] | None = None
        # A head whose body is about to come, and when it is not waited for any longer.
        self._held = b""
        self._held_until: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        held = self._let_go()
        if held:
            data = held + data
        if not data.startswith(REQUEST_LINE) or not self._is_free():
            super().data_received(data)
        elif self.direct.take(data, self):
            self._idle.end()
            self._waiting_since = None
            self.cycle = DirectCycle()  # type: ignore[assignment]
        elif not held and self.direct.awaits_body(data):
            self._unset_keepalive_if_required()
            self._request_expected()
            self._held = data
            self._held_until = self.loop.call_later(HELD_SECONDS, self._read_held)
        else:
            super().data_received(data)

    def _is_free(self) -> bool:
        """What comes now begins a request, and can be answered at once."""
        return (
            self._is_idle()
            and self._unread is None
            and not self._ignores_input
            and not self._shutting_down
            and not self.flow.write_paused
            and not self.transport.is_closing()
        )

    def _let_go(self) -> bytes:
        """What was held, if anything was."""
        held, self._held = self._held, b""
        if self._held_until is not None:
            self._held_until.cancel()
            self._held_until = None
        return held

    def _read_held(self) -> None:
        """By the ordinary way, which knows how to wait for a body, and for how long."""
        held = self._let_go()
        if held:
            super().data_received(held)

    def shutdown(self) -> None:
        self._read_held()
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._let_go()
        super().connection_lost(exc)

    def _speaks(self) -> bool:
        return bool(self._held) or super()._speaks()

    def answer(self, status: int, headers: bytes, body: bytes) -> None:
        """As uvicorn's cycle does it, but in one piece."""
        cycle = self.cycle
        cycle.response_started = cycle.response_complete = True
        if cycle.disconnected:
            return
        if not cycle.keep_alive:
            headers += b"connection: close\r\n"
        usual = _USUAL_HEADERS.text(self.server_state.default_headers)
        self._connection.write_whole(b"".join((STATUS_LINE[status], usual, headers, b"\r\n", body)))
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()


_USUAL_HEADERS = UsualHeaders()


def with_short_way(protocol: type[PacedProtocol], direct: DirectSubmissions) -> type[PacedProtocol]:
    return type("Direct", (ShortWay, protocol), {"direct": direct})
