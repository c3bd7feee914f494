"""How long it takes from just before a job is handed in until it starts, at a leisurely and at a busy pace.

The submitter is a process of its own everywhere. For peers the end is the first line of the task's function.
A no-op of Foreman's has no such line, so its start is `started_at`, the claim, by the database's clock on the
same machine; the true start lies between that and `completed_at`, which is given as well.
"""

import json
import sys
from pathlib import Path

from benchmarks import foreman
from benchmarks.harness import Benchmark, Metric, System
from benchmarks.lab import QUICK, Lab
from benchmarks.measuring import Numbers, as_numbers, percentile
from benchmarks.peering import QUEUES, Peer

READY_SECONDS = 60.0


def _named(numbers: Numbers, busy: bool) -> Numbers:
    return {f"busy_{name}" if busy else name: value for name, value in numbers.items()}


async def run_foreman(lab: Lab) -> Numbers:
    dsn = await lab.fresh_database("foreman")
    found: Numbers = {}
    async with foreman.running(lab, dsn, "all") as server:
        await lab.settle_down(dsn)
        for rate in (lab.scale.latency_rate, lab.scale.busy_rate):
            numbers = await lab.measure(
                Path(sys.executable),
                "benchmarks.foreman_submits",
                "submit",
                port=server.port,
                rate=rate,
                seconds=lab.scale.latency_seconds,
            )
            found |= _named(as_numbers(numbers), busy=rate == lab.scale.busy_rate)
    return found


def peer_system(peer: Peer) -> System:
    async def run_once(lab: Lab) -> Numbers:
        found = _named(await _started(lab, peer, lab.scale.latency_rate), busy=False)
        if peer.is_swift and lab.scale != QUICK:
            found |= _named(await _started(lab, peer, lab.scale.busy_rate), busy=True)
        return found

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


BENCHMARK = Benchmark(
    name="latency",
    question="from enqueue to start, at 50 and at 800 jobs a second",
    metrics=(
        Metric("p50_ms", "50/s: p50 ms", "lower"),
        Metric("p99_ms", "p99 ms", "lower", compared=False),
        Metric("done_p50_ms", "to done, p50 ms", "lower", compared=False),
        Metric("busy_p50_ms", "800/s: p50 ms", "lower"),
        Metric("busy_p99_ms", "p99 ms", "lower", compared=False),
        Metric("busy_done_p50_ms", "to done, p50 ms", "lower", compared=False),
    ),
    systems=(System("foreman", run_foreman), *(peer_system(peer) for peer in QUEUES)),
)
