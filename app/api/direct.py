"""What is read from a request and answered to it without FastAPI's machinery (docs/decisions/0014).

A body is bounded while it is read: by itself, and together with all the others.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive

from app.errors import InvalidRequest, Overloaded, PayloadTooLarge
from app.identity.limits import InFlight
from app.loops.off_loop import off_loop

Given = ParamSpec("Given")
Result = TypeVar("Result")

# So much of a body is let in however much is held already: claims, heartbeats and small jobs go on when large
# bodies fill the room. It is no more than what each connection may buffer anyway.
SMALL_BYTES = 64 * 1024
RETRY_SECONDS = 1.0

encode = msgspec.json.Encoder().encode

# A Response, or whatever else answers the way ASGI wants it: streams do it themselves.
Endpoint = Callable[[Request], Awaitable[ASGIApp]]


class Body:
    """Counts a body while it is read, so that nothing beyond the limits is ever buffered."""

    __slots__ = ("_held", "_in_flight", "_limit", "_receive", "_room")

    def __init__(self, receive: Receive, limit: int, in_flight: Sequence[InFlight]) -> None:
        """`in_flight` is for bodies that are kept until the request is answered: where they count."""
        self._receive = receive
        self._limit = self._room = limit
        self._in_flight = in_flight
        self._held = 0

    def check(self, length: int) -> None:
        """Refuse what says itself that it is too large."""
        if length > self._limit:
            raise self._too_large()

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._room -= size
            if self._room < 0:
                raise self._too_large()
            # What has come, not what was announced: announcing costs nothing and would keep others out.
            self._held += size
            for each in self._in_flight:
                each.held += size
                if each.is_full and self._held > SMALL_BYTES:
                    raise Overloaded(
                        "Too many large requests at the same time; try again shortly.",
                        retry_after=RETRY_SECONDS,
                    )
        return message

    def release(self) -> None:
        """It is not held any more; harmless when said twice."""
        for each in self._in_flight:
            each.held -= self._held
        self._held = 0

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"The body may have at most {self._limit} bytes.")


def release_body(request: Request) -> None:
    """For whoever goes on answering for a long time without it."""
    body: Body | None = request.scope["state"].get("body")
    if body is not None:
        body.release()


async def read_body(request: Request) -> bytes:
    """The whole body; its size is bounded by the edge, its pace by the server's protocol."""
    chunks: list[bytes] = []
    receive = request.receive
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest("The request ended before its body was complete.")
        chunk = message.get("body", b"")
        if not message.get("more_body", False):
            return b"".join([*chunks, chunk]) if chunks else chunk
        chunks.append(chunk)


async def read_as(
    request: Request,
    parse: Callable[Concatenate[bytes, Given], Result],
    *given: Given.args,
    **more: Given.kwargs,
) -> Result:
    """What this makes of the whole body; a large one is parsed where it holds nobody up."""
    body = await read_body(request)
    return await off_loop(len(body), parse, body, *given, **more)


class JsonResponse(Response):
    """A body that is JSON already, with its headers written once: half the cost of the general one."""

    def __init__(self, body: bytes, status: int, headers: dict[str, str] | None) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [
            (b"content-length", b"%d" % len(body)),
            (b"content-type", b"application/json"),
        ]
        if headers:
            self.raw_headers += [
                (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
            ]


def json_response(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return JsonResponse(body, status, headers)
