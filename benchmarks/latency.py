"""How long it takes from just before a job is handed in until it starts, at a leisurely and at a busy pace.

The submitter is a process of its own everywhere. For peers the end is the first line of the task's function.
A no-op of Foreman's has no such line, so its start is `started_at`, the claim, by the database's clock on the
same machine; the true start lies between that and `completed_at`, which is given as well.
"""

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import foreman
from benchmarks.harness import Benchmark, Metric, System
from benchmarks.lab import Lab
from benchmarks.measuring import Numbers, as_numbers, percentile
from benchmarks.peering import QUEUES, Peer

READY_SECONDS = 60.0

# How many jobs a second are submitted.
Pace = Callable[[Lab], float]


def run_foreman(pace: Pace) -> Callable[[Lab], Awaitable[Numbers]]:
    async def run_once(lab: Lab) -> Numbers:
        dsn = await lab.fresh_database("foreman")
        async with foreman.running(lab, dsn, "all") as server:
            await lab.settle_down(dsn)
            numbers = await lab.measure(
                Path(sys.executable),
                "benchmarks.foreman_submits",
                "submit",
                port=server.port,
                rate=pace(lab),
                seconds=lab.scale.latency_seconds,
            )
        return as_numbers(numbers)

    return run_once


def peer_system(peer: Peer, pace: Pace) -> System:
    async def run_once(lab: Lab) -> Numbers:
        return await _started(lab, peer, pace(lab))

    return System(peer.name, run_once, peer=peer)


async def _started(lab: Lab, peer: Peer, rate: float) -> Numbers:
    dsn = await peer.installed(lab)
    await lab.settle_down(dsn)
    seconds = lab.scale.latency_seconds
    expected = round(rate * seconds)
    command = peer.packages.command("listen", {"dsn": dsn, "expected": expected})
    async with lab.service(f"{peer.name}-latency", command, answers=True) as worker:
        # One job ahead of the others: it says when the worker is there, and is not counted.
        await peer.ask(lab, "submit", dsn=dsn, rate=rate, seconds=1 / rate)
        await worker.next_line(READY_SECONDS)
        await peer.ask(lab, "submit", dsn=dsn, rate=rate, seconds=seconds)
        latencies: list[float] = json.loads(await worker.next_line(READY_SECONDS))
    return {
        "p50_ms": percentile(latencies, 0.50) * 1000,
        "p99_ms": percentile(latencies, 0.99) * 1000,
    }


METRICS = (
    Metric("p50_ms", "p50 ms", "lower"),
    Metric("p99_ms", "p99 ms", "lower"),
    Metric("done_p50_ms", "to done, p50 ms", "lower", compared=False),
    Metric("done_p99_ms", "to done, p99 ms", "lower", compared=False),
)


def _leisurely(lab: Lab) -> float:
    return lab.scale.latency_rate


def _busy(lab: Lab) -> float:
    return lab.scale.busy_rate


BENCHMARKS = (
    Benchmark(
        name="latency",
        question="from enqueue to start, 50 jobs a second",
        metrics=METRICS,
        systems=(
            System("foreman", run_foreman(_leisurely)),
            *(peer_system(peer, _leisurely) for peer in QUEUES),
        ),
    ),
    Benchmark(
        name="busy",
        question="from enqueue to start, 800 jobs a second",
        metrics=METRICS,
        systems=(
            System("foreman", run_foreman(_busy)),
            *(peer_system(peer, _busy) for peer in QUEUES if peer.is_swift),
        ),
    ),
)
