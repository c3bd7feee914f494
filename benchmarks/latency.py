"""How long an idle system takes from just before a job is handed in until it starts, at a leisurely pace.

The submitter is a process of its own everywhere. For peers the end is the first line of the task's function.
A no-op of Foreman's has no such line, so its start is `started_at`, the claim, by the database's clock on the
same machine; the true start lies between that and `completed_at`, which is given as well.
"""

import json
import sys
from pathlib import Path

from benchmarks import foreman, venvs
from benchmarks.harness import Aim, Benchmark, Metric, System
from benchmarks.lab import Lab
from benchmarks.measuring import Numbers, as_numbers, percentile
from benchmarks.processes import script_command

READY_SECONDS = 60.0


async def run_foreman(lab: Lab) -> Numbers:
    dsn = await lab.fresh_database("foreman")
    async with foreman.running(lab, dsn, "all") as server:
        await lab.settle_down(dsn)
        return as_numbers(
            await lab.measure(
                Path(sys.executable),
                "benchmarks.foreman_submits",
                "submit",
                port=server.port,
                rate=lab.scale.latency_rate,
                seconds=lab.scale.latency_seconds,
            )
        )


def peer(name: str) -> System:
    python, module = venvs.python_of(name), f"benchmarks.peers.{name}"

    async def run_once(lab: Lab) -> Numbers:
        dsn = await lab.fresh_database(name)
        await lab.measure(python, module, "install", dsn=dsn)
        await lab.settle_down(dsn)
        command = script_command(python, module, "listen", {"dsn": dsn})
        async with lab.service(f"{name}-latency", command, answers=True) as worker:
            rate, seconds = lab.scale.latency_rate, lab.scale.latency_seconds
            # One job ahead of the others: it says when the worker is there, and is not counted.
            await lab.measure(python, module, "submit", dsn=dsn, rate=rate, seconds=1 / rate)
            await worker.next_line(READY_SECONDS)
            sent = await lab.measure(python, module, "submit", dsn=dsn, rate=rate, seconds=seconds)
            latencies: list[float] = json.loads((await worker.stop()).splitlines()[-1])
        if len(latencies) != sent:
            raise RuntimeError(f"{sent} jobs were submitted and {len(latencies)} were run")
        return {
            "p50_ms": percentile(latencies, 0.50) * 1000,
            "p99_ms": percentile(latencies, 0.99) * 1000,
        }

    return System(name, run_once, peer=name)


BENCHMARK = Benchmark(
    name="latency",
    question="from enqueue to start, 50 jobs a second",
    metrics=(
        Metric("p50_ms", "p50 ms", "lower"),
        Metric("p99_ms", "p99 ms", "lower"),
        Metric("done_p50_ms", "to done, p50 ms", "lower", compared=False),
        Metric("done_p99_ms", "to done, p99 ms", "lower", compared=False),
    ),
    systems=(System("foreman", run_foreman), peer("pgqueuer"), peer("procrastinate")),
    aims=(Aim("pgqueuer", "p50_ms", 1.0),),
)
