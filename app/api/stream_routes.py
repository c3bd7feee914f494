"""Event streams at the edge: answered without the framework's layers, and let in a few at a time.

After a restart all streams come back at once. Each is a small piece of work until its first byte and next to
none after it; let in a few at a time, they do not keep those waiting who submit a job meanwhile.
"""

import asyncio
from collections.abc import Iterable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.routing import compile_path
from starlette.types import Message, Receive, Scope, Send

from app.api.direct import Endpoint
from app.api.routes import Route

# What asks for a stream in the Accept header.
EVENT_STREAM = b"text/event-stream"
# How many streams may be on their way from the request to the first byte of the answer.
BEGINNING = 4


class StreamRoutes:
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
