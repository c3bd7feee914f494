"""The grown database: how it is filled, and what it tells afterwards. Only this file knows of its tables.

Finished jobs are written straight into their table: nobody will claim them, so that only their rows and index
entries matter, and ten million through the front door would take an hour. Scheduled ones are live and come in
as anybody's do, over HTTP.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass

import asyncpg

from benchmarks.http_client import ask, connect

STEP = 200_000
BATCH = 1000
CALLERS = 4
MONTH_SECONDS = 30 * 86400

FINISHED = """
INSERT INTO jobs (id, tenant, queue, lane, kind, state, payload, run_at, started_at, completed_at, seq,
    history)
SELECT lpad(to_hex(number), 26, '0'), 'default', 'queue-' || number % $3, 'noop', 'noop', 'done', $4,
    now(), now(), now(), 4,
    E'2 claim 1700000000000000 {"attempt":1,"worker":"w"}\n'
    '3 start 1700000000000000\n4 complete 1700000000000000\n'
FROM generate_series($1::bigint, $2::bigint) AS number
"""
PAYLOAD = json.dumps({"note": "x" * 100})


async def fill_finished(dsn: str, jobs: int, queues: int) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        # Nobody would miss these rows: without waiting for the disk they are in sooner.
        await connection.execute("SET synchronous_commit = off")
        for first in range(1, jobs + 1, STEP):
            last = min(jobs, first + STEP - 1)
            await connection.execute(FINISHED, first, last, queues, PAYLOAD, timeout=1200)
    finally:
        await connection.close()


async def fill_scheduled(port: int, jobs: int, queues: int) -> None:
    """In batches of a thousand, spread over all queues, due in a month."""
    batches = iter(range(0, jobs, BATCH))

    async def keep_filling() -> None:
        connection = await connect(port)
        for first in batches:
            numbers = range(first, min(jobs, first + BATCH))
            batch = {"jobs": [_scheduled(f"queue-{number % queues}") for number in numbers]}
            await ask(connection, "POST", "/jobs/batch", json.dumps(batch).encode(), 202)
        connection.transport.close()

    await asyncio.gather(*(keep_filling() for _ in range(CALLERS)))


def _scheduled(queue: str) -> dict[str, object]:
    return {"kind": "noop", "queue": queue, "delay_seconds": MONTH_SECONDS, "payload": {"note": "x" * 100}}


async def tidy(dsn: str) -> None:
    """Remove what is dead. Left to itself PostgreSQL puts off what lies on few pages (under 2 %), and
    counts it as dead."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("VACUUM (ANALYZE, INDEX_CLEANUP ON)", timeout=3600)
        await connection.execute("CHECKPOINT", timeout=600)
    finally:
        await connection.close()


async def hold_open(dsn: str) -> Callable[[], None]:
    """A transaction that sees everything as it is now, until what is returned is called."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await connection.fetch("SELECT 1 FROM jobs LIMIT 1")
    terminate: Callable[[], None] = connection.terminate
    return terminate


@dataclass(frozen=True)
class Run:
    """One job, in seconds since the epoch: when it was sent, and when it began and ended, if it did."""

    sent_at: float
    started_at: float | None
    completed_at: float | None


RUNS = """
SELECT (payload::json ->> 'sent_at')::float8 AS sent_at,
    extract(epoch FROM started_at)::float8 AS started_at,
    extract(epoch FROM completed_at)::float8 AS completed_at
FROM jobs WHERE queue = $1
"""
DEAD = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables"


class Look:
    """A connection of its own, to look at what became of the jobs of a queue."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    @classmethod
    async def at(cls, dsn: str) -> "Look":
        return cls(await asyncpg.connect(dsn))

    async def runs(self, queue: str) -> list[Run]:
        return [Run(*row) for row in await self._connection.fetch(RUNS, queue, timeout=600)]

    async def dead_tuples(self) -> int:
        return int(await self._connection.fetchval(DEAD))

    async def close(self) -> None:
        await self._connection.close()
