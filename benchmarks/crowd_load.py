"""Callers of a server that others want to themselves: an ordinary one, slow sockets, a greedy key."""

import asyncio
import contextlib
import itertools
import resource
import time

from benchmarks.foreman import job_body
from benchmarks.http_client import AskingConnection, connect, prepared_request
from benchmarks.measuring import Numbers, paced, percentile
from benchmarks.scripting import main

# Before the request time-out a socket says one byte more, and when it was hung up on it comes back.
DRIP_SECONDS = 5.0
GREEDY_CONNECTIONS = 64


async def calls(port: int, key: str, rate: float, seconds: float) -> Numbers:
    """Jobs submitted at this pace: how long each was waited for."""
    request = prepared_request("POST", "/jobs", job_body(), key)
    idle: list[AskingConnection] = []
    durations: list[float] = []

    async def call(_number: int) -> None:
        began = time.perf_counter()
        connection = idle.pop() if idle else await connect(port)
        status, body = await connection.ask(request)
        if status != 202:
            raise RuntimeError(f"expected 202, got {status}: {body[:300]!r}")
        durations.append(time.perf_counter() - began)
        idle.append(connection)

    await paced(call, rate=rate, seconds=1.0)
    durations.clear()
    await paced(call, rate=rate, seconds=seconds)
    return {"p50_ms": percentile(durations, 0.5) * 1000, "p99_ms": percentile(durations, 0.99) * 1000}


async def slow_sockets(port: int, number: int) -> None:
    """Half of them never end their headers, the others never their body; for ever."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    head = b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    heads = itertools.cycle([head + b"X-Slow: ", head + b'Content-Length: 65536\r\n\r\n{"kind":"'])
    opened = 0
    all_opened = asyncio.Event()

    async def hold(first: bytes) -> None:
        nonlocal opened
        while True:
            # The server hangs up, or has no more room: just what is wanted.
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                opened += 1
                if opened == number:
                    all_opened.set()
                try:
                    writer.write(first)
                    while not writer.is_closing():
                        await asyncio.sleep(DRIP_SECONDS)
                        writer.write(b"x")
                        await writer.drain()
                finally:
                    writer.close()
            await asyncio.sleep(0.1)

    holding = [asyncio.create_task(hold(next(heads))) for _ in range(number)]
    await all_opened.wait()
    print("held", flush=True)
    await asyncio.gather(*holding)


async def greedy(port: int, key: str, rate: float) -> None:
    """So many requests a second, whatever is answered; for ever."""
    request = prepared_request("POST", "/jobs", job_body(), key)
    pause = GREEDY_CONNECTIONS / rate
    print("greedy", flush=True)

    async def keep_asking(number: int) -> None:
        await asyncio.sleep(pause * number / GREEDY_CONNECTIONS)
        connection = await connect(port)
        due = time.perf_counter()
        while True:
            await connection.ask(request)
            due += pause
            await asyncio.sleep(max(0.0, due - time.perf_counter()))

    await asyncio.gather(*(keep_asking(number) for number in range(GREEDY_CONNECTIONS)))


if __name__ == "__main__":
    main(calls, slow_sockets, greedy)
