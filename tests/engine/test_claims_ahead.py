"""The next claim is under way while jobs that end at once do so; nothing of it is lost, kept or run twice."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.config import Settings
from app.engine import worker as worker_module
from app.engine.pools import Pool
from app.engine.worker import Worker
from app.foreman import Foreman
from app.store.changes import Changes
from app.store.database import Database
from app.store.job import ClaimedJob
from tests.patience import until
from tests.store.making import job, put, row_of, states_of

SIZE = 10


@pytest.fixture
async def foreman(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Foreman]:
    """Its parts, none of them running: each step is taken by the test."""
    monkeypatch.setattr(worker_module, "MAX_CLAIM", SIZE)
    foreman = Foreman(Settings(database_url=database_url, lease_seconds=600, poll_seconds=60))
    await foreman.database.open()
    yield foreman
    await foreman.settler.drain()
    await foreman.database.close()


def parts_of(foreman: Foreman) -> tuple[Worker, Pool]:
    assert foreman.worker is not None
    [noop, *_] = foreman.worker._pools
    return foreman.worker, noop


async def counts(database: Database, ids: list[str]) -> Counter[str]:
    return Counter(await states_of(database, *ids))


async def test_a_full_claim_has_the_next_one_under_way_before_its_jobs_are_settled(
    foreman: Foreman, database: Database
) -> None:
    worker, noop = parts_of(foreman)
    ids = await put(database, *(job(queue="a") for _ in range(3 * SIZE + 5)))
    foreman.hub.announce(Changes(work={("a", "noop")}))
    assert await worker._claim_round() == 0
    assert list(noop.ahead) == ["a"]
    assert noop.settling == SIZE
    # What is asked for ahead takes up room as if it were here.
    assert noop.free == noop.slots - SIZE
    rounds = 1
    while noop.ahead:
        await worker._claim_round()
        rounds += 1
    assert rounds == 4  # the last claim came back short, and nothing is asked ahead of it
    assert noop.known == {}
    await until(lambda: noop.settling == 0)
    assert await counts(database, ids) == {"done": len(ids)}
    assert {(await row_of(database, each))["attempt"] for each in ids} == {1}


async def test_a_hint_that_comes_while_a_claim_is_under_way_is_not_lost(
    foreman: Foreman, database: Database
) -> None:
    worker, noop = parts_of(foreman)
    await put(database, *(job(queue="a") for _ in range(SIZE)))
    foreman.hub.announce(Changes(work={("a", "noop")}))
    await worker._claim_round()
    await asyncio.wait([asyncio.ensure_future(noop.ahead["a"].answer)])
    # Too late for the claim that is under way, which has found nothing.
    late = await put(database, job(queue="a"))
    foreman.hub.announce(Changes(work={("a", "noop")}))
    await worker._claim_round()
    await until(lambda: noop.settling == 0)
    assert await states_of(database, *late) == ["done"]


async def test_no_more_is_claimed_ahead_than_there_is_room_for(foreman: Foreman, database: Database) -> None:
    worker, noop = parts_of(foreman)
    noop.slots = SIZE + 3
    ids = await put(database, *(job(queue="a") for _ in range(5 * SIZE)))
    foreman.hub.announce(Changes(work={("a", "noop")}))
    await worker._claim(noop, "a")
    assert noop.ahead["a"].limit == 3
    await asyncio.wait([asyncio.ensure_future(noop.ahead["a"].answer)])
    assert (await counts(database, ids))["loading"] <= SIZE + 3
    # Not even one claim ahead where there is no room: the hint stays.
    worker._claim_ahead(noop, "a", 0)
    noop.known["b"] = {"noop"}
    worker._claim_ahead(noop, "b", 0)
    assert noop.known["b"] == {"noop"}
    await worker.stop()


async def test_what_was_claimed_ahead_and_has_not_begun_goes_back_when_the_worker_stops(
    foreman: Foreman, database: Database
) -> None:
    worker, _ = parts_of(foreman)
    ids = await put(database, *(job(queue="a", max_attempts=1) for _ in range(2 * SIZE)))
    foreman.hub.announce(Changes(work={("a", "noop")}))
    await worker._claim_round()
    async with asyncio.timeout(100):
        await worker.stop()
    assert await counts(database, ids) == {"done": SIZE, "queued": SIZE}
    for job_id in ids[SIZE:]:
        row = await row_of(database, job_id)
        assert (row["attempt"], row["reason"]) == (0, "worker_shutdown")


async def test_a_queue_that_is_paused_gives_nothing_to_the_next_claim_ahead(
    foreman: Foreman, database: Database
) -> None:
    worker, noop = parts_of(foreman)
    ids = await put(database, *(job(queue="a") for _ in range(4 * SIZE)))
    foreman.hub.announce(Changes(work={("a", "noop")}))
    await worker._claim_round()
    await asyncio.wait([asyncio.ensure_future(noop.ahead["a"].answer)])
    await database.execute(
        "INSERT INTO queues (name, paused_at) VALUES ('a', now()) "
        "ON CONFLICT (name) DO UPDATE SET paused_at = now()"
    )
    while noop.ahead:
        await worker._claim_round()
    await until(lambda: noop.settling == 0)
    # What had been claimed before is run, as ever; of the rest nothing is.
    assert await counts(database, ids) == {"done": 2 * SIZE, "queued": 2 * SIZE}


async def test_trouble_with_a_claim_ahead_is_one_queues_own(
    foreman: Foreman, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, noop = parts_of(foreman)
    ids = await put(database, *(job(queue="a") for _ in range(2 * SIZE)))
    foreman.hub.announce(Changes(work={("a", "noop")}))

    claims: list[Any] = []
    claim = worker.claims.claim

    async def broken_after_the_first(*given: Any) -> Changes[ClaimedJob]:
        claims.append(given)
        if len(claims) > 1:
            raise ZeroDivisionError
        return await claim(*given)

    with monkeypatch.context() as patched:
        patched.setattr(worker.claims, "claim", broken_after_the_first)
        await worker._claim_round()
        assert noop.ahead
        await worker._claim_round()
    assert noop.known == {"a": {"noop"}}
    while noop.known or noop.ahead:
        await worker._claim_round()
    await until(lambda: noop.settling == 0)
    assert await counts(database, ids) == {"done": 2 * SIZE}
