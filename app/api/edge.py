"""The outermost room of the HTTP surface, as pure ASGI: who may come in, how often and how large,
request ids, time, the last catch.

A caller is recognised here before anything is done for the request; what a caller may do is asked where its
route is known: here for hot routes and streams, in app/api/mount.py for all the others.

Pure ASGI on purpose: it sees a client's disconnect, streams pass through it untouched, and it costs
microseconds.
"""

import asyncio
import itertools
import random
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Message, Receive, Scope, Send

from app.api.direct import SMALL_BYTES, Body, Endpoint
from app.api.guard import Guard, check_host
from app.api.open_streams import CONNECTION
from app.api.pages import Pages, session_token
from app.api.problems import error_response, refusal
from app.api.routes import Access, Route
from app.api.surfaces import request_id_headers
from app.errors import ForemanError, RateLimited
from app.identity.account import EVERYBODY, NOBODY, Account, Connection
from app.identity.authenticator import Authenticator, presented
from app.identity.limits import InFlight, RequestRate
from app.telemetry import BODY_BYTES, NO_ROUTE, REQUESTS, observe_all

log = structlog.get_logger()

BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})
# At most so long a refusal for asking too often is held back: who asks again at once shall not keep us busy.
REFUSED_SECONDS = 1.0


def refused_seconds() -> float:
    """Not all at the same moment: those who were refused together would come back together."""
    return REFUSED_SECONDS * random.uniform(0.5, 1.0)


# What the metrics call a request whose client left before it was answered.
HUNG_UP = 499
# The length of a body that comes in chunks.
UNKNOWN = -1
# Nothing that is answered here is a page: a browser that is led to it shows, runs and guesses nothing.
SECURITY_HEADERS = [
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]
# Where files come in, and how much longer their form may be than they are.
FILES = "/v1/files"
FORM_BYTES = 64 * 1024
ALWAYS_OPEN = frozenset({"/healthz", "/version", "/metrics"})
# What asks for a stream in the Accept header.
EVENT_STREAM = b"text/event-stream"
# How many streams may be on their way from the request to the first byte of the answer.
BEGINNING = 4

# A request id needs to be unique, not unguessable: a name for the process and a number.
_PROCESS = secrets.token_hex(6).encode()
_REQUESTS = itertools.count(1)
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_ARTIFACT = re.compile(r"/jobs/[^/]+/artifacts/")


class CallersConnection(Connection, Protocol):
    """The connection that requests come by: whose it is, as far as is known."""

    account: Account | None

    def belong_to(self, account: Account) -> None:
        """Raises RateLimited when that account has too many."""


class Seen(msgspec.Struct, frozen=True, gc=False):
    """What the edge needs to know of a request's headers."""

    host: bytes | None
    hosts: int
    length: int
    streams: bool
    origin: bytes | None
    site: bytes | None
    request_id: bytes
    authorization: bytes | None


def look_at(headers: Iterable[tuple[bytes, bytes]]) -> Seen:
    """In one pass."""
    host = origin = site = authorization = api_key = None
    hosts = length = 0
    streams = False
    request_id = b""
    for name, value in headers:
        if name == b"host":
            hosts += 1
            host = value
        elif name == b"content-length":
            # The protocol has found it sound, and would have refused one beside a transfer-encoding.
            length = int(value)
        elif name == b"authorization":
            # Of two, neither is believed.
            authorization = value if authorization is None else b""
        elif name == b"x-api-key":
            api_key = value if api_key is None else b""
        elif name == b"accept":
            streams = EVENT_STREAM in value
        elif name == b"transfer-encoding":
            length = UNKNOWN
        elif name == b"x-request-id":
            request_id = value
        elif name == b"origin":
            # Of two, neither is believed.
            origin = value if origin is None else b"null"
        elif name == b"sec-fetch-site":
            site = value
    key = presented(authorization, api_key)
    return Seen(host, hosts, length, streams, origin, site, usable_request_id(request_id), key)


class BodyLimits(NamedTuple):
    """The most bytes of a body, of one that is streamed through, and of all that one process holds."""

    body: int
    artifact: int
    file: int
    in_flight: int


class Edge:
    """Wraps the application.

    Hot routes with a fixed path are answered right here: the framework's six layers of middleware and
    its walk over all routes would cost more than the route itself.
    """

    def __init__(
        self,
        app: FastAPI,
        guard: Guard,
        authenticator: Authenticator | None,
        *,
        limits: BodyLimits,
        routes: Iterable[Route],
        pages: Pages | None = None,
    ) -> None:
        """Without an authenticator everybody is let in whom the guard lets in."""
        self.app = app
        self._pages = pages
        self._guard = guard
        self._authenticator = authenticator
        self._limits = limits
        self._in_flight = InFlight(max(limits.in_flight, limits.body))
        # A body that says to be so small can be no larger, and is let in however much is held already.
        self.unwatched = min(SMALL_BYTES, limits.body)
        routes = list(routes)
        self._hot_routes = {
            (route.method, route.path): route for route in routes if route.hot and "{" not in route.path
        }
        self._open_paths = frozenset(
            (method, route.path)
            for route in routes
            if route.scope is Access.OPEN
            for method in (route.method, *route.also)
        )
        self._stream_routes = StreamRoutes(app, [route for route in routes if route.stream])
        # While the server starts: why it is not ready. What is in ALWAYS_OPEN is answered all the same.
        self.not_yet: ForemanError | None = None
        self._timers: dict[tuple[str, str, int], Any] = {}
        BODY_BYTES.set_function(lambda: self._in_flight.held)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        seen = look_at(scope["headers"])
        request_id = seen.request_id
        state = scope.setdefault("state", {})
        state["request_id"] = request_id.decode()
        answer = _Answer(send, request_id_headers(scope["path"], request_id))
        if self._pages is not None and self._pages.owns(scope["path"]):
            state["pages"] = self._pages
            answer.security = self._pages.headers
        body: Body | None = None
        account: Account | None = None
        try:
            account = await self._let_in(scope, seen, began)
            answer.limits = account.rate
            if not 0 <= seen.length <= self.unwatched and scope["method"] not in BODILESS:
                body = self._watched_body(scope, receive, seen.length, account)
                receive = body.receive
            await self._respond(scope, receive, answer.send, account, streams=seen.streams)
        except Exception as error:
            await self._fail(error, scope, answer)
        finally:
            if body is not None:
                body.release()
            if account is not None:
                account.requests.leave()
            self._observe(scope, answer.status or HUNG_UP, time.perf_counter() - began)

    async def _let_in(self, scope: Scope, seen: Seen, now: float) -> Account:
        """Whoever it is has a place among the requests of that account, to be left in the end."""
        account = self.admit(scope, seen, now)
        if account is None:
            if self.not_yet is not None:
                raise self.not_yet
            assert self._authenticator is not None  # noqa: S101  # `admit` asked it
            if seen.authorization is None and "pages" in scope["state"]:
                # A cookie is good for pages alone: other sites may have a browser send it along.
                account = await self._authenticator.visitor(session_token(scope))
            else:
                account = await self._authenticator.identify(seen.authorization)
        try:
            self.count_in(account, scope.get("extensions", {}).get(CONNECTION), now)
            account.requests.take()
        except RateLimited:
            await asyncio.sleep(refused_seconds())
            raise
        state = scope["state"]
        state["account"] = account
        state["tenant"] = account.tenant
        return account

    def admit(self, scope: Scope, seen: Seen, now: float) -> Account | None:
        """As whom a request comes in; None where the database has to be asked. Raises what refuses it.

        Asked before anything is done for a request, by each way that it can come (the other one is
        app/server/direct_submissions.py)."""
        if seen.hosts != 1:
            check_host(seen.hosts, scope)
        if self._authenticator is None:
            self._guard.check(scope, seen.host, seen.origin, seen.site)
            return EVERYBODY
        account = self._authenticator.recall(seen.authorization, now)
        if account is None and (scope["method"], scope["path"]) in self._open_paths:
            return NOBODY
        return account

    @staticmethod
    def count_in(account: Account, connection: CallersConnection | None, now: float) -> None:
        """One more request of that account. Raises RateLimited when it is one too many."""
        if connection is not None and connection.account is not account and account.key_id is not None:
            connection.belong_to(account)
        if account.rate is not None:
            account.rate.take(now)

    async def _fail(self, error: Exception, scope: Scope, answer: "_Answer") -> None:
        # Said in the log in any case: the framework may have answered already.
        problem = as_foreman_error(error, scope["method"], scope["path"], scope["state"]["request_id"])
        if not answer.status:
            response = refusal(scope, problem)
            await response(scope, _nothing_more, answer.send)
        elif not answer.complete:
            # An answer that has begun can only be broken off. The framework raises after its own 500, too,
            # but then all is said and the connection is as good as before.
            raise error

    async def _respond(
        self, scope: Scope, receive: Receive, send: Send, account: Account, *, streams: bool
    ) -> None:
        if self.not_yet is not None and scope["path"] not in ALWAYS_OPEN:
            raise self.not_yet
        route = self._hot_routes.get((scope["method"], scope["path"]))
        if route is not None:
            scope["app"] = self.app
            scope["route"] = route
            account.require(route.needs)
            response = await route.endpoint(Request(scope, receive, send))
            await response(scope, receive, send)
        elif streams and (route := self._stream_routes.find(scope)) is not None:
            scope["route"] = route
            account.require(route.needs)
            await self._stream_routes.let_in(route.endpoint, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _watched_body(self, scope: Scope, receive: Receive, length: int, account: Account) -> Body:
        # Only artifacts and files are streamed through; everything else is held in memory.
        if scope["method"] == "PUT" and _ARTIFACT.match(scope["path"]):
            body = Body(receive, self._limits.artifact, ())
        elif scope["method"] == "POST" and scope["path"] == FILES:
            body = Body(receive, self._limits.file + FORM_BYTES, ())
        else:
            body = Body(receive, self._limits.body, (self._in_flight, account.held))
        body.check(length)
        scope["state"]["body"] = body
        return body

    def _observe(self, scope: Scope, status: int, seconds: float) -> None:
        if "stream" in scope["state"]:
            return
        # Set here for hot routes and streams, by the framework for the others.
        self.count(scope["method"], getattr(scope.get("route"), "path_format", NO_ROUTE), status, seconds)

    def count(self, method: str, route: str, status: int, *seconds: float) -> None:
        """Requests were answered, each after so long."""
        timer = self._timers.get((method, route, status))
        if timer is None:
            known = (
                method if method in {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"} else "other"
            )
            timer = self._timers[method, route, status] = REQUESTS.labels(known, route, str(status))
        observe_all(timer, seconds)


def failure_response(error: Exception, method: str, path: str, request_id: str) -> Response:
    """What a request that failed is answered."""
    return error_response(path, as_foreman_error(error, method, path, request_id))


def as_foreman_error(error: Exception, method: str, path: str, request_id: str) -> ForemanError:
    """What nobody has foreseen is logged, as the bug that it is."""
    if isinstance(error, ForemanError):
        return error
    log.error("request.failed", method=method, path=path, request_id=request_id, exc_info=error)
    return ForemanError()


def usable_request_id(given: bytes) -> bytes:
    """The caller's own if it is one, else a new one."""
    if given and _REQUEST_ID.fullmatch(given):
        return given
    return b"%b-%x" % (_PROCESS, next(_REQUESTS))


async def _nothing_more() -> Message:
    return {"type": "http.disconnect"}


class _Answer:
    """Sends an answer on, and knows how far it has come."""

    __slots__ = ("_request_headers", "_send", "complete", "limits", "security", "status")

    def __init__(self, send: Send, request_headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._request_headers = request_headers
        self.security = SECURITY_HEADERS
        # What is left of it is told with every answer.
        self.limits: RequestRate | None = None
        self.status = 0
        self.complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message["headers"], *self.security, *self._request_headers]
            if self.limits is not None:
                headers += self.limits.headers()
            message["headers"] = headers
            await self._send(message)
        else:
            await self._send(message)
            self.complete = not message.get("more_body", False)


class StreamRoutes:
    """Event streams: answered without the framework's layers, and let in a few at a time.

    After a restart all streams come back at once. Each is a small piece of work until its first byte and next
    to none after it; let in a few at a time, they do not keep those waiting who submit a job meanwhile.
    """

    def __init__(self, app: FastAPI, routes: Iterable[Route]) -> None:
        self._app = app
        self._routes = [(compile_path(route.path)[0], route) for route in routes]
        self._turnstile = asyncio.Semaphore(BEGINNING)

    def find(self, scope: Scope) -> Route | None:
        if scope["method"] == "GET":
            for pattern, route in self._routes:
                found = pattern.fullmatch(scope["path"])
                if found is not None:
                    scope["path_params"] = found.groupdict()
                    return route
        return None

    async def let_in(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self._app
        inside = False

        async def tell(message: Message) -> None:
            nonlocal inside
            await send(message)
            if not inside:
                inside = True
                self._turnstile.release()

        await self._turnstile.acquire()
        try:
            response = await endpoint(Request(scope, receive, tell))
            await response(scope, receive, tell)
        finally:
            if not inside:
                self._turnstile.release()
