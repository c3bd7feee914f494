"""Slots are exact over all replicas, and whoever needs one gets it."""

import httpx

from app.engine.slots import SlotKeeper
from app.store.database import Database
from app.store.holdings import renew, shrink, take
from tests.conftest import MakeServer, wait_until
from tests.fakes import FakeOllama


async def test_two_holders_never_hold_more_than_there_is(database: Database) -> None:
    first = await take(database, "gpu", "a", total=4, wanted=3, lease_seconds=10)
    second = await take(database, "gpu", "b", total=4, wanted=4, lease_seconds=10)
    assert (first, second) == (3, 1)
    assert await take(database, "gpu", "a", total=4, wanted=4, lease_seconds=10) == 3
    # The first was asked for what the second could not have.
    (row,) = await renew(database, "b", ["gpu"], 10)
    assert row["wanted"] is True
    await shrink(database, "a", {"gpu": 1})
    assert await take(database, "gpu", "b", total=4, wanted=4, lease_seconds=10) == 3


async def test_what_an_ended_process_held_is_free_after_its_lease(database: Database) -> None:
    assert await take(database, "gpu", "dead", total=1, wanted=1, lease_seconds=0.05) == 1
    while await take(database, "gpu", "alive", total=1, wanted=1, lease_seconds=10) == 0:
        pass
    assert await renew(database, "dead", ["gpu"], 10) == []


async def test_a_keeper_gives_back_what_it_does_not_use_once_another_wants_it(database: Database) -> None:
    using = {"first": 1, "second": 0}
    first = SlotKeeper(database, "first", lambda _: using["first"])
    second = SlotKeeper(database, "second", lambda _: using["second"])
    assert await first.more("gpu", 3) == 2
    assert await second.more("gpu", 3) == 0
    await first._renew()
    assert first.free("gpu") == 0
    second._asked.clear()
    assert await second.more("gpu", 3) == 2


def test_two_servers_share_one_slot_exactly(make_server: MakeServer) -> None:
    with FakeOllama(parallel=8, prefill_seconds=0.05) as fake:
        servers = [make_server(FOREMAN_OLLAMA_URL=fake.url, FOREMAN_OLLAMA_SLOTS="2") for _ in range(2)]
        body = {"model": "llama3.2", "messages": [{"role": "user", "content": "hi"}]}
        for server in servers:
            httpx.post(f"{server.url}/jobs/batch", json={"jobs": [body] * 20})

        def done() -> int:
            jobs = httpx.get(f"{servers[0].url}/jobs", params={"state": "done", "limit": 200}).json()["jobs"]
            return len(jobs)

        wait_until(lambda: done() == 40, 60)
        stats = fake.stats()
        assert stats["max_running"] <= 2
        assert stats["finished"] >= 40
