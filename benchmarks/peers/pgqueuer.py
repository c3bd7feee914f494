"""PgQueuer at the settings that served it best here; docs/benchmarks.md says which were tried."""

import asyncio
import json
import signal
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import asyncpg
from pgqueuer.core.qm import QueueManager
from pgqueuer.queries import Queries

from benchmarks.measuring import Numbers, closed_loop, in_rows, paced, payload_text
from benchmarks.scripting import Arrivals, main

ENTRYPOINT = "noop"
FILL_BATCH = 1000


async def install(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    queries = Queries.from_asyncpg_connection(connection)
    await queries.install()
    await queries.optimize_autovacuum()
    await connection.close()


async def enqueue(dsn: str, callers: int, warmup: float, seconds: float) -> Numbers:
    """A connection for each caller; with its pool driver the rate is the same within the noise."""
    payload = json.dumps({"text": payload_text()}).encode()
    async with AsyncExitStack() as stack:
        calls = []
        for _ in range(callers):
            connection = await asyncpg.connect(dsn)
            stack.push_async_callback(connection.close)
            calls.append(partial(Queries.from_asyncpg_connection(connection).enqueue, ENTRYPOINT, payload))
        return await closed_loop(calls, warmup=warmup, seconds=seconds)


async def bulk(dsn: str, callers: int, warmup: float, seconds: float, rows: int) -> Numbers:
    payload = json.dumps({"text": payload_text()}).encode()
    jobs = [ENTRYPOINT] * rows, [payload] * rows, [0] * rows
    async with AsyncExitStack() as stack:
        calls = []
        for _ in range(callers):
            connection = await asyncpg.connect(dsn)
            stack.push_async_callback(connection.close)
            calls.append(partial(Queries.from_asyncpg_connection(connection).enqueue, *jobs))
        return in_rows(await closed_loop(calls, warmup=warmup, seconds=seconds), rows)


async def fill(dsn: str, jobs: int) -> None:
    connection = await asyncpg.connect(dsn)
    queries = Queries.from_asyncpg_connection(connection)
    payload = json.dumps({"text": payload_text()}).encode()
    for first in range(0, jobs, FILL_BATCH):
        count = min(FILL_BATCH, jobs - first)
        await queries.enqueue([ENTRYPOINT] * count, [payload] * count, [0] * count)
    await connection.close()


async def _run_worker(dsn: str, task: Any, batch_size: int, pool_size: int) -> None:
    async with asyncpg.create_pool(dsn, min_size=pool_size, max_size=pool_size) as pool:
        manager = QueueManager(Queries.from_asyncpg_pool(pool))
        manager.entrypoint(ENTRYPOINT)(task)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, manager.shutdown.set)
        await manager.run(batch_size=batch_size, log_aggregation_interval=timedelta(0))


async def work(dsn: str, batch_size: int = 500, pool_size: int = 3) -> None:
    """Drain no-ops until told to stop."""

    async def noop(job: Any) -> None:
        return None

    await _run_worker(dsn, noop, batch_size, pool_size)


async def listen(dsn: str, expected: int, batch_size: int = 10, pool_size: int = 3) -> None:
    """Note how long each job took from just before its enqueue to its function."""
    arrivals = Arrivals(expected)

    async def note(job: Any) -> None:
        arrivals.note(json.loads(job.payload)["sent_at"])

    await _run_worker(dsn, note, batch_size, pool_size)


async def submit(dsn: str, rate: float, seconds: float) -> int:
    async with asyncpg.create_pool(dsn, min_size=16, max_size=16) as pool:
        queries = Queries.from_asyncpg_pool(pool)

        async def send(number: int) -> None:
            payload = {"sent_at": time.time(), "text": payload_text()}
            await queries.enqueue(ENTRYPOINT, json.dumps(payload).encode())

        return await paced(send, rate=rate, seconds=seconds)


if __name__ == "__main__":
    main(install, enqueue, bulk, fill, work, listen, submit)
