"""No-ops a second by a Python worker that talks HTTP, against workers that sit on the database itself.

Worker, server and PostgreSQL share the machine; the peers' workers have no server between them and their
tables. Also: how long a claim that waits on one replica takes to hear of a job handed in on another.
"""

import sys
from pathlib import Path

from benchmarks import foreman
from benchmarks.drain import FOREMAN_PROGRESS, drained, peer_system
from benchmarks.events import two_replicas
from benchmarks.foreman_worker import KIND
from benchmarks.harness import Benchmark, Metric, System
from benchmarks.lab import QUICK, Lab
from benchmarks.measuring import Numbers, as_numbers, payload_text
from benchmarks.peering import PGQUEUER
from benchmarks.processes import script_command

SCRIPT = "benchmarks.foreman_worker"
CONCURRENCY = 200
PYTHON = Path(sys.executable)


async def run_foreman(lab: Lab) -> Numbers:
    return {**await _drain(lab), **await _waiting_claims(lab)}


async def _drain(lab: Lab) -> Numbers:
    dsn = await lab.fresh_database("foreman")
    async with foreman.running(lab, dsn, "all") as server:
        job: dict[str, object] = {"kind": KIND, "payload": {"text": payload_text()}}
        await foreman.fill(server.port, lab.scale.drain_jobs, job)
        await lab.settle_down(dsn)
        arguments = {"url": f"http://127.0.0.1:{server.port}", "concurrency": CONCURRENCY}
        async with lab.service("worker", script_command(PYTHON, SCRIPT, "work", arguments)) as worker:
            return await drained(lab, dsn, FOREMAN_PROGRESS, worker, lab.scale.drain_jobs)


async def _waiting_claims(lab: Lab) -> Numbers:
    async with two_replicas(lab) as (first, second):
        return as_numbers(
            await lab.measure(
                PYTHON,
                SCRIPT,
                "waiting_claims",
                submit_port=first.port,
                claim_port=second.port,
                jobs=20 if lab.scale == QUICK else 100,
            )
        )


BENCHMARK = Benchmark(
    name="workers",
    question="no-ops done by one Python worker over HTTP; a waiting claim on another replica",
    metrics=(
        Metric("per_second", "jobs/s", "higher"),
        Metric("claim_p50_ms", "waiting claim, p50 ms", "lower", compared=False),
        Metric("claim_p99_ms", "p99 ms", "lower", compared=False),
    ),
    # The others stand under `drain`: this one is there again, so that the ratio is of neighbouring turns.
    systems=(System("foreman", run_foreman), peer_system(PGQUEUER)),
)
