"""What routes without FastAPI's per-request machinery read and answer with (docs/decisions/0014)."""

from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from app.errors import InvalidRequest
from app.loops.off_loop import off_loop

Given = ParamSpec("Given")
Result = TypeVar("Result")

encode = msgspec.json.Encoder().encode

# A Response, or whatever else answers the way ASGI wants it: streams do it themselves.
Endpoint = Callable[[Request], Awaitable[ASGIApp]]


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
