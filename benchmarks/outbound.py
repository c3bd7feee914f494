"""What an outgoing call costs in processor time: through our own client, httpx, httpx2 and aiohttp.

    .venv/bin/python -m benchmarks.outbound [--rounds 5]

A server in another process answers a small JSON POST, or streams NDJSON at a steady pace. Each library does
what we need of it and no more: the URL is judged, then one POST with a deadline for the whole call, a capped
body, no redirects, nothing unpacked. Every round measures every library in a fresh process; the table has the
medians and, in brackets, how many times ours that is:

    call_us_N     processor time per short call with N in flight, in microseconds
    chunk_us      the same per line of a stream, 32 streams at once
    cancelled_ms  from the cancelling of a call until the server sees its connection closed

A library that is not installed is skipped. None has to be in our own environment for this:
`pip install --target DIR aiohttp`, and PYTHONPATH=DIR in front of the command.
"""

import argparse
import asyncio
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import cast

import uvloop

from app.outbound.client import GuardedClient
from app.outbound.guard import AddressPolicy
from app.outbound.urls import parse_url
from benchmarks.measuring import Numbers, as_numbers, payload_text

LIBRARIES = ("foreman", "aiohttp", "httpx2", "httpx")
IN_FLIGHT = (1, 64)
CALLS = 4000
STREAMS = 32
LINES = 100
PACE_SECONDS = 0.01
DEADLINE_SECONDS = 15.0
MAX_BODY_BYTES = 16 * 1024

BODY = json.dumps({"text": payload_text()}).encode()
HEADERS = {"content-type": "application/json", "webhook-id": "01J"}
LINE = json.dumps(
    {"model": "llama3.2", "message": {"role": "assistant", "content": " word"}, "done": False}
).encode()
CHUNK = b"%x\r\n%b\n\r\n" % (len(LINE) + 1, LINE)


class Caller:
    """One library. `post` makes a short call; `stream` gives the body as it comes."""

    async def post(self, url: str) -> None:
        raise NotImplementedError

    def stream(self, url: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class ForemanCaller(Caller):
    def __init__(self) -> None:
        self._client = GuardedClient(AddressPolicy(allow_loopback=True))

    async def post(self, url: str) -> None:
        answer = await self._client.request(
            "POST",
            url,
            headers=HEADERS,
            content=BODY,
            deadline_seconds=DEADLINE_SECONDS,
            max_response_bytes=MAX_BODY_BYTES,
        )
        assert answer.status == 200

    @asynccontextmanager
    async def stream(self, url: str) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._client.stream(
            "POST", url, headers=HEADERS, content=BODY, idle_seconds=DEADLINE_SECONDS
        ) as answer:
            yield answer.chunks()

    async def close(self) -> None:
        await self._client.aclose()


class _Guard:
    """The part of the guard that stays ours whatever the library: is this URL allowed at all?"""

    def __init__(self) -> None:
        self._policy = AddressPolicy(allow_loopback=True)

    def check(self, url: str) -> None:
        reason = self._policy.check_parsed(parse_url(url))
        if reason is not None:
            raise RuntimeError(reason)


class AiohttpCaller(Caller):
    def __init__(self) -> None:
        self._aiohttp = aiohttp = importlib.import_module("aiohttp")
        self._guard = _Guard()
        connector = aiohttp.TCPConnector(limit=512, keepalive_timeout=4, use_dns_cache=False)
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        self._total = aiohttp.ClientTimeout(total=DEADLINE_SECONDS)
        self._idle = aiohttp.ClientTimeout(total=None, sock_read=DEADLINE_SECONDS)

    async def post(self, url: str) -> None:
        self._guard.check(url)
        async with self._session.post(
            url, data=BODY, headers=HEADERS, allow_redirects=False, timeout=self._total
        ) as answer:
            assert answer.status == 200
            await answer.content.read(MAX_BODY_BYTES + 1)
            assert answer.content.at_eof()

    @asynccontextmanager
    async def stream(self, url: str) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._session.post(
            url, data=BODY, headers=HEADERS, allow_redirects=False, timeout=self._idle
        ) as answer:
            yield answer.content.iter_any()

    async def close(self) -> None:
        await self._session.close()


class HttpxCaller(Caller):
    """httpx and httpx2, whose interfaces are the same."""

    def __init__(self, name: str) -> None:
        httpx = importlib.import_module(name)
        self._guard = _Guard()
        limits = httpx.Limits(max_connections=512, max_keepalive_connections=256, keepalive_expiry=4)
        self._client = httpx.AsyncClient(limits=limits, timeout=DEADLINE_SECONDS, trust_env=False)

    async def post(self, url: str) -> None:
        self._guard.check(url)
        async with asyncio.timeout(DEADLINE_SECONDS), self.stream(url) as chunks:
            body = bytearray()
            async for chunk in chunks:
                body += chunk
                assert len(body) <= MAX_BODY_BYTES

    @asynccontextmanager
    async def stream(self, url: str) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._client.stream("POST", url, content=BODY, headers=HEADERS) as answer:
            assert answer.status_code == 200
            yield answer.aiter_raw()

    async def close(self) -> None:
        await self._client.aclose()


MAKERS: dict[str, Callable[[], Caller]] = {
    "foreman": ForemanCaller,
    "aiohttp": AiohttpCaller,
    "httpx2": lambda: HttpxCaller("httpx2"),
    "httpx": lambda: HttpxCaller("httpx"),
}


# what is measured


async def measure(library: str, port: int) -> Numbers:
    caller = MAKERS[library]()
    base = f"http://127.0.0.1:{port}"
    found: Numbers = {}
    for in_flight in IN_FLIGHT:
        await _posts(caller, base + "/post", in_flight, CALLS // 10)
        found[f"call_us_{in_flight}"] = await _posts(caller, base + "/post", in_flight, CALLS)
    found["chunk_us"] = await _streams(caller, base + "/stream")
    found["cancelled_ms"] = await _cancelled(caller, base)
    await caller.close()
    return found


async def _posts(caller: Caller, url: str, in_flight: int, calls: int) -> float:
    left = iter(range(calls))

    async def keep_posting() -> None:
        for _ in left:
            await caller.post(url)

    began = time.process_time()
    await asyncio.gather(*(keep_posting() for _ in range(in_flight)))
    return (time.process_time() - began) / calls * 1e6


async def _streams(caller: Caller, url: str) -> float:
    async def read_one() -> None:
        size = 0
        async with caller.stream(url) as chunks:
            async for chunk in chunks:
                size += len(chunk)
        assert size == LINES * (len(LINE) + 1)

    began = time.process_time()
    await asyncio.gather(*(read_one() for _ in range(STREAMS)))
    return (time.process_time() - began) / (STREAMS * LINES) * 1e6


async def _cancelled(caller: Caller, base: str) -> float:
    call = asyncio.create_task(caller.post(base + "/silent"))
    await caller.post(base + "/until-silent")
    at = time.monotonic()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    async with caller.stream(base + "/hung-up-at") as chunks:
        seen = b"".join([chunk async for chunk in chunks])
    return (float(seen) - at) * 1000


# the server


class Server(asyncio.Protocol):
    """Answers the first word of the path. Reads each request in one piece: they are small."""

    silent = asyncio.Event()
    hung_up_at: "asyncio.Future[float]"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its base class
        self._received = b""
        self._is_silent = False

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._received.endswith(BODY):
            return
        path = self._received.split(b" ", 2)[1].decode()
        self._received = b""
        if path == "/post":
            self._answer(b'{"ok":true}')
        elif path == "/silent":
            self._is_silent = True
            self.silent.set()
        else:
            self._task = asyncio.ensure_future(self._later(path))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_silent:
            self.hung_up_at.set_result(time.monotonic())

    def _answer(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)

    async def _later(self, path: str) -> None:
        if path == "/until-silent":
            await self.silent.wait()
            self._answer(b"{}")
        elif path == "/hung-up-at":
            self._answer(str(await self.hung_up_at).encode())
            self.silent.clear()
            Server.hung_up_at = asyncio.get_running_loop().create_future()
        else:
            await self._stream()

    async def _stream(self) -> None:
        self._transport.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(LINES):
            await asyncio.sleep(PACE_SECONDS)
            self._transport.write(CHUNK)
        self._transport.write(b"0\r\n\r\n")


async def serve() -> None:
    Server.hung_up_at = asyncio.get_running_loop().create_future()
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# the whole


def compare(rounds: int) -> None:
    installed = [
        each for each in LIBRARIES if each == "foreman" or importlib.util.find_spec(each) is not None
    ]
    for each in sorted(set(LIBRARIES) - set(installed)):
        print(f"{each} is not installed: skipped")
    found: dict[str, list[Numbers]] = {each: [] for each in installed}
    command = [sys.executable, "-m", "benchmarks.outbound"]
    with subprocess.Popen([*command, "--serve"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            for _ in range(rounds):
                for each in installed:
                    said = subprocess.run(
                        [*command, "--measure", each, "--port", port],
                        stdout=subprocess.PIPE,
                        text=True,
                        check=True,
                    ).stdout
                    found[each].append(as_numbers(json.loads(said)))
        finally:
            server.terminate()
    names = list(found["foreman"][0])
    print(f"{'':10}" + "".join(f"{name:>18}" for name in names))
    ours = {name: statistics.median(numbers[name] for numbers in found["foreman"]) for name in names}
    for each in installed:
        row = {name: statistics.median(numbers[name] for numbers in found[each]) for name in names}
        cells = (f"{row[name]:.1f} ({row[name] / ours[name]:.1f}x)" for name in names)
        print(f"{each:10}" + "".join(f"{cell:>18}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outbound", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", choices=LIBRARIES, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        uvloop.run(serve())
    elif chosen.measure:
        print(json.dumps(uvloop.run(measure(chosen.measure, chosen.port))))
    else:
        compare(chosen.rounds)


if __name__ == "__main__":
    main()
