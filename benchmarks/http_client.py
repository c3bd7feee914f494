"""A cheap HTTP/1.1 client on raw keep-alive connections.

It shares the machine with what it measures, so it does as little as possible per request: the request is one
prepared block of bytes, and of the answer only the status and the length are looked at.
"""

import asyncio
import json
import time
from typing import cast

from benchmarks.processes import Service

START_SECONDS = 180.0

HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length: "


def prepared_request(method: str, path: str, body: bytes = b"", key: str | None = None) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    if key is not None:
        head += f"Authorization: Bearer {key}\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


class HttpConnection(asyncio.Protocol):
    """One request in flight at a time; `responded` and `broke` are what subclasses are about."""

    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's in all but their base class.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data if self._received else data
        head_end = received.find(HEAD_END)
        if head_end < 0:
            return
        length_at = received[: head_end + 2].lower().find(LENGTH)
        if length_at < 0:
            self.broke(RuntimeError("the answer has no content-length"))
            return
        length = int(received[length_at + len(LENGTH) : received.index(b"\r", length_at)])
        body_at = head_end + len(HEAD_END)
        if len(received) < body_at + length:
            return
        self._received = b""
        self.responded(int(received[9:12]), received[body_at:])

    def connection_lost(self, exc: Exception | None) -> None:
        self.broke(exc or ConnectionError("the server closed the connection"))

    def responded(self, status: int, body: bytes) -> None:
        raise NotImplementedError

    def broke(self, reason: Exception) -> None:
        raise NotImplementedError


class AskingConnection(HttpConnection):
    """Request and answer as one awaitable call: for all that is not a closed loop."""

    _answer: asyncio.Future[tuple[int, bytes]] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer

    def responded(self, status: int, body: bytes) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((status, body))

    def broke(self, reason: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(reason)


async def connect(port: int) -> AskingConnection:
    _, connection = await asyncio.get_running_loop().create_connection(AskingConnection, "127.0.0.1", port)
    return connection


async def ask(
    connection: AskingConnection, method: str, path: str, body: bytes, expected: int, key: str | None = None
) -> object:
    """The answer's JSON; any other status than the expected one is an error."""
    status, answer = await connection.ask(prepared_request(method, path, body, key))
    if status != expected:
        raise RuntimeError(f"{method} {path}: expected {expected}, got {status}: {answer[:300]!r}")
    parsed: object = json.loads(answer)
    return parsed


async def until_answering(server: Service, port: int, path: str, expected: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        server.must_be_running()
        try:
            connection = await connect(port)
            status, _ = await connection.ask(prepared_request("GET", path))
            connection.transport.close()
        except OSError:
            status = 0
        if status == expected:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"nothing answered on port {port} within {START_SECONDS:.0f} s")
