"""A claim without `kinds` that waits is woken by whatever its tenant's workers may run, from wherever it comes.

Nothing here is known when the wait begins: neither the lane nor the kind. Waits last a minute and so does the time
between two polls, and each test ends long before: an empty list or a time-out is a claim that was not woken.
"""

import asyncio
import functools
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import TEMPLATE, Server, _create_database, _drop_database, free_port

SETTINGS = {"FOREMAN_SWEEP_SECONDS": "0.1", "FOREMAN_LOG_LEVEL": "warning"}
# Polling so seldom that only a hint can be in time; or the other way round.
HINTED = {**SETTINGS, "FOREMAN_POLL_SECONDS": "60"}
POLLING = {**SETTINGS, "FOREMAN_POLL_SECONDS": "0.2", "FOREMAN_LISTEN": "off"}


@pytest.fixture(scope="module")
def fleet(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Server]]:
    """Replicas on one database."""
    name = f"fleet_{uuid.uuid4().hex[:12]}"
    asyncio.run(_create_database(postgres.dsn, name, TEMPLATE))
    log = tmp_path_factory.mktemp("fleet") / "log"
    servers = {
        name_: Server(postgres.dsn_for(name), free_port(), environment, log_path=log)
        for name_, environment in (("here", HINTED), ("there", HINTED), ("polling", POLLING))
    }
    try:
        for server in servers.values():
            server.start()
        yield servers
    finally:
        for server in servers.values():
            if server.process is not None:
                server.stop()
        asyncio.run(_drop_database(postgres.dsn, name))


class Place:
    """A queue of its own; work is made on one replica and claimed on another."""

    def __init__(self, maker: Server, claimer: Server) -> None:
        self.queue = f"q-{uuid.uuid4().hex[:8]}"
        self._maker = maker
        self._claimer = claimer

    def anew(self) -> "Place":
        return Place(self._maker, self._claimer)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        async with httpx.AsyncClient(base_url=self._maker.url, timeout=60) as client:
            answer = await client.request(method, path, json=body)
            assert answer.status_code < 300, answer.text
            return answer.json()

    async def submit(self, **fields: Any) -> str:
        kind = fields.pop("kind", None) or f"k-{uuid.uuid4().hex[:8]}"
        job = {"queue": self.queue, "kind": kind, **fields}
        return str((await self.ask("POST", "/jobs", job))["job_id"])

    async def claim(self, wait_seconds: float = 0, **fields: Any) -> list[dict[str, Any]]:
        wanted = {"worker": "any", "queues": [self.queue], "wait_seconds": wait_seconds, **fields}
        async with httpx.AsyncClient(base_url=self._claimer.url, timeout=90) as client:
            answer = await client.post("/claims", json=wanted)
            assert answer.status_code == 200, answer.text
            return list(answer.json()["jobs"])

    async def claimed_before(self, job_id: str | None, happens: Callable[[], Awaitable[Any]]) -> None:
        """Wait without a kind, let it happen, and be given the job."""
        async with asyncio.timeout(45):
            waiting = asyncio.create_task(self.claim(60))
            try:
                await self._is_waiting()
                made = await happens()
                [job] = await waiting
            finally:
                waiting.cancel()
        assert job["job_id"] == (job_id or made)

    async def _is_waiting(self) -> None:
        """Its first look is over: worker_directory is noted before it, and a claim that comes later is looked for later."""
        await self.claim()
        await self.claim()


@pytest.fixture(params=["here", "there", "polling"])
def place(fleet: dict[str, Server], request: pytest.FixtureRequest) -> Place:
    return Place(fleet["here"], fleet[request.param])


def once_more_if_unheard(test: Callable[[Place], Awaitable[None]]) -> Callable[[Place], Awaitable[None]]:
    """A hint may be lost: another replica was first, and its notice came while a connection was being replaced because a
    stalled machine had not answered on it. One that is never given is missed the second time, too."""

    @functools.wraps(test)
    async def tried(place: Place) -> None:
        try:
            await test(place)
        except TimeoutError:
            await test(place.anew())

    return tried


@once_more_if_unheard
async def test_by_a_job_of_a_kind_never_seen_before(place: Place) -> None:
    await place.claimed_before(None, place.submit)


@once_more_if_unheard
async def test_by_a_job_that_was_deferred(place: Place) -> None:
    job_id = await place.submit()
    [job] = await place.claim()
    body = {"lease_token": job["lease_token"], "delay_seconds": 0.3}
    await place.claimed_before(job_id, lambda: place.ask("POST", f"/jobs/{job_id}/defer", body))


@once_more_if_unheard
async def test_by_a_job_whose_worker_died(place: Place) -> None:
    job_id = await place.submit()
    assert await place.claim(lease_seconds=1)

    async def rescued() -> None:
        """By itself."""

    await place.claimed_before(job_id, rescued)


@once_more_if_unheard
async def test_by_a_job_whose_dependency_ended(place: Place) -> None:
    first = await place.submit()
    second = await place.submit(depends_on=[first])
    [job] = await place.claim()
    assert job["job_id"] == first
    body = {"lease_token": job["lease_token"]}
    await place.claimed_before(second, lambda: place.ask("POST", f"/jobs/{first}/complete", body))


@once_more_if_unheard
async def test_by_a_job_whose_key_was_freed(place: Place) -> None:
    await place.ask("PUT", f"/queues/{place.queue}", {"key": ["one"], "max_queued": 5})
    first = await place.submit(payload={})
    second = await place.submit(payload={})
    [job] = await place.claim()
    assert job["job_id"] == first
    body = {"lease_token": job["lease_token"]}
    await place.claimed_before(second, lambda: place.ask("POST", f"/jobs/{first}/complete", body))


@once_more_if_unheard
async def test_by_a_queue_that_is_resumed(place: Place) -> None:
    await place.ask("POST", f"/queues/{place.queue}/pause")
    job_id = await place.submit()
    await place.claimed_before(job_id, lambda: place.ask("POST", f"/queues/{place.queue}/resume"))


async def test_but_not_by_what_foreman_runs_itself(place: Place) -> None:
    job_id = await place.submit(kind="noop")

    async def done() -> bool:
        return bool((await place.ask("GET", f"/jobs/{job_id}?wait=30"))["state"] == "done")

    assert await done()
    assert await place.claim() == []
