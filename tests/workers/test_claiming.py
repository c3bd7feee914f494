"""Claims over HTTP by many at once, by somebody frozen past its lease, and across replicas."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from app.store.database import Database
from benchmarks.http_client import AskingConnection, ask, connect
from tests.api.wire import unread
from tests.conftest import ROOT, MakeServer, Server
from tests.patience import turn_of_the_loop, until
from tests.store.invariants import check_all

# Each a job that was claimed, lost and completed too late; the whole promise is 1,000 of them.
FROZEN_ROUNDS = int(os.environ.get("FROZEN_ROUNDS", "60"))
AT_ONCE = 20
QUICK = {"FOREMAN_SWEEP_SECONDS": "0.05", "FOREMAN_POLL_SECONDS": "0.2"}
CLAIMERS = 200


def submit(server: Server, kind: str, count: int, **fields: Any) -> list[str]:
    ids: list[str] = []
    for first in range(0, count, 1000):
        jobs = [{"kind": kind, **fields}] * min(1000, count - first)
        answer = httpx.post(f"{server.url}/jobs/batch", json={"jobs": jobs}, timeout=30)
        ids += [each["job_id"] for each in answer.json()["jobs"]]
    return ids


def test_a_frozen_worker_is_told_that_its_lease_is_lost_every_time(make_server: MakeServer) -> None:
    server = make_server(**QUICK)
    frozen = subprocess.Popen(
        [sys.executable, "-m", "tests.workers.frozen_worker", server.url, "frozen", "0.1"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert frozen.stdin is not None
    assert frozen.stdout is not None
    try:
        for _ in range(0, FROZEN_ROUNDS, AT_ONCE):
            ids = submit(server, "frozen", AT_ONCE, backoff_seconds=0.001)
            frozen.stdin.write(f"{AT_ONCE}\n")
            frozen.stdin.flush()
            assert int(frozen.stdout.readline()) == AT_ONCE
            os.kill(frozen.pid, signal.SIGSTOP)
            take_over(server, ids)
            frozen.stdin.write("go on\n")
            frozen.stdin.flush()
            os.kill(frozen.pid, signal.SIGCONT)
            assert json.loads(frozen.stdout.readline()) == {"409 lease_lost": AT_ONCE}
            for job_id in ids:
                job = httpx.get(f"{server.url}/jobs/{job_id}").json()
                assert (job["state"], job["result"], job["attempt"]) == ("done", "other", 2)
                events = httpx.get(f"{server.url}/jobs/{job_id}/events").json()["events"]
                assert events[-1]["type"] == "late_settlement"
                assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    finally:
        frozen.kill()
        frozen.communicate()


def take_over(server: Server, ids: list[str]) -> None:
    """What another worker does as soon as the leases have run out."""
    left = set(ids)
    wanted = {
        "worker": "other",
        "kinds": ["frozen"],
        "limit": AT_ONCE,
        "lease_seconds": 30,
        "wait_seconds": 10,
    }
    with httpx.Client(base_url=server.url, timeout=30) as client:
        while left:
            jobs = client.post("/claims", json=wanted).json()["jobs"]
            assert jobs, f"{len(left)} were not given out again"
            for job in jobs:
                body = {"lease_token": job["lease_token"], "result": "other"}
                assert client.post(f"/jobs/{job['job_id']}/complete", json=body).status_code == 200
                left.remove(job["job_id"])


async def claim(connection: AskingConnection, kind: str, limit: int, wait: float = 0) -> list[dict[str, Any]]:
    wanted = {"worker": "crowd", "kinds": [kind], "limit": limit, "wait_seconds": wait}
    answer: Any = await ask(connection, "POST", "/claims", json.dumps(wanted).encode(), 200)
    return list(answer["jobs"])


@asynccontextmanager
async def crowd(server: Server, size: int = CLAIMERS) -> AsyncIterator[list[AskingConnection]]:
    connections = [await connect(server.port) for _ in range(size)]
    try:
        yield connections
    finally:
        for each in connections:
            each.transport.close()
        # Closing takes a turn of the loop.
        await turn_of_the_loop()


async def all_wait(server: Server, kind: str) -> None:
    """What was asked up to now waits there: it was read, and who asked after it has found nothing."""
    await turn_of_the_loop()
    await until(lambda: not unread(server.port))
    async with crowd(server, 1) as [late]:
        assert await claim(late, kind, 1) == []


async def test_of_two_hundred_claimers_one_gets_the_only_job(make_server: MakeServer) -> None:
    server = await asyncio.to_thread(make_server, **QUICK)
    async with crowd(server) as connections:
        await asyncio.to_thread(submit, server, "there", 1)
        got = await asyncio.gather(*(claim(each, "there", 1) for each in connections))
        assert sum(map(len, got)) == 1
        # And while all of them wait for it. Then the others get one each, so that nobody waits till the end.
        claiming = [asyncio.ensure_future(claim(each, "awaited", 1, 60)) for each in connections]
        await all_wait(server, "awaited")
        await asyncio.to_thread(submit, server, "awaited", 1)
        done, waiting = await asyncio.wait(claiming, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(waiting)) == (1, CLAIMERS - 1)
        await asyncio.to_thread(submit, server, "awaited", CLAIMERS - 1)
        got = await asyncio.gather(*claiming)
        assert len({job["job_id"] for jobs in got for job in jobs}) == sum(map(len, got)) == CLAIMERS


async def test_two_hundred_claimers_get_ten_thousand_jobs_once_each(
    make_server: MakeServer, database_url: str
) -> None:
    server = await asyncio.to_thread(make_server, **QUICK)
    ids = await asyncio.to_thread(submit, server, "many", 10_000)
    given: Counter[str] = Counter()

    async def keep_claiming(connection: AskingConnection) -> None:
        while jobs := await claim(connection, "many", random.randint(1, 20)):
            given.update(job["job_id"] for job in jobs)
            settled = {
                "settlements": [
                    {"verb": "complete", "job_id": job["job_id"], "lease_token": job["lease_token"]}
                    for job in jobs
                ]
            }
            await ask(connection, "POST", "/settlements", json.dumps(settled).encode(), 200)

    async with crowd(server) as connections:
        await asyncio.gather(*(keep_claiming(each) for each in connections))
    assert set(given) == set(ids)
    assert set(given.values()) == {1}
    database = Database(database_url)
    await database.open()
    try:
        assert await check_all(database) == 10_000
        assert (
            await database.fetchval("SELECT count(*) FROM jobs WHERE state = 'done' AND attempt = 1")
            == 10_000
        )
    finally:
        await database.close()


async def test_a_claim_that_waits_on_one_replica_gets_what_is_submitted_on_another(
    make_server: MakeServer,
) -> None:
    # Polling so seldom that only a notice can be in time. How fast it is, `make bench` tells.
    here, there = [await asyncio.to_thread(make_server, FOREMAN_POLL_SECONDS="60") for _ in range(2)]
    async with crowd(there, 1) as [connection]:
        for _ in range(5):
            claiming = asyncio.ensure_future(claim(connection, "far", 1, 50))
            await all_wait(there, "far")
            [job_id] = await asyncio.to_thread(submit, here, "far", 1)
            async with asyncio.timeout(20):
                [job] = await claiming
            assert job["job_id"] == job_id
