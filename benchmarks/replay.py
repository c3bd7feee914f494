"""What submitters notice while a hundred thousand dead letters are replayed in bulk."""

import asyncio
import json
import time
from typing import cast

import asyncpg

from benchmarks import foreman
from benchmarks.events import Replica, probe, replica
from benchmarks.harness import Benchmark, Metric, System
from benchmarks.http_client import AskingConnection, ask, connect
from benchmarks.lab import QUICK, Lab
from benchmarks.measuring import Numbers, percentile

QUEUE = "dead"
PATIENCE_SECONDS = 300.0

# As a third attempt that failed leaves them.
BURY = """
WITH buried AS (
    UPDATE jobs SET state = 'failed', reason = 'fail', completed_at = now(), attempt = 3, seq = 8,
        error = '{"code":"broken","message":"It broke.","retryable":true}'
    WHERE queue = $1 RETURNING id, queue, state
)
, gone AS (DELETE FROM queued WHERE queue = $1)
INSERT INTO endings (id, queue, state) SELECT id, queue, state FROM buried
"""


async def run_foreman(lab: Lab) -> Numbers:
    letters, quiet_seconds = (500, 0.3) if lab.scale == QUICK else (100_000, 10.0)
    dsn = await lab.fresh_database("foreman")
    async with replica(lab, dsn, "replay") as server:
        await foreman.fill(server.port, letters, {"kind": "nobody-runs-this", "queue": QUEUE})
        await _bury(dsn)
        await lab.settle_down(dsn)
        quiet = await probe(lab, server, quiet_seconds)
        seconds, during = await _replay(lab, server)
    calm, busy = (percentile([took for _, took in each], 0.99) * 1000 for each in (quiet, during))
    return {
        "per_second": letters / seconds,
        "quiet_p99_ms": calm,
        "replay_p99_ms": busy,
        "ratio": busy / calm,
    }


async def _bury(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(BURY, QUEUE)
    await connection.close()


async def _replay(lab: Lab, server: Replica) -> tuple[float, list[tuple[float, float]]]:
    """How long it took, and what submissions took meanwhile."""
    connection = await connect(server.port)
    wanted = json.dumps({"filter": {"queue": QUEUE}}).encode()
    began = time.time()
    begun = await ask(connection, "POST", "/dead-letters/replay", wanted, 202)
    path = f"/bulk-operations/{cast('dict[str, str]', begun)['operation_id']}"
    waiting = asyncio.ensure_future(_until_done(connection, path))
    answered: list[tuple[float, float]] = []
    while not waiting.done():
        answered += await probe(lab, server, 5.0 if lab.scale != QUICK else 0.3)
    ended = await waiting
    connection.transport.close()
    return ended - began, [each for each in answered if each[0] <= ended] or answered


async def _until_done(connection: AskingConnection, path: str) -> float:
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        operation = cast("dict[str, str]", await ask(connection, "GET", path, b"", 200))
        if operation["state"] == "done":
            return time.time()
        await asyncio.sleep(0.1)
    raise TimeoutError(f"the replay was not done within {PATIENCE_SECONDS:.0f} s")


BENCHMARK = Benchmark(
    name="replay",
    question="100,000 dead letters replayed in bulk, and what it does to submitters",
    metrics=(
        Metric("per_second", "replayed/s", "higher"),
        Metric("quiet_p99_ms", "submit p99 ms, quiet", "lower"),
        Metric("replay_p99_ms", "during the replay", "lower"),
        Metric("ratio", "ratio", "lower"),
    ),
    systems=(System("foreman", run_foreman),),
    is_aside=True,
)
