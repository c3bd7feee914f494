"""How many no-ops a second one worker process gets through, with all of them enqueued beforehand.

Every system keeps a record of when a job was claimed and finished, on the clock of the one PostgreSQL. The
rate is what was finished between the first claim and the last completion: start-up time is not in it.
"""

import asyncio
import time
from dataclasses import dataclass

import asyncpg

from benchmarks import foreman, venvs
from benchmarks.harness import Aim, Benchmark, Metric, System
from benchmarks.lab import Lab
from benchmarks.measuring import Numbers
from benchmarks.processes import Service, free_port, script_command

FIRST_CLAIM_SECONDS = 180.0
# Often enough to notice the end, seldom enough not to be part of the load.
POLL_SECONDS = 0.25

FOREMAN_PROGRESS = """
SELECT count(*) FILTER (WHERE state = 'done'),
       min(started_at),
       max(completed_at) FILTER (WHERE state = 'done')
FROM jobs
"""
PGQUEUER_PROGRESS = """
SELECT count(*) FILTER (WHERE status = 'successful'),
       min(created) FILTER (WHERE status = 'picked'),
       max(created) FILTER (WHERE status = 'successful')
FROM pgqueuer_log
"""
PROCRASTINATE_PROGRESS = """
SELECT count(*) FILTER (WHERE type = 'succeeded'),
       min(at) FILTER (WHERE type = 'started'),
       max(at) FILTER (WHERE type = 'succeeded')
FROM procrastinate_events
"""


@dataclass(frozen=True)
class Progress:
    finished: int
    seconds: float


async def _progress(connection: asyncpg.Connection, question: str) -> Progress:
    finished, began, ended = await connection.fetchrow(question)
    return Progress(finished, (ended - began).total_seconds() if finished else 0.0)


async def drained(lab: Lab, dsn: str, question: str, worker: Service) -> Numbers:
    """Watch until all is done; a slow system is stopped in mid-work and judged by what it did until then."""
    connection = await asyncpg.connect(dsn)
    try:
        give_up = time.monotonic() + FIRST_CLAIM_SECONDS
        seen = Progress(0, 0.0)
        while seen.finished < lab.scale.drain_jobs and time.monotonic() < give_up:
            await asyncio.sleep(POLL_SECONDS)
            worker.must_be_running()
            before, seen = seen, await _progress(connection, question)
            if seen.finished and not before.finished:
                give_up = time.monotonic() + lab.scale.drain_seconds
    finally:
        await connection.close()
    if not seen.seconds:
        raise RuntimeError(f"{seen.finished} jobs were finished within {FIRST_CLAIM_SECONDS:.0f} s")
    return {"per_second": seen.finished / seen.seconds, "finished": float(seen.finished)}


async def run_foreman(lab: Lab) -> Numbers:
    dsn = await lab.fresh_database("foreman")
    async with foreman.running(lab, dsn, "api") as server:
        await foreman.fill(server.port, lab.scale.drain_jobs)
    await lab.settle_down(dsn)
    async with foreman.service(lab, dsn, "worker", free_port()) as worker:
        return await drained(lab, dsn, FOREMAN_PROGRESS, worker)


def peer(name: str, question: str) -> System:
    python, module = venvs.python_of(name), f"benchmarks.peers.{name}"

    async def run_once(lab: Lab) -> Numbers:
        dsn = await lab.fresh_database(name)
        await lab.measure(python, module, "install", dsn=dsn)
        await lab.measure(python, module, "fill", dsn=dsn, jobs=lab.scale.drain_jobs)
        await lab.settle_down(dsn)
        command = script_command(python, module, "work", {"dsn": dsn})
        async with lab.service(f"{name}-drain", command) as worker:
            return await drained(lab, dsn, question, worker)

    return System(name, run_once, peer=name)


BENCHMARK = Benchmark(
    name="drain",
    question="no-ops done by one worker process",
    metrics=(Metric("per_second", "jobs/s", "higher"),),
    systems=(
        System("foreman", run_foreman),
        peer("pgqueuer", PGQUEUER_PROGRESS),
        peer("procrastinate", PROCRASTINATE_PROGRESS),
    ),
    aims=(Aim("pgqueuer", "per_second", 1.0),),
)
