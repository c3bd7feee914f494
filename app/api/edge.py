"""The outermost room of the HTTP surface, as pure ASGI: request ids, body limits, time, the last catch.

Pure ASGI on purpose: it sees a client's disconnect, streams pass through it untouched, and it costs
microseconds.
"""

import itertools
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

import structlog
from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from app.api.direct import Endpoint
from app.api.entrance import EVENT_STREAM, Entrance
from app.api.problems import error_response
from app.errors import ForemanError, PayloadTooLarge
from app.telemetry import REQUESTS

log = structlog.get_logger()

BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_REQUEST_ID = 128

# A request id needs to be unique, not unguessable: a name for the process and a number.
_PROCESS = secrets.token_hex(6).encode()
_REQUESTS = itertools.count(1)
_ARTIFACT = re.compile(r"/jobs/[^/]+/artifacts/")


class Edge:
    """Wraps the application.

    Hot routes with a fixed path are answered right here: the framework's six layers of middleware and
    its walk over all routes would cost more than the route itself.
    """

    def __init__(
        self,
        app: FastAPI,
        max_body_bytes: int,
        max_artifact_bytes: int,
        hot_routes: Mapping[tuple[str, str], Endpoint],
        stream_routes: Mapping[str, Endpoint],
    ) -> None:
        self.app = app
        self._max_body_bytes = max_body_bytes
        self._max_artifact_bytes = max_artifact_bytes
        self._hot_routes = hot_routes
        self._entrance = Entrance(app, stream_routes)
        self._timers: dict[tuple[str, int], Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0
        request_id = b""
        length = 0
        streams = False
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                request_id = value
            elif name == b"content-length" and value.isdigit():
                length = int(value)
            elif name == b"accept":
                streams = EVENT_STREAM in value
        if not _is_clean(request_id):
            request_id = b"%b-%x" % (_PROCESS, next(_REQUESTS))
        scope.setdefault("state", {})["request_id"] = request_id.decode()

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        try:
            limit = self._limit(scope)
            if length > limit:
                raise _too_large(limit)
            bounded = receive if scope["method"] in BODILESS else _bounded(receive, limit)
            await self._respond(scope, bounded, tell, streams=streams)
        except ForemanError as error:
            if status:
                raise
            await _answer(error, scope, tell)
        except Exception:
            log.exception(
                "request.failed", method=scope["method"], path=scope["path"], request_id=request_id.decode()
            )
            if status:
                raise
            await _answer(ForemanError(), scope, tell)
        self._observe(scope, status, time.perf_counter() - began)

    async def _respond(self, scope: Scope, receive: Receive, send: Send, *, streams: bool) -> None:
        endpoint = self._hot_routes.get((scope["method"], scope["path"]))
        if endpoint is not None:
            scope["app"] = self.app
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)
        elif streams and (endpoint := self._entrance.find(scope)) is not None:
            await self._entrance.let_in(endpoint, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _limit(self, scope: Scope) -> int:
        # Only artifacts are streamed through; everything else is held in memory.
        is_artifact = scope["method"] == "PUT" and _ARTIFACT.match(scope["path"])
        return self._max_artifact_bytes if is_artifact else self._max_body_bytes

    def _observe(self, scope: Scope, status: int, seconds: float) -> None:
        if "stream" in scope["state"]:
            return
        method = scope["method"]
        timer = self._timers.get((method, status))
        if timer is None:
            known = (
                method if method in {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"} else "other"
            )
            timer = self._timers[method, status] = REQUESTS.labels(known, str(status))
        timer.observe(seconds)


def _bounded(receive: Receive, room: int) -> Receive:
    """Counts the body while it is read, so that nothing beyond the limit is ever buffered."""
    limit = room

    async def bounded() -> Message:
        nonlocal room
        message = await receive()
        if message["type"] == "http.request":
            room -= len(message.get("body", b""))
            if room < 0:
                raise _too_large(limit)
        return message

    return bounded


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body may have at most {limit} bytes.")


def _is_clean(request_id: bytes) -> bool:
    return 0 < len(request_id) <= MAX_REQUEST_ID and all(33 <= byte <= 126 for byte in request_id)


async def _answer(error: ForemanError, scope: Scope, send: Send) -> None:
    refusal = error_response(scope["path"], error)
    await send({"type": "http.response.start", "status": refusal.status_code, "headers": refusal.raw_headers})
    await send({"type": "http.response.body", "body": bytes(refusal.body)})
