"""Workers as processes: told to leave, frozen past their lease, killed; and a server that is away."""

import asyncio
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from foreman_client import AsyncForeman, Foreman, JobHandle, Worker
from tests.client.conftest import working
from tests.conftest import ROOT, MakeServer, Server, wait_until
from tests.patience import until

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(server: Server, kind: str, lease_seconds: float = 10) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.client.sample_worker", server.url, kind, str(lease_seconds)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    """The next line: a job has begun."""
    assert process.stdout is not None
    return process.stdout.readline()


def is_past(handle: JobHandle, seq: int) -> bool:
    return handle.status().seq > seq


def test_sigterm_in_mid_work_gives_the_job_back_and_spends_no_attempt(
    shared_server: Server, foreman: Foreman, start: Start
) -> None:
    handle = foreman.submit("told-to-leave", {"seconds": 600})
    process = start(shared_server, "told-to-leave")
    assert said(process) == f"{handle.job_id} 1\n"
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: handle.status().state == "queued", 10)
    assert process.wait(120) == 0
    job = handle.status()
    # Given back: had its lease run out, it would have spent an attempt.
    assert (job.attempt, job.deferrals) == (0, 0)
    # And the next worker has it.
    start(shared_server, "told-to-leave")
    wait_until(lambda: handle.status().attempt == 1, 20)
    handle.cancel()


def test_an_idle_worker_leaves_at_once_when_told_to(
    shared_server: Server, foreman: Foreman, start: Start
) -> None:
    process = start(shared_server, "idle")
    handle = foreman.submit("idle", {"seconds": 0})
    handle.wait(20)
    process.send_signal(signal.SIGINT)
    # Its open claim would have been answered after 25 s.
    assert process.wait(20) == 0
    assert "Traceback" not in process.communicate()[1]


def test_a_worker_frozen_past_its_lease_cannot_settle_what_another_has_taken_over(
    shared_server: Server, foreman: Foreman, start: Start
) -> None:
    frozen = start(shared_server, "frozen", lease_seconds=0.5)
    for _ in range(3):
        handle = foreman.submit("frozen", {"seconds": 0.4})
        # It may first begin again what its open claim was handed while it was frozen.
        while said(frozen) != f"{handle.job_id} 1\n":
            assert frozen.poll() is None
        os.kill(frozen.pid, signal.SIGSTOP)
        try:
            other = start(shared_server, "frozen", lease_seconds=5)
            job = handle.wait(20)
        finally:
            os.kill(frozen.pid, signal.SIGCONT)
        other.send_signal(signal.SIGTERM)
        assert other.wait(120) == 0
        # The frozen one may have been handed it once more: its claim was still open.
        assert job.result["attempt"] >= 2
        assert f"-{other.pid}-" in job.result["worker"]
        # The thawed one finds out, tells nobody otherwise, and goes on with the next job.
        wait_until(functools.partial(is_past, handle, job.seq), 10)
        after = handle.status()
        assert (after.state, after.result) == ("done", job.result)


def test_a_killed_workers_job_is_done_by_another(
    shared_server: Server, foreman: Foreman, start: Start
) -> None:
    handle = foreman.submit("killed", {"seconds": 600}, backoff_seconds=0.01)
    victim = start(shared_server, "killed", lease_seconds=0.5)
    assert said(victim)
    victim.kill()
    heir = start(shared_server, "killed")
    assert said(heir) == f"{handle.job_id} 2\n"
    handle.cancel()


async def test_a_result_is_kept_while_the_server_is_away_and_handed_in_when_it_is_back(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = await asyncio.to_thread(make_server)
    began, away, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()
    worker = Worker(server.url, lease_seconds=30)

    @worker.task("patient")
    async def patient(payload: Any) -> Any:
        began.set()
        await away.wait()
        finished.set()
        return "kept"

    async with AsyncForeman(server.url, retry_seconds=30) as foreman, working(worker), asyncio.timeout(90):
        handle = await foreman.submit("patient")
        await began.wait()
        server.kill()
        away.set()
        await finished.wait()
        await until(lambda: "cannot settle" in caplog.text)
        await asyncio.to_thread(server.start)
        job = await handle.wait(30)
        assert (job.result, job.attempt) == ("kept", 1)
        # And it goes on working.
        assert (await (await foreman.submit("patient")).wait(30)).result == "kept"


async def test_a_result_over_the_size_limit_fails_its_own_job_and_no_other(make_server: MakeServer) -> None:
    server = await asyncio.to_thread(make_server, FOREMAN_MAX_BODY_BYTES="65536")
    worker = Worker(server.url)

    @worker.task("sized")
    async def sized(payload: Any) -> Any:
        return "x" * payload["size"]

    async with AsyncForeman(server.url) as foreman, working(worker), asyncio.timeout(60):
        handles = await foreman.submit_many(
            [{"kind": "sized", "payload": {"size": 100_000 if n == 3 else 9_000}} for n in range(12)]
        )
        jobs = []
        for handle in handles:
            while not (job := await foreman.get(handle.job_id, hold_seconds=5)).terminal:
                pass
            jobs.append(job)
    assert [job.state for job in jobs] == ["failed" if n == 3 else "done" for n in range(12)]
    assert jobs[3].error
    assert jobs[3].error.code == "payload_too_large"
