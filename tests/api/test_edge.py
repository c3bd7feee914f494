"""The outermost layer by itself: what it counts, what it keeps, what it lets go of."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, StreamingResponse
from prometheus_client import REGISTRY
from starlette.requests import Request
from structlog.testing import capture_logs

from app.api.edge import BodyLimits, Edge
from app.api.guard import Guard
from app.api.problems import handle_foreman_error
from app.api.routes import Access, Route
from app.errors import ForemanError, Unavailable
from app.server.protocol import paced
from tests.api.wire import connect, listen, say
from tests.conftest import Server, free_port, wait_until
from tests.patience import AT_ONCE


class Boom(Exception):
    pass


never_began = threading.Event()


def application() -> FastAPI:
    app = FastAPI(exception_handlers={ForemanError: handle_foreman_error, Exception: handle_foreman_error})

    @app.get("/fine")
    async def fine() -> PlainTextResponse:
        return PlainTextResponse("fine")

    @app.get("/boom")
    @app.post("/boom")
    async def boom() -> None:
        raise Boom

    @app.get("/away")
    async def away() -> None:
        raise Unavailable("The database is away.", retry_after=1)

    @app.get("/broken")
    async def broken() -> StreamingResponse:
        async def half() -> AsyncIterator[bytes]:
            yield b"half"
            raise Boom

        return StreamingResponse(half())

    @app.get("/never")
    async def never(request: Request) -> PlainTextResponse:
        never_began.set()
        while (await request.receive())["type"] != "http.disconnect":
            pass
        raise asyncio.CancelledError

    return app


async def hot(request: Request) -> PlainTextResponse:
    raise Boom


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    edge = Edge(
        application(),
        Guard(),
        None,
        limits=BodyLimits(1024, 1024, 1024, 1024),
        routes=[
            Route("POST", "/hot", hot, scope=Access.OPEN, tag="", summary="", responses={}, hot=True),
        ],
    )
    config = uvicorn.Config(edge, port=free_port(), http=paced(5, 5), lifespan="off", log_config=None)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run)
    # Bugs are what happens here; nobody needs to see their tracebacks.
    with capture_logs():
        thread.start()
        wait_until(lambda: running.started)
        yield Server("", config.port)
        running.should_exit = True
        thread.join()


def counted(method: str, path: str, status: int) -> float:
    labels = {"method": method, "route": path, "status": str(status)}
    return REGISTRY.get_sample_value("foreman_request_seconds_count", labels) or 0.0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/fine", 200),
        ("GET", "/boom", 500),
        ("POST", "/boom", 500),
        ("POST", "/hot", 500),
        ("GET", "/away", 503),
        ("GET", "/jobs\r\nhost: evil.example", 400),
    ],
)
def test_every_answer_is_counted_and_none_costs_the_connection(
    server: Server, method: str, path: str, status: int
) -> None:
    path, _, more = path.partition("\r\n")
    route = path if status != 400 else "unmatched"
    before = counted(method, route, status)
    with connect(server) as wire:
        wire.sendall(
            f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{more}\r\n".encode() + b"\r\n" * bool(more)
        )
        first = listen(wire, time.monotonic(), 20, until_answered=True)
        wire.sendall(b"GET /fine HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        second = listen(wire, time.monotonic(), 20)
    assert (first.statuses, second.statuses) == ([status], [200])
    # Of the second one the same may be counted.
    wait_until(lambda: counted(method, route, status) - before == 1 + (status == 200))


def test_what_nobody_has_foreseen_is_logged_although_the_framework_has_answered_it(server: Server) -> None:
    with capture_logs() as lines:
        assert httpx.get(f"{server.url}/boom").status_code == 500
    [failed] = [line for line in lines if line["event"] == "request.failed"]
    assert (failed["path"], type(failed["exc_info"])) == ("/boom", Boom)


def test_an_answer_that_is_broken_off_is_counted_and_ends_the_connection(server: Server) -> None:
    before = counted("GET", "/broken", 200)
    answer = say(server, b"GET /broken HTTP/1.1\r\nhost: localhost\r\n\r\n", patience=20)
    assert answer.closed
    assert not answer.raw.endswith(b"0\r\n\r\n")
    wait_until(lambda: counted("GET", "/broken", 200) == before + 1)


def test_a_client_that_leaves_without_an_answer_is_counted_as_such(server: Server) -> None:
    before = counted("GET", "/never", 499)
    with connect(server) as wire:
        wire.sendall(b"GET /never HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert never_began.wait(AT_ONCE)
    wait_until(lambda: counted("GET", "/never", 499) == before + 1)


def test_what_the_protocol_refuses_is_counted(server: Server) -> None:
    before = counted("other", "unmatched", 431)
    assert say(server, b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000).statuses == [431]
    assert counted("other", "unmatched", 431) == before + 1


def test_a_foreign_page_is_refused_before_any_route(server: Server) -> None:
    headers = {"origin": "https://evil.example"}
    assert httpx.post(f"{server.url}/hot", headers=headers).status_code == 403
