"""What was claimed belongs to somebody: to who asked, or, when nobody hears the answer, to its queue again."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx
import pytest

from app.config import Settings
from app.embedded import EmbeddedPostgres
from app.engine.remote_claims import Claimer
from app.foreman import Foreman
from app.store.claims import Claimant
from app.store.database import Database
from app.store.locks import lock_number
from tests.conftest import Server
from tests.patience import until
from tests.serving import serving
from tests.store.making import job, log_of, put, put_one, row_of, states_of


@pytest.fixture(scope="module")
def server(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(postgres, tmp_path_factory.mktemp("hanging-up")) as server:
        yield server


@pytest.fixture
def database_url(server: Server) -> str:
    return server.database_url


@pytest.fixture
def queue() -> str:
    return f"q-{uuid.uuid4().hex[:8]}"


async def limit(server: Server, queue: str) -> None:
    """From now on its claims ask for room first, under the queue's lock."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        assert (await client.put(f"/queues/{queue}", json={"max_running": 100})).status_code == 201


@asynccontextmanager
async def held_up(url: str, queue: str, waiters: int) -> AsyncIterator[asyncio.Event]:
    """Claims of a queue with limits wait for its lock meanwhile. The event: so many do; leaving lets them go on."""
    connection = await asyncpg.connect(url)
    waiting = asyncio.Event()

    async def look() -> None:
        query = "SELECT count(*) >= $1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        await until(lambda: connection.fetchval(query, waiters))
        waiting.set()

    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", lock_number("claim", queue))
        looking = asyncio.create_task(look())
        try:
            yield waiting
        finally:
            await looking
    await connection.close()


class HangingUp:
    """A claim over a socket of its own, to be closed before the answer comes."""

    def __init__(self, server: Server, **wanted: Any) -> None:
        self._server = server
        self._body = json.dumps({"worker": "w", "kinds": ["held"], **wanted}).encode()

    async def ask(self) -> None:
        self.reader, self._writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        head = f"POST /claims HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(self._body)}\r\n\r\n"
        self._writer.write(head.encode() + self._body)
        await self._writer.drain()

    async def hang_up(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def serves(server: Server) -> None:
    """An answer on another connection: by now the server has seen all that came before."""
    async with httpx.AsyncClient(base_url=server.url) as client:
        for _ in range(3):
            assert (await client.get("/healthz")).status_code == 200


async def comes_back(database: Database, job_id: str) -> None:
    async def released() -> bool:
        return (await log_of(database, job_id))[-1][1:] == ("queued", "release")

    await until(released)
    row = await row_of(database, job_id)
    assert (row["state"], row["attempt"], row["reason"]) == ("queued", 0, "claimer_gone")


@pytest.mark.parametrize("wait_seconds", [0, 50])
async def test_a_claimer_that_hangs_up_while_its_statement_runs_leaves_nothing_leased(
    server: Server, database: Database, queue: str, wait_seconds: float
) -> None:
    await limit(server, queue)
    job_id = await put_one(database, kind="held", queue=queue)
    claimer = HangingUp(server, queues=[queue], wait_seconds=wait_seconds)
    async with held_up(server.database_url, queue, 1) as waiting:
        await claimer.ask()
        await asyncio.wait_for(waiting.wait(), 25)
        await claimer.hang_up()
        await serves(server)
    await comes_back(database, job_id)


async def test_of_claimers_that_share_a_statement_only_those_who_are_gone_give_back(
    server: Server, database: Database, queue: str
) -> None:
    await limit(server, queue)
    ids = await put(database, *(job(kind="held", queue=queue) for _ in range(3)))
    claimers = [HangingUp(server, worker=f"w{n}", queues=[queue]) for n in range(3)]
    async with held_up(server.database_url, queue, 1) as waiting:
        # The first is on its way alone, the other two are the next statement.
        for claimer in claimers:
            await claimer.ask()
        await asyncio.wait_for(waiting.wait(), 25)
        await serves(server)
        for claimer in claimers[1:2]:
            await claimer.hang_up()
        await serves(server)
    for claimer in (claimers[0], claimers[2]):
        assert b'"lease_token"' in await asyncio.wait_for(claimer.reader.readuntil(b'"lease_token"'), 25)
        await claimer.hang_up()

    async def one_is_given_back() -> bool:
        return sorted(await states_of(database, *ids)) == ["loading", "loading", "queued"]

    await until(one_is_given_back)


async def test_a_claim_that_is_cut_off_by_the_shutdown_gives_back(
    database: Database, database_url: str, queue: str
) -> None:
    await database.execute("INSERT INTO queues (name, settings) VALUES ($1, '{\"max_running\": 9}')", queue)
    first = await put_one(database, kind="held", queue=f"{queue}-other")
    second = await put_one(database, kind="held", queue=queue)
    foreman = Foreman(Settings(database_url=database_url))
    await foreman.database.open()
    await foreman.queues.book.refresh()
    desk = foreman.services.remote_claims
    async with held_up(database_url, queue, 1) as waiting:
        claiming = asyncio.create_task(
            desk.claim(Claimer([f"{queue}-other", queue], ("held",), Claimant("w", 2, 30)), 0)
        )
        await asyncio.wait_for(waiting.wait(), 25)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
    for job_id in (first, second):
        await comes_back(database, job_id)
    await desk.drain()
    await foreman.database.close()


async def break_queue(database: Database, queue: str, **fields: Any) -> str:
    """A job whose claim is an error of the database, whatever the reason may be in real life."""
    job_id = await put_one(database, queue=queue, **fields)
    await database.execute("UPDATE jobs SET max_duration_seconds = 1e300 WHERE id = $1", job_id)
    return job_id


@pytest.mark.parametrize("broken_first", [False, True])
async def test_an_error_in_one_queue_does_not_lose_what_was_claimed_in_another(
    server: Server, database: Database, queue: str, broken_first: bool
) -> None:
    await break_queue(database, f"{queue}-broken", kind="held")
    job_id = await put_one(database, queue=queue, kind="held")
    queues = [f"{queue}-broken", queue] if broken_first else [queue, f"{queue}-broken"]
    wanted = {"worker": "w", "queues": queues, "limit": 5}
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        answer = await client.post("/claims", json=wanted)
    assert answer.status_code == 200, answer.text
    assert [each["job_id"] for each in answer.json()["jobs"]] == [job_id]


async def test_an_error_in_one_queue_does_not_end_the_round_of_the_others(
    server: Server, database: Database, queue: str
) -> None:
    """What runs in the server itself; by polling alone, which looks at the broken one each time."""
    await break_queue(database, f"a-{queue}")
    for _ in range(3):
        job_id = await put_one(database, queue=queue)

        async def done(job_id: str = job_id) -> bool:
            return await states_of(database, job_id) == ["done"]

        await until(done)
    log = server.log()
    assert "worker.claim_failed" in log
    assert "loop.failed" not in log


async def test_each_lease_has_a_secret_of_its_own(server: Server, database: Database, queue: str) -> None:
    """None can be made out of another, not even of one that the same statement gave out."""
    await put(database, *(job(kind="held", queue=queue) for _ in range(30)))
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        wanted = {"worker": "w", "queues": [queue], "limit": 30}
        jobs = (await client.post("/claims", json=wanted)).json()["jobs"]
    tokens = [each["lease_token"] for each in jobs]
    assert len(tokens) == 30
    assert len({token[:12] for token in tokens}) == len({token[-12:] for token in tokens}) == 30
