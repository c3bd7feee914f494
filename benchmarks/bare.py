"""The ceiling: an ASGI application that reads the body, answers what `POST /jobs` answers, and no more."""

from collections.abc import Awaitable, Callable
from typing import Any

BODY = b'{"job_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","state":"queued","outcome":"accepted"}'
HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(BODY)).encode()),
    (b"location", b"/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV"),
]

Message = dict[str, Any]


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 202, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})
