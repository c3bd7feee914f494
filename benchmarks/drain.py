"""How many no-ops a second one worker process gets through, with all of them enqueued beforehand.

Every system keeps a record of when a job was claimed and finished, on the clock of the one PostgreSQL. The
rate is what was finished between the first claim and the last completion: start-up time is not in it.
"""

import asyncio
import json
import time
from dataclasses import dataclass

import asyncpg

from app.identity.key import new_key
from benchmarks import foreman
from benchmarks.harness import Benchmark, Metric, System
from benchmarks.lab import Lab
from benchmarks.measuring import Numbers, as_numbers
from benchmarks.peering import QUEUES, Peer
from benchmarks.processes import Service, free_port

FIRST_CLAIM_SECONDS = 180.0
# Often enough to notice the end, seldom enough not to be part of the load.
POLL_SECONDS = 0.25

FOREMAN_PROGRESS = """
SELECT count(*) FILTER (WHERE state = 'done'),
       min(started_at),
       max(completed_at) FILTER (WHERE state = 'done')
FROM jobs
"""


@dataclass(frozen=True)
class Progress:
    finished: int
    seconds: float


async def _progress(connection: asyncpg.Connection, question: str) -> Progress:
    finished, began, ended = await connection.fetchrow(question)
    return Progress(finished, (ended - began).total_seconds() if finished else 0.0)


async def drained(lab: Lab, dsn: str, question: str, worker: Service, jobs: int) -> Numbers:
    """Watch until all is done; a slow system is stopped in mid-work and judged by what it did until then."""
    connection = await asyncpg.connect(dsn)
    try:
        give_up = time.monotonic() + FIRST_CLAIM_SECONDS
        seen = Progress(0, 0.0)
        while seen.finished < jobs and time.monotonic() < give_up:
            await asyncio.sleep(POLL_SECONDS)
            worker.must_be_running()
            before, seen = seen, await _progress(connection, question)
            if seen.finished and not before.finished:
                give_up = time.monotonic() + lab.scale.drain_seconds
    finally:
        await connection.close()
    if not seen.seconds:
        raise RuntimeError(f"{seen.finished} jobs were finished within {FIRST_CLAIM_SECONDS:.0f} s")
    return _rate(seen)


def _rate(seen: Progress) -> Numbers:
    return {"per_second": seen.finished / seen.seconds, "finished": float(seen.finished)}


async def run_foreman(lab: Lab, key: str | None = None) -> Numbers:
    dsn = await lab.fresh_database("foreman")
    async with foreman.running(lab, dsn, "api", key) as server:
        await foreman.fill(server.port, lab.scale.drain_jobs, key=key)
    await lab.settle_down(dsn)
    async with foreman.service(lab, dsn, "worker", free_port(), key) as worker:
        return await drained(lab, dsn, FOREMAN_PROGRESS, worker, lab.scale.drain_jobs)


async def run_foreman_authenticated(lab: Lab) -> Numbers:
    return await run_foreman(lab, new_key())


def peer_system(peer: Peer) -> System:
    async def run_once(lab: Lab) -> Numbers:
        jobs = min(lab.scale.drain_jobs, peer.most_jobs)
        dsn = await peer.installed(lab)
        await peer.ask(lab, "fill", dsn=dsn, jobs=jobs)
        await lab.settle_down(dsn)
        patience = lab.scale.drain_seconds
        command = peer.packages.command("work", {"dsn": dsn, "jobs": jobs, "patience": patience})
        async with lab.service(f"{peer.name}-drain", command, answers=peer.progress is None) as worker:
            if peer.progress is None:
                return await _told(worker)
            return await drained(lab, dsn, peer.progress, worker, jobs)

    return System(peer.name, run_once, peer=peer)


async def _told(worker: Service) -> Numbers:
    """What the worker itself says of its progress, where the tables keep nothing of it."""
    said = as_numbers(json.loads(await worker.next_line(FIRST_CLAIM_SECONDS)))
    return _rate(Progress(int(said["finished"]), said["seconds"]))


BENCHMARK = Benchmark(
    name="drain",
    question="no-ops done by one worker process",
    metrics=(Metric("per_second", "jobs/s", "higher"),),
    systems=(
        System("foreman", run_foreman),
        System("foreman, API key", run_foreman_authenticated),
        *(peer_system(peer) for peer in QUEUES),
    ),
)
