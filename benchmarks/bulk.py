"""How many jobs a second are taken in when they come a thousand at a time, from four callers at once.

Foreman is asked over HTTP (`POST /jobs/batch`); the peers by their own call for many, in one process. The raw
inserts put the columns and values that Foreman stored for such a job into a bare table, by the same number of
connections, a thousand rows a statement: what PostgreSQL and the driver could do.
"""

import json
import sys
from pathlib import Path

from benchmarks import foreman
from benchmarks.harness import Benchmark, Metric, System
from benchmarks.http_client import ask, connect
from benchmarks.lab import QUICK, Lab
from benchmarks.measuring import Numbers, as_numbers, in_rows
from benchmarks.peering import QUEUES, Peer

OUR_PYTHON = Path(sys.executable)


def _rows(lab: Lab) -> int:
    return 100 if lab.scale == QUICK else 1000


async def run_foreman(lab: Lab) -> Numbers:
    rows = _rows(lab)
    dsn = await lab.fresh_database("foreman")
    async with foreman.running(lab, dsn, "api") as server:
        await lab.settle_down(dsn)
        numbers = as_numbers(
            await lab.measure(
                OUR_PYTHON,
                "benchmarks.http_load",
                "load_batches",
                port=server.port,
                body=foreman.job_body().decode(),
                rows=rows,
                connections=lab.scale.bulk_callers,
                warmup=lab.scale.warmup,
                seconds=lab.scale.seconds,
                server_pid=server.service.pid,
            )
        )
    numbers["server_cpu_us"] = numbers.get("server_cpu_us", 0.0) / rows
    return in_rows(numbers, rows)


def _arguments(lab: Lab, dsn: str) -> dict[str, object]:
    scale = lab.scale
    return {
        "dsn": dsn,
        "callers": scale.bulk_callers,
        "warmup": scale.warmup,
        "seconds": scale.seconds,
        "rows": _rows(lab),
    }


async def run_raw_inserts(lab: Lab) -> Numbers:
    dsn = await lab.fresh_database("raw")
    async with foreman.running(lab, dsn, "api") as server:
        connection = await connect(server.port)
        await ask(connection, "POST", "/jobs/batch", json.dumps({"jobs": [foreman.job()]}).encode(), 202)
        connection.transport.close()
    await lab.settle_down(dsn)
    return as_numbers(await lab.measure(OUR_PYTHON, "benchmarks.raw_inserts", "bulk", **_arguments(lab, dsn)))


def peer_system(peer: Peer) -> System:
    async def run_once(lab: Lab) -> Numbers:
        dsn = await peer.installed(lab)
        await lab.settle_down(dsn)
        return as_numbers(await peer.ask(lab, "bulk", **_arguments(lab, dsn)))

    return System(peer.name, run_once, peer=peer)


BENCHMARK = Benchmark(
    name="bulk",
    question="jobs taken in a thousand at a time, four callers",
    metrics=(
        Metric("per_second", "jobs/s", "higher"),
        Metric("p50_ms", "a call, p50 ms", "lower", compared=False),
        Metric("p99_ms", "p99 ms", "lower", compared=False),
        Metric("server_cpu_us", "server CPU µs a job", "lower", compared=False),
    ),
    systems=(
        System("foreman", run_foreman),
        System("raw inserts", run_raw_inserts),
        *(peer_system(peer) for peer in QUEUES if peer.has_bulk),
    ),
)
