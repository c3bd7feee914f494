"""What has a seq is told only when it cannot be unsaid: a seq, an ETag, a webhook-id means the same after any crash."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import asyncpg
import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import Server, free_port, wait_until
from tests.engine.fleet import fetch
from tests.events.sse import blocks
from tests.processes import kill_at_once
from tests.webhooks.conftest import ReceiverProcess

# What does not wait for the disk stays in memory for ten seconds; what does waits a tenth of one. So a crash right
# after something was told takes with it all that was told too early.
SLOW_DISK = {
    "fsync": "on",
    "synchronous_commit": "on",
    "wal_writer_delay": "10s",
    "commit_delay": "100000",
    "commit_siblings": "0",
}


@pytest.fixture(scope="module")
def crashing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL of our own that keeps what it promised, for tests that kill it."""
    folder = tmp_path_factory.mktemp("crashing")
    with EmbeddedPostgres(folder, durable=False, options=SLOW_DISK) as postgres:
        yield postgres


@pytest.fixture(scope="module")
def served(crashing: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("served") / "server.log"
    settings = {"FOREMAN_OUTBOUND_ALLOW": "127.0.0.0/8", "FOREMAN_LEASE_SECONDS": "600"}
    server = Server(crashing.dsn, free_port(), settings, log_path=log).start()
    yield server
    server.kill()


def crash(postgres: EmbeddedPostgres) -> None:
    """kill -9 of all its processes at once: what was only in shared memory is gone."""
    postmaster = postgres.pid
    assert postmaster is not None
    kill_at_once(postmaster)
    wait_until(lambda: not postgres.running)


def submit(server: Server, receiver: ReceiverProcess, kind: str) -> str:
    body = {"kind": kind, "state_webhook_url": receiver.url}
    answer = httpx.post(f"{server.url}/jobs", json=body, timeout=60)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job_id"])


def claim(server: Server, kind: str) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}/claims", json={"worker": "tester", "kinds": [kind]}, timeout=60)
    assert answer.status_code == 200, answer.text
    [job] = answer.json()["jobs"]
    return dict(job)


def told(server: Server, job_id: str) -> list[tuple[int, str]]:
    """(seq, type) of the log's page."""
    page = httpx.get(f"{server.url}/jobs/{job_id}/events", timeout=60).json()
    return [(event["seq"], event["type"]) for event in page["events"]]


def heard(receiver: ReceiverProcess, job_id: str) -> dict[str, str]:
    """The type by webhook-id."""
    return {
        each.headers["webhook-id"]: each.message["type"]
        for each in receiver.arrivals()
        if each.job_id == job_id
    }


def answers(server: Server) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{server.url}/readyz", timeout=10).status_code == 200
    return False


def test_what_was_told_of_a_claim_means_the_same_after_a_crash(
    crashing: EmbeddedPostgres, served: Server, receiver: ReceiverProcess
) -> None:
    job_id = submit(served, receiver, "crashed")
    wait_until(lambda: heard(receiver, job_id) == {f"{job_id}-1": "job.queued"})
    claim(served, "crashed")
    wait_until(lambda: f"{job_id}-2" in heard(receiver, job_id))
    crash(crashing)

    crashing.start()
    wait_until(lambda: answers(served), 30, served.log)
    cancelled = httpx.post(f"{served.url}/jobs/{job_id}/cancel", timeout=60)
    # On the way to a worker that never lost its lease: not a job that nobody ever claimed.
    assert cancelled.status_code == 202, cancelled.text
    assert told(served, job_id)[:3] == [(1, "queued"), (2, "loading"), (3, "cancel_requested")]
    assert heard(receiver, job_id)[f"{job_id}-2"] == "job.loading"


def test_nothing_is_told_of_a_claim_before_the_standby_has_it(
    crashing: EmbeddedPostgres, served: Server, receiver: ReceiverProcess
) -> None:
    job_id = submit(served, receiver, "replicated")
    wait_until(lambda: len(heard(receiver, job_id)) == 1)
    streamed: list[str | None] = []
    threading.Thread(target=stream, args=(served, job_id, streamed), daemon=True).start()
    wait_until(lambda: streamed == ["1"])
    claimed: list[dict[str, Any]] = []
    claimer = threading.Thread(target=lambda: claimed.append(claim(served, "replicated")))
    with standby_that_is_away(crashing):
        claimer.start()
        wait_until(
            lambda: waits_for_the_standby(crashing, "found.logs_itself"), 10, lambda: f"told: {claimed}"
        )
        assert told(served, job_id) == [(1, "queued")]
        assert httpx.get(f"{served.url}/jobs/{job_id}", timeout=60).headers["etag"] == '"1"'
        assert list(heard(receiver, job_id)) == [f"{job_id}-1"]
        assert (claimed, streamed) == ([], ["1"])
    claimer.join(60)
    assert [each["job_id"] for each in claimed] == [job_id]
    wait_until(lambda: heard(receiver, job_id).get(f"{job_id}-2") == "job.loading")
    wait_until(lambda: streamed == ["1", "2"])


def stream(server: Server, job_id: str, seen: list[str | None]) -> None:
    with contextlib.suppress(httpx.HTTPError):
        seen.extend(each.id for each in blocks(f"{server.url}/jobs/{job_id}/events", timeout=60))


@contextlib.contextmanager
def standby_that_is_away(postgres: EmbeddedPostgres) -> Iterator[None]:
    """Commits that are to survive wait for a standby that never answers, until the end."""
    set_standby(postgres, "nobody")
    try:
        yield
    finally:
        set_standby(postgres, "")


def set_standby(postgres: EmbeddedPostgres, name: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(postgres.dsn)
        await connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()

    asyncio.run(run())
    wait_until(
        lambda: fetch(postgres.dsn, "SELECT current_setting('synchronous_standby_names')")[0][0] == name
    )


def waits_for_the_standby(postgres: EmbeddedPostgres, statement: str) -> bool:
    return bool(
        fetch(
            postgres.dsn,
            "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND strpos(query, $1) > 0",
            statement,
        )
    )
