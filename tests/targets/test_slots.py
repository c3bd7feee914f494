"""Slots are exact over all replicas, and whoever needs one gets it."""

import asyncio
from typing import Any

import httpx
import pytest

from app.config import Settings
from app.engine import slots as slots_module
from app.engine.slots import RENEW_SECONDS, SlotKeeper
from app.executors.protocol import ClaimedJob, RunContext
from app.foreman import Foreman
from app.jobs.outcomes import Outcome
from app.store.changes import Changes
from app.store.claims import Claimant, Claims
from app.store.database import Database
from app.store.heads import heads_of
from app.store.holdings import renew, shrink, take
from app.targets.config import TargetConfig, TargetFields
from app.targets.target import Target
from tests.conftest import MakeServer, wait_until
from tests.fakes import FakeOllama
from tests.patience import until
from tests.store.making import backdate, put_one


async def test_two_holders_never_hold_more_than_there_is(database: Database) -> None:
    first = await take(database, "gpu", "a", total=4, wanted=3, lease_seconds=10)
    second = await take(database, "gpu", "b", total=4, wanted=4, lease_seconds=10)
    assert (first, second) == (3, 1)
    assert await take(database, "gpu", "a", total=4, wanted=4, lease_seconds=10) == 3
    # The first was asked for what the second could not have.
    (row,) = await renew(database, "b", ["gpu"], 10)
    assert row.wanted is True
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


async def test_a_hold_is_renewed_when_it_is_some_seconds_old_and_only_looked_at_before(
    database: Database,
) -> None:
    keeper = SlotKeeper(database, "keeper", lambda _: 0)
    assert await keeper.more("gpu", 2) == 2
    ends = "SELECT expires_at FROM target_holdings"
    taken = await database.fetchval(ends)
    await keeper._renew()
    assert await database.fetchval(ends) == taken
    keeper._until["gpu"] -= RENEW_SECONDS
    before = keeper._until["gpu"]
    await keeper._renew()
    assert await database.fetchval(ends) > taken
    assert keeper._until["gpu"] > before
    # One that is over is found out by a look as well.
    await database.execute("UPDATE target_holdings SET expires_at = now() - interval '1 second'")
    await keeper._renew()
    assert keeper.free("gpu") == 0


async def test_a_stalled_process_keeps_the_slots_that_its_calls_use(database: Database) -> None:
    """Its hold runs out, because it cannot renew it; the calls at the target go on."""
    await put_one(database, lane="llm|||m")
    assert await take(database, "gpu", "stalled:00000000", total=2, wanted=2, lease_seconds=0.01) == 2
    claimants = [Claimant("stalled", 1, 3600)]
    [job] = (await Claims(database).claim("default", ["llm|||m"], claimants, runs_on="gpu")).answers
    # The hold is over as soon as renewing fails.

    async def renewing_fails() -> bool:
        return not await renew(database, "stalled:00000000", ["gpu"], 0.001)

    await until(renewing_fails)
    assert await take(database, "gpu", "other:00000000", total=2, wanted=2, lease_seconds=10) == 1
    # Its own calls are no reason to keep a process from what it holds.
    assert await take(database, "gpu", "stalled:00000000", total=2, wanted=2, lease_seconds=10) == 1
    # When its job's lease is over as well, nothing is known of the call any more.
    await backdate(database, job.id, "lease_expires_at")
    await database.execute("DELETE FROM target_holdings WHERE holder LIKE 'stalled%'")
    assert await take(database, "gpu", "other:00000000", total=2, wanted=2, lease_seconds=10) == 2


async def test_a_renewal_on_its_way_is_not_taken_for_a_hold_that_expired(database: Database) -> None:
    assert await take(database, "gpu", "a:00000000", total=2, wanted=2, lease_seconds=3600) == 2
    await database.execute("UPDATE target_holdings SET expires_at = now() - interval '1 second'")
    async with database.transaction() as renewing:
        await renewing.execute("UPDATE target_holdings SET expires_at = now() + interval '1 hour'")
        taking = asyncio.create_task(take(database, "gpu", "b:00000000", total=2, wanted=2, lease_seconds=10))
        waiting = (
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        await until(lambda: taking.done() or database.fetchval(waiting))
    assert await taking == 0


async def test_a_slot_that_is_being_given_back_is_not_believed_to_be_held(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Giving back and taking again at the same moment: whatever comes of it, database and process agree."""
    first = SlotKeeper(database, "first", lambda _: 0)
    assert await first.more("gpu", 2) == 2
    assert await take(database, "gpu", "second:00000000", total=2, wanted=2, lease_seconds=10) == 0
    giving, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(*arguments: Any) -> None:
        giving.set()
        await go_on.wait()
        await shrink(*arguments)

    monkeypatch.setattr(slots_module, "shrink", slowly)
    renewing = asyncio.create_task(first._renew())
    await asyncio.wait_for(giving.wait(), 25)
    first._asked.clear()
    taking = asyncio.create_task(first.more("gpu", 2))
    # Time enough for a statement, if it were sent.
    await asyncio.wait([taking], timeout=0.2)
    go_on.set()
    await renewing
    believed = await taking
    [row] = await renew(database, first._holder, ["gpu"], 10)
    assert row.slots == believed == first.free("gpu")


async def test_what_was_claimed_after_the_hold_ran_out_has_no_slot(database: Database) -> None:
    keeper = SlotKeeper(database, "slow", lambda _: 0)
    assert await keeper.more("gpu", 2) == 2
    assert await keeper.confirm("gpu", 2, 2) == 2
    # While the claim was on its way the hold ran out, and another took one of the slots.
    keeper._until.clear()
    await database.execute("UPDATE target_holdings SET expires_at = now() - interval '1 second'")
    assert await take(database, "gpu", "other:00000000", total=2, wanted=1, lease_seconds=10) == 1
    assert await keeper.confirm("gpu", 2, 2) == 1


class Idle:
    """An executor whose calls begin, and never end by themselves."""

    async def run(self, _job: ClaimedJob, _context: RunContext) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_dispatcher_gives_back_what_it_claimed_after_its_hold_ran_out(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreman = Foreman(Settings(database_url=database_url, shutdown_grace_seconds=0))
    dispatcher, worker = foreman.dispatcher, foreman.worker
    assert dispatcher is not None
    assert worker is not None
    config = TargetConfig.of("gpu", TargetFields(url="http://127.0.0.1:9", slots=2), "api")
    target = Target(config, foreman.targets._client, 10)
    pool = dispatcher._pool_of(target)
    pool.executor = Idle()
    for _ in range(2):
        await put_one(database, lane="llm|||m")

    async def slowly(*arguments: Any, **how: Any) -> Changes[Any]:
        """While the claim was on its way the hold ran out, and another took one of the slots."""
        dispatcher.slots._until.clear()
        await database.execute("UPDATE target_holdings SET expires_at = now() - interval '1 second'")
        assert await take(database, "gpu", "other:00000000", total=2, wanted=1, lease_seconds=3600) == 1
        claimed = await Claims(database).claim(*arguments, **how)
        assert len(claimed.answers) == 2
        return claimed

    monkeypatch.setattr(dispatcher._worker.claims, "claim", slowly)
    await foreman.database.open()
    try:
        [head] = await heads_of(database, ["default"])
        await dispatcher._serve(target, [head])
        assert pool.running == 1
        rows = await database.fetch("SELECT state, attempt FROM jobs ORDER BY attempt")
        assert [tuple(row) for row in rows] == [("queued", 0), ("loading", 1)]
    finally:
        await worker.stop()
        await foreman.database.close()


async def test_calls_to_a_target_that_was_configured_anew_still_use_its_slots(database_url: str) -> None:
    foreman = Foreman(Settings(database_url=database_url))
    assert foreman.dispatcher is not None
    config = TargetConfig.of("gpu", TargetFields(url="http://127.0.0.1:9", slots=2), "api")
    for _ in range(2):
        foreman.dispatcher._pool_of(Target(config, foreman.targets._client, 10)).running += 1
    assert foreman.dispatcher._running_on("gpu") == 2


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
