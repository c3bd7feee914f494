"""The database goes away and comes back: 503 with Retry-After meanwhile, then everything goes on by itself."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import httpx
import pytest

from app.embedded import EmbeddedPostgres
from app.store import locks
from app.store.history import ALL_EVENTS
from app.store.migrate import migrate
from tests.conftest import MakeServer, Server, free_port, wait_until
from tests.engine.fleet import QUICK, all_reach, check_invariants, count, echo, fetch, story, submit
from tests.patience import pace, until


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """One that this test may stop and kill; durable, or it would be allowed to forget."""
    with EmbeddedPostgres(tmp_path / "postgres") as server:
        asyncio.run(migrate(server.dsn))
        yield server


@pytest.fixture
def server(own_postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Server]:
    environment = {**QUICK, "FOREMAN_LEASE_SECONDS": "5", "FOREMAN_SHUTDOWN_GRACE_SECONDS": "1"}
    server = Server(own_postgres.dsn, free_port(), environment, log_path=tmp_path / "log")
    yield server.start()
    if server.process is not None and server.process.poll() is None:
        server.kill()


def test_a_database_that_is_away_is_a_503_and_needs_no_restart(
    own_postgres: EmbeddedPostgres, server: Server
) -> None:
    first = submit(server, *(echo(6, 300) for _ in range(10)), *({"kind": "noop"} for _ in range(10)))
    wait_until(lambda: count(own_postgres.dsn, "working") == 10, 20)
    own_postgres.stop()

    with httpx.Client(base_url=server.url, timeout=20) as client:
        for answer in (
            client.post("/jobs", json={"kind": "noop"}),
            client.post("/jobs/batch", json={"jobs": [{"kind": "noop"}]}),
            client.get(f"/jobs/{first[0]}"),
            client.get(f"/jobs/{first[0]}/explain"),
            client.get("/jobs"),
            client.post(f"/jobs/{first[0]}/cancel"),
            client.get("/readyz"),
        ):
            assert answer.status_code == 503, answer.text
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["code"] == "unavailable"
        assert client.get("/healthz").status_code == 200
        # What has to be looked up is left out, not told as it was.
        metrics = client.get("/metrics").text
        assert 'foreman_database_up{of="database"} 0.0' in metrics
        assert "foreman_queue_jobs{" not in metrics
        away = 'why="database_away"'
        wait_until(lambda: away in client.get("/metrics").text)
        assert client.get("/version").status_code == 200
        # What is wrong is still told as such: the database is not needed for that.
        assert client.post("/jobs", content=b"{").status_code == 400

        own_postgres.start()
        wait_until(lambda: client.get("/readyz").status_code == 200, 20)
        wait_until(lambda: client.post("/jobs", json={"kind": "noop"}).status_code == 202, 20)
        # However many loops there are: one line when it went, one when it was back.
        wait_until(lambda: "database.back" in server.log(), 20)
        told = [json.loads(line) for line in server.log().splitlines() if "database" in line]
        assert "Traceback" not in server.log()
        assert [line["event"] for line in told] == ["database.unavailable", "database.back"], told
        assert told[0]["cause"]
        assert told[1]["seconds"] > 0
        second = submit(server, *(echo(1) for _ in range(20)))
        all_reach(own_postgres.dsn, "done", 60)
    assert check_invariants(own_postgres.dsn) >= len(first) + len(second) + 1
    assert server.process is not None
    assert server.process.poll() is None
    assert server.stop() == 0


def test_an_outage_longer_than_the_leases_runs_nothing_twice(
    own_postgres: EmbeddedPostgres, server: Server
) -> None:
    """Neither what runs in the server nor what a worker over HTTP holds; but who really died is noticed soon."""
    [inside, outside, abandoned] = submit(
        server, echo(1000, 200), {"kind": "outside"}, {"kind": "abandoned", "backoff_seconds": 0.01}
    )
    wanted = {"worker": "w", "lease_seconds": 5}
    with httpx.Client(base_url=server.url, timeout=30) as client:
        held, _ = (
            client.post("/claims", json={**wanted, "kinds": [kind]}).json()["jobs"][0]
            for kind in ("outside", "abandoned")
        )
        wait_until(lambda: count(own_postgres.dsn, "working") == 1, 20)

        def beat() -> int:
            body = {"lease_token": held["lease_token"]}
            return client.post(f"/jobs/{outside}/heartbeat", json=body).status_code

        assert beat() == 200
        [last] = fetch(own_postgres.dsn, "SELECT max(lease_expires_at) FROM jobs")
        own_postgres.stop()
        wait_until(lambda: datetime.now(UTC) > last["max"] + timedelta(seconds=0.5), 20)
        assert beat() == 503
        own_postgres.start()
        # As a worker does that was told to come back.
        wait_until(lambda: beat() != 503, 20)
        assert beat() == 200
        # The one that nobody renews comes back; by then the sweeper has been at it.
        again = client.post(
            "/claims", json={**wanted, "kinds": ["abandoned"], "wait_seconds": 30}, timeout=60
        )
        assert [each["job_id"] for each in again.json()["jobs"]] == [abandoned]
    for job_id, attempt in ((inside, 1), (outside, 1), (abandoned, 2)):
        [row] = fetch(own_postgres.dsn, "SELECT attempt FROM jobs WHERE id = $1", job_id)
        assert row["attempt"] == attempt, story(own_postgres.dsn, job_id)
    assert ("queued", "rescue") not in story(own_postgres.dsn, inside)


OTHERS_AT_IT = f"SELECT pg_advisory_lock({locks.SWEEP})"
NOBODY_AT_IT = f"SELECT pg_advisory_unlock({locks.SWEEP})"
# Somebody is in the middle of a look and hangs there; somebody waits for it to end.
THE_LOOK = f"look.locktype = 'advisory' AND (look.classid::bigint << 32) + look.objid::bigint = {locks.SWEEP}"
HANGS = f"""
SELECT EXISTS (
    SELECT 1 FROM pg_locks AS look JOIN pg_locks AS wanted USING (pid)
    WHERE {THE_LOOK} AND look.granted AND wanted.relation = 'jobs'::regclass AND NOT wanted.granted
)
"""
IS_AWAITED = f"SELECT EXISTS (SELECT 1 FROM pg_locks AS look WHERE {THE_LOOK} AND NOT look.granted)"


async def comes_true(connection: asyncpg.Connection, question: str, *arguments: object) -> None:
    await until(lambda: connection.fetchval(question, *arguments))


class OutsideWorker:
    """One job of a worker over HTTP, and its lease."""

    def __init__(self, client: httpx.AsyncClient, job: dict[str, str]) -> None:
        self.job_id = job["job_id"]
        self._client = client
        self._token = job["lease_token"]

    @classmethod
    async def claims(cls, client: httpx.AsyncClient, kind: str, lease_seconds: float) -> "OutsideWorker":
        wanted = {"worker": "w", "kinds": [kind], "lease_seconds": lease_seconds, "wait_seconds": 60}
        [job] = (await client.post("/claims", json=wanted)).json()["jobs"]
        return cls(client, job)

    async def beat(self, lease_seconds: float) -> int:
        body = {"lease_token": self._token, "lease_seconds": lease_seconds}
        return (await self._client.post(f"/jobs/{self.job_id}/heartbeat", json=body)).status_code

    async def keep_beating(self, lease_seconds: float, answers: list[int]) -> None:
        while True:
            answers.append(await self.beat(lease_seconds))
            await pace(lease_seconds / 3)


async def test_a_database_that_hangs_for_longer_than_the_leases_runs_nothing_twice(
    database_url: str, make_server: MakeServer
) -> None:
    """Nothing fails, and when it answers again a sweeper is there as soon as those who renew.

    Here it is sooner: it is in the middle of a look that found all leases expired. The next look is kept waiting, so that
    it does not matter how fast this machine is.
    """
    server = make_server(**QUICK)
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=120) as client,
        asyncpg.create_pool(database_url, min_size=2, max_size=2) as pool,
        pool.acquire() as locking,
        pool.acquire() as looking,
    ):
        # Who really died is found. From then on this sweeper trusts what it sees.
        await client.post("/jobs", json={"kind": "abandoned"})
        abandoned = await OutsideWorker.claims(client, "abandoned", 0.2)
        assert (await OutsideWorker.claims(client, "abandoned", 3600)).job_id == abandoned.job_id

        await looking.execute(OTHERS_AT_IT)
        jobs = {"jobs": [echo(10_000, 100), {"kind": "beating"}, {"kind": "cut-off"}]}
        answer = await client.post("/jobs/batch", json=jobs)
        inside = answer.json()["jobs"][0]["job_id"]
        await comes_true(looking, "SELECT state = 'working' FROM jobs WHERE id = $1", inside)
        # One worker beats all the time; the other's call was cut off, and it will try again in a moment.
        beating = await OutsideWorker.claims(client, "beating", 2)
        cut_off = await OutsideWorker.claims(client, "cut-off", 2)
        mine = [inside, beating.job_id, cut_off.job_id]
        answers: list[int] = []
        beats = asyncio.create_task(beating.keep_beating(2, answers))
        async with locking.transaction():
            await locking.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
            await comes_true(
                locking,
                "SELECT max(lease_expires_at) < clock_timestamp() FROM jobs WHERE id = ANY ($1::text[])",
                mine,
            )
            await looking.execute(NOBODY_AT_IT)
            await comes_true(looking, HANGS)
            look_is_over = asyncio.create_task(looking.execute(OTHERS_AT_IT))
            await comes_true(locking, IS_AWAITED)
        await look_is_over

        assert await cut_off.beat(3600) == 200
        await comes_true(
            looking, "SELECT lease_expires_at > clock_timestamp() FROM jobs WHERE id = $1", inside
        )
        beats.cancel()
        assert await beating.beat(3600) == 200
        assert set(answers) <= {200}
        assert (await client.post(f"/jobs/{inside}/cancel")).status_code == 202
        await comes_true(looking, "SELECT state = 'cancelled' FROM jobs WHERE id = $1", inside)
        for job_id in mine:
            reasons = await looking.fetch(
                f"SELECT reason FROM {ALL_EVENTS} AS events WHERE job_id = $1", job_id
            )
            assert "rescue" not in [row["reason"] for row in reasons]
            assert await looking.fetchval("SELECT attempt FROM jobs WHERE id = $1", job_id) == 1

        # And whoever dies after that is found as ever.
        assert await cut_off.beat(0.2) == 200
        await looking.execute(NOBODY_AT_IT)
        assert (await OutsideWorker.claims(client, "cut-off", 3600)).job_id == cut_off.job_id


def test_a_crash_of_the_database_loses_nothing_that_was_acknowledged(
    own_postgres: EmbeddedPostgres, server: Server
) -> None:
    acknowledged = submit(server, *(echo(2, 200) for _ in range(150)))
    for enough in (5, 60):
        wait_until(lambda: count(own_postgres.dsn, "done") > enough, 30)  # noqa: B023 - used up before it changes
        assert own_postgres.pid is not None
        os.kill(own_postgres.pid, signal.SIGKILL)
        wait_until(lambda: not own_postgres.running)
        own_postgres.start()
    all_reach(own_postgres.dsn, "done", 60)
    assert check_invariants(own_postgres.dsn) == len(acknowledged)


def test_a_server_ends_with_0_though_the_database_is_away(
    own_postgres: EmbeddedPostgres, server: Server
) -> None:
    submit(server, echo(100, 500))
    wait_until(lambda: count(own_postgres.dsn, "working") == 1, 20)
    own_postgres.stop()
    assert server.stop(60) == 0
    own_postgres.start()
    assert count(own_postgres.dsn, "working") == 1  # its lease will tell


def test_a_server_waits_for_a_database_that_is_just_starting_and_says_so(
    own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    own_postgres.stop()
    environment = {**QUICK, "FOREMAN_PROCESSES": "2"}
    server = Server(own_postgres.dsn, free_port(), environment, log_path=tmp_path / "early.log")
    try:
        server.launch()
        wait_until(lambda: "serve.waiting_for_database" in server.log(), 30, server.log)
        with httpx.Client(base_url=server.url, timeout=20) as client:
            # Alive, but not ready; and it says why to everybody.
            wait_until(lambda: "not reachable" in client.get("/readyz").text)
            assert client.get("/healthz").status_code == 200
            assert client.get("/version").status_code == 200
            for answer in (
                client.get("/readyz"),
                client.post("/jobs", json={"kind": "noop"}),
                client.get("/jobs"),
            ):
                assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                assert "not reachable" in answer.json()["detail"]
                assert answer.headers["retry-after"]
            assert client.get("/api/tags").status_code == 503
            assert "Submit a job" not in server.log()
            own_postgres.start()
            # Of two processes one is ready before the other.
            wait_until(lambda: client.post("/jobs", json={"kind": "noop"}).status_code == 202, 30)
            wait_until(lambda: "Submit a job" in server.log())
            assert server.log().count("Submit a job") == 1
    finally:
        server.stop()


def test_nobody_meets_a_server_that_is_only_starting(database_url: str, tmp_path: Path) -> None:
    """With its database there it is ready in a moment: who comes before waits for it, and is told no 503."""
    server = Server(database_url, free_port(), log_path=tmp_path / "log").launch()
    answers: list[int] = []

    def ask() -> bool:
        with contextlib.suppress(httpx.ConnectError):
            answers.append(httpx.get(f"{server.url}/readyz", timeout=60).status_code)
        return bool(answers)

    try:
        wait_until(ask, 60, server.log)
        assert answers == [200]
    finally:
        server.stop()


def test_a_server_that_waits_for_its_database_ends_with_0_when_it_is_told_to(tmp_path: Path) -> None:
    server = Server("postgresql://nobody@127.0.0.1:1/x", free_port(), log_path=tmp_path / "log")
    server.launch()
    wait_until(lambda: "serve.waiting_for_database" in server.log(), 30, server.log)
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    assert httpx.get(f"{server.url}/readyz").status_code == 503
    assert server.stop() == 0
