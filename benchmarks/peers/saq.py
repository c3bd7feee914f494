"""SAQ on PostgreSQL at the settings that served it best here; docs/benchmarks.md says which were tried.

It enqueues one job at a time and has no call for many.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue, Worker

from benchmarks.measuring import Numbers, closed_loop, paced, payload_text
from benchmarks.scripting import Arrivals, main

FILL_CALLERS = 16


@asynccontextmanager
async def _queue(dsn: str, connections: int) -> AsyncIterator[Any]:
    # A log line for every job: at warning level it is at least not written.
    logging.getLogger("saq").setLevel(logging.WARNING)
    queue = Queue.from_url(dsn, name="bench", min_size=connections, max_size=connections)
    await queue.connect()
    try:
        yield queue
    finally:
        await queue.disconnect()


async def noop(context: Any, *, text: str, sent_at: float = 0.0) -> None:
    return None


async def install(dsn: str) -> None:
    async with _queue(dsn, 1):
        pass


async def enqueue(dsn: str, callers: int, warmup: float, seconds: float) -> Numbers:
    text = payload_text()
    async with _queue(dsn, callers) as queue:
        return await closed_loop(
            [lambda: queue.enqueue("noop", text=text)] * callers, warmup=warmup, seconds=seconds
        )


async def fill(dsn: str, jobs: int) -> None:
    text = payload_text()
    left = iter(range(jobs))
    async with _queue(dsn, FILL_CALLERS) as queue:

        async def keep_filling() -> None:
            for _ in left:
                await queue.enqueue("noop", text=text)

        await asyncio.gather(*(keep_filling() for _ in range(FILL_CALLERS)))


async def _run_worker(dsn: str, function: Any, concurrency: int, connections: int) -> None:
    async with _queue(dsn, connections) as queue:
        # It handles the signals by itself.
        await Worker(queue, functions=[("noop", function)], concurrency=concurrency).start()


async def work(dsn: str, concurrency: int = 50, connections: int = 10) -> None:
    """Drain no-ops until told to stop."""
    await _run_worker(dsn, noop, concurrency, connections)


async def listen(dsn: str, expected: int, concurrency: int = 10, connections: int = 10) -> None:
    """Note how long each job took from just before its enqueue to its function."""
    arrivals = Arrivals(expected)

    async def note(context: Any, *, text: str, sent_at: float) -> None:
        arrivals.note(sent_at)

    await _run_worker(dsn, note, concurrency, connections)


async def submit(dsn: str, rate: float, seconds: float) -> int:
    async with _queue(dsn, 16) as queue:

        async def send(number: int) -> None:
            await queue.enqueue("noop", text=payload_text(), sent_at=time.time())

        return await paced(send, rate=rate, seconds=seconds)


if __name__ == "__main__":
    main(install, enqueue, fill, work, listen, submit)
