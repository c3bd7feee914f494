"""Procrastinate at the settings that served it best here; docs/benchmarks.md says which were tried."""

import logging
import time
from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks.measuring import Numbers, closed_loop, in_rows, paced, payload_text
from benchmarks.scripting import Arrivals, main

FILL_BATCH = 1000


def _app(dsn: str, pool_size: int) -> Any:
    # Two log lines with all arguments for every job: at warning level they are at least not written.
    logging.getLogger("procrastinate").setLevel(logging.WARNING)
    return App(connector=PsycopgConnector(conninfo=dsn, min_size=pool_size, max_size=pool_size))


async def _noop(text: str, sent_at: float = 0.0) -> None:
    return None


def _noop_task(app: Any, function: Any = _noop) -> Any:
    return app.task(name="noop", queue="bench")(function)


async def install(dsn: str) -> None:
    app = _app(dsn, 1)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def enqueue(dsn: str, callers: int, warmup: float, seconds: float) -> Numbers:
    app = _app(dsn, callers)
    task = _noop_task(app)
    text = payload_text()
    async with app.open_async():
        return await closed_loop(
            [lambda: task.defer_async(text=text)] * callers, warmup=warmup, seconds=seconds
        )


async def bulk(dsn: str, callers: int, warmup: float, seconds: float, rows: int) -> Numbers:
    app = _app(dsn, callers)
    task = _noop_task(app)
    text = payload_text()
    async with app.open_async():
        calls = [lambda: task.batch_defer_async(*({"text": text} for _ in range(rows)))] * callers
        return in_rows(await closed_loop(calls, warmup=warmup, seconds=seconds), rows)


async def fill(dsn: str, jobs: int) -> None:
    app = _app(dsn, 1)
    task = _noop_task(app)
    text = payload_text()
    async with app.open_async():
        for first in range(0, jobs, FILL_BATCH):
            await task.batch_defer_async(*({"text": text} for _ in range(min(FILL_BATCH, jobs - first))))


async def work(dsn: str, concurrency: int = 16, pool_size: int = 16) -> None:
    """Drain no-ops until told to stop."""
    app = _app(dsn, pool_size)
    _noop_task(app)
    async with app.open_async():
        await app.run_worker_async(queues=["bench"], concurrency=concurrency, delete_jobs="never")


async def listen(dsn: str, expected: int, concurrency: int = 16, pool_size: int = 16) -> None:
    """Note how long each job took from just before its defer to its function."""
    arrivals = Arrivals(expected)

    async def note(text: str, sent_at: float) -> None:
        arrivals.note(sent_at)

    app = _app(dsn, pool_size)
    _noop_task(app, note)
    async with app.open_async():
        await app.run_worker_async(queues=["bench"], concurrency=concurrency)


async def submit(dsn: str, rate: float, seconds: float) -> int:
    app = _app(dsn, 16)
    task = _noop_task(app)
    async with app.open_async():

        async def send(number: int) -> None:
            await task.defer_async(text=payload_text(), sent_at=time.time())

        return await paced(send, rate=rate, seconds=seconds)


if __name__ == "__main__":
    main(install, enqueue, bulk, fill, work, listen, submit)
