"""Oban for Python at the settings that served it best here; docs/benchmarks.md says which were tried."""

import asyncio
import signal
import time
from typing import Any

from oban import Oban, worker
from oban.schema import install as install_tables
from psycopg_pool import AsyncConnectionPool

from benchmarks.measuring import Numbers, closed_loop, in_rows, paced, payload_text
from benchmarks.scripting import Arrivals, main

FILL_BATCH = 1000
QUEUE = "bench"


@worker(queue=QUEUE)
class Noop:
    async def process(self, job: Any) -> None:
        return None


def _pool(dsn: str, size: int) -> Any:
    return AsyncConnectionPool(conninfo=dsn, min_size=size, max_size=size, open=False)


async def install(dsn: str) -> None:
    async with _pool(dsn, 1) as pool:
        await install_tables(pool)


async def enqueue(dsn: str, callers: int, warmup: float, seconds: float) -> Numbers:
    async with _pool(dsn, callers) as pool:
        oban = Oban(pool=pool)
        return await closed_loop(
            [lambda: oban.enqueue(_job())] * callers,
            warmup=warmup,
            seconds=seconds,
        )


async def bulk(dsn: str, callers: int, warmup: float, seconds: float, rows: int) -> Numbers:
    async with _pool(dsn, callers) as pool:
        oban = Oban(pool=pool)
        calls = [lambda: oban.enqueue_many(_job() for _ in range(rows))] * callers
        return in_rows(await closed_loop(calls, warmup=warmup, seconds=seconds), rows)


async def fill(dsn: str, jobs: int) -> None:
    async with _pool(dsn, 1) as pool:
        oban = Oban(pool=pool)
        for first in range(0, jobs, FILL_BATCH):
            await oban.enqueue_many(_job() for _ in range(min(FILL_BATCH, jobs - first)))


def _job() -> Any:
    return Noop.new({"text": payload_text()})  # type: ignore[attr-defined]


async def _run_worker(dsn: str, limit: int, pool_size: int) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with _pool(dsn, pool_size) as pool, Oban(pool=pool, queues={QUEUE: limit}):
        await told.wait()


async def work(dsn: str, limit: int = 5000, pool_size: int = 8) -> None:
    """Drain no-ops until told to stop."""
    await _run_worker(dsn, limit, pool_size)


async def listen(dsn: str, expected: int, limit: int = 20, pool_size: int = 8) -> None:
    """Note how long each job took from just before its enqueue to its function."""
    arrivals = Arrivals(expected)

    async def note(self: Any, job: Any) -> None:
        arrivals.note(job.args["sent_at"])

    Noop.process = note  # type: ignore[method-assign]
    await _run_worker(dsn, limit, pool_size)


async def submit(dsn: str, rate: float, seconds: float) -> int:
    async with _pool(dsn, 16) as pool:
        oban = Oban(pool=pool)

        async def send(number: int) -> None:
            job = Noop.new({"sent_at": time.time(), "text": payload_text()})  # type: ignore[attr-defined]
            await oban.enqueue(job)

        return await paced(send, rate=rate, seconds=seconds)


if __name__ == "__main__":
    main(install, enqueue, bulk, fill, work, listen, submit)
