"""A plain HTTP/1.1 client on keep-alive connections, which tells apart what callers must tell apart.

An answer is an answer, whatever its status. `Broken` is everything else: refused, cut, silent for too long. Of such a
call nobody knows whether it was heard.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any


class Broken(Exception):
    """There was no whole answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The problem's code, if this is one."""
        if self.headers.get("content-type") != "application/problem+json":
            return None
        code: str = self.json()["code"]
        return code


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Endpoint:
    """One server, by its port on this machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._idle: deque[Connection] = deque()

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> Answer:
        try:
            async with asyncio.timeout(timeout):
                return await self._ask(_request(self.port, method, path, body, headers))
        except (
            OSError,
            TimeoutError,
            EOFError,
            ValueError,
            IndexError,
            asyncio.LimitOverrunError,
        ) as problem:
            raise Broken(f"{type(problem).__name__}: {problem}") from problem

    async def _ask(self, request: bytes) -> Answer:
        reader, writer = await self._connection()
        try:
            writer.write(request)
            status, headers = await _head(reader)
            body = await _body(reader, headers)
        except BaseException:
            writer.transport.abort()
            raise
        if headers.get("connection") == "close":
            writer.close()
        else:
            self._idle.append((reader, writer))
        return Answer(status, headers, body)

    async def _connection(self) -> Connection:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.transport.abort()
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)

    async def events(
        self, path: str, after: int, silence: float = 30.0
    ) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """(seq, event) of a stream of server-sent events, until it ends or breaks."""
        headers = {"accept": "text/event-stream", "last-event-id": str(after)}
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(silence):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
                writer.write(_request(self.port, "GET", path, None, headers))
                status, sent = await _head(reader)
            if status != 200 or sent.get("transfer-encoding") != "chunked":
                raise Broken(f"a stream was answered with {status}")
            pending = b""
            while True:
                async with asyncio.timeout(silence):
                    chunk = await _chunk(reader)
                if not chunk:
                    return
                pending += chunk
                *whole, pending = pending.split(b"\n\n")
                for block in whole:
                    if event := _event(block):
                        yield event
        except (OSError, TimeoutError, EOFError, ValueError, IndexError) as problem:
            raise Broken(f"{type(problem).__name__}: {problem}") from problem
        finally:
            if writer is not None:
                writer.transport.abort()

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].transport.abort()


def _request(port: int, method: str, path: str, body: Any, headers: Mapping[str, str] | None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"host: 127.0.0.1:{port}", f"content-length: {len(content)}"]
    if content:
        lines.append("content-type: application/json")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head[:-4].split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split(" ")[1]), headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    whole = b""
    while chunk := await _chunk(reader):
        whole += chunk
    return whole


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readuntil(b"\r\n"), 16)
    return (await reader.readexactly(size + 2))[:-2]


def _event(block: bytes) -> tuple[int, dict[str, Any]] | None:
    """None for a comment."""
    fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line and line[:1] != b":")
    if b"id" not in fields or b"data" not in fields:
        return None
    return int(fields[b"id"]), json.loads(fields[b"data"])
