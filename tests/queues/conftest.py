"""One server for a whole file of tests; each test has queues of its own."""

import asyncio
import contextlib
import itertools
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import httpx
import pytest

from app.embedded import EmbeddedPostgres
from app.store import locks
from app.store.history import ALL_EVENTS
from tests.conftest import TEMPLATE, Server, _create_database, _drop_database, free_port, wait_until

QUICK = {
    "FOREMAN_SWEEP_SECONDS": "0.2",
    "FOREMAN_POLL_SECONDS": "0.2",
    "FOREMAN_CANCEL_GRACE_SECONDS": "0.5",
}

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shared_database(postgres: EmbeddedPostgres) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    asyncio.run(_create_database(postgres.dsn, name, TEMPLATE))
    yield postgres.dsn_for(name)
    asyncio.run(_drop_database(postgres.dsn, name))


@pytest.fixture(scope="module")
def shared_server(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    server = Server(shared_database, free_port(), QUICK, log_path=log).start()
    yield server
    server.kill()


class Caller:
    """Short words for what the tests say over HTTP."""

    def __init__(self, http: httpx.Client, database_url: str) -> None:
        self.http = http
        self._database_url = database_url

    def configure(self, queue: str, **settings: Any) -> dict[str, Any]:
        answer = self.http.put(f"/queues/{queue}", json=settings)
        assert answer.status_code in {200, 201}, answer.text
        answered: dict[str, Any] = answer.json()
        return answered

    def post(self, queue: str, payload: dict[str, Any] | None = None, **fields: Any) -> httpx.Response:
        return self.http.post(
            "/jobs", json={"kind": "work", "queue": queue, "payload": payload or {}, **fields}
        )

    def submit(self, queue: str, payload: dict[str, Any] | None = None, **fields: Any) -> str:
        answer = self.post(queue, payload, **fields)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job_id"])

    def claim(self, queue: str, limit: int = 1, wait: float = 0, **fields: Any) -> list[dict[str, Any]]:
        body = {
            "worker": "w",
            "queues": [queue],
            "kinds": ["work"],
            "limit": limit,
            "wait_seconds": wait,
            **fields,
        }
        answer = self.http.post("/claims", json=body, timeout=wait + 60)
        assert answer.status_code == 200, answer.text
        answered: list[dict[str, Any]] = answer.json()["jobs"]
        return answered

    def settle(self, job: dict[str, Any], verb: str = "complete", **fields: Any) -> httpx.Response:
        return self.http.post(
            f"/jobs/{job['job_id']}/{verb}", json={"lease_token": job["lease_token"], **fields}
        )

    def complete(self, job: dict[str, Any]) -> None:
        assert self.settle(job, "complete", result=None).status_code == 200

    def fail(self, job: dict[str, Any], *, retryable: bool = False, **fields: Any) -> None:
        error = {"code": "broken", "message": "It broke."}
        assert self.settle(job, "fail", error=error, retryable=retryable, **fields).status_code == 200

    def job(self, job_id: str) -> dict[str, Any]:
        answered: dict[str, Any] = self.http.get(f"/jobs/{job_id}").json()
        return answered

    def state(self, job_id: str) -> str:
        return str(self.job(job_id)["state"])

    def sql(self, statement: str, *arguments: Any) -> list[Any]:
        async def run() -> list[Any]:
            connection = await asyncpg.connect(self._database_url)
            try:
                answered: list[Any] = await connection.fetch(statement, *arguments)
                return answered
            finally:
                await connection.close()

        return asyncio.run(run())

    def end_by_hand(self, job_id: str, state: str = "done") -> None:
        """As a process would leave it that was killed between its commit and what was to follow."""
        self.sql(
            "WITH ended AS (UPDATE jobs SET state = $2, completed_at = now(), lease_token = NULL WHERE id = $1) "
            "DELETE FROM running WHERE id = $1",
            job_id,
            state,
        )

    @contextlib.contextmanager
    def no_repair(self) -> Iterator[None]:
        """As long as another replica is at it, or believes so, nobody finds what a crash left undone."""
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            connection = loop.run_until_complete(asyncpg.connect(self._database_url))
            transaction = connection.transaction()
            loop.run_until_complete(transaction.start())
            try:
                taken = "SELECT pg_advisory_xact_lock($1)"
                loop.run_until_complete(connection.execute(taken, locks.REPAIR))
                yield
            finally:
                loop.run_until_complete(connection.close())

    def events(self, job_id: str) -> list[dict[str, Any]]:
        """The log as it stands in the database."""
        rows = self.sql(
            f"SELECT seq, type, reason, data FROM {ALL_EVENTS} AS events WHERE job_id = $1 ORDER BY seq",
            job_id,
        )
        return [{**row, "data": json.loads(row["data"]) if row["data"] else None} for row in rows]

    def queue(self, name: str) -> dict[str, Any]:
        answered: dict[str, Any] = self.http.get(f"/queues/{name}").json()
        return answered


@pytest.fixture
def call(shared_server: Server) -> Iterator[Caller]:
    with httpx.Client(base_url=shared_server.url, timeout=60) as http:
        yield Caller(http, shared_server.database_url)


@pytest.fixture
def queue() -> str:
    """A queue that no other test knows."""
    return f"q{next(_numbers)}-{uuid.uuid4().hex[:6]}"


def soon(condition: Callable[[], object], seconds: float = 5) -> None:
    wait_until(condition, seconds)
