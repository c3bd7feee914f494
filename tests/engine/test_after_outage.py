"""After an outage leases are left alone until those who hold them had their turn."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.config import Settings
from app.engine import sweeper as sweeper_module
from app.engine.sweeper import Sweeper
from app.engine.worker import Run, Worker
from app.errors import DatabaseUnavailable
from app.foreman import Foreman
from app.loops.loop import Loop
from app.store.database import Database
from app.store.queues import configure
from app.store.settle import heartbeat
from app.store.sweep import NEVER, ONE_AT_A_TIME, Swept, Watchfulness, sweep
from tests.live_tables import write
from tests.patience import PATIENCE, turn_of_the_loop, until
from tests.store.making import backdate, log_of, running, states_of

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.fixture
def watchful() -> Watchfulness:
    """One that looked every 5 s for long enough; its next look is due at NOW + 5."""
    watchfulness = Watchfulness(5, 3)
    watchfulness.look(after(-5), LONG_AGO)
    assert watchfulness.look(NOW, LONG_AGO) == 0
    return watchfulness


def test_the_first_look_of_a_process_is_not_trusted() -> None:
    watchfulness = Watchfulness(5, 3)
    assert watchfulness.look(NOW, LONG_AGO) == 3
    assert watchfulness.look(after(2), LONG_AGO) == 1
    assert watchfulness.look(after(3), LONG_AGO) == 0
    assert watchfulness.look(after(8), LONG_AGO) == 0


def test_nor_is_the_first_one_after_a_look_that_failed(watchful: Watchfulness) -> None:
    watchful.failed()
    assert watchful.look(after(6), LONG_AGO) == 3
    watchful.failed()
    assert watchful.look(after(8), LONG_AGO) == 3
    assert watchful.look(after(11), LONG_AGO) == 0


def test_nor_one_that_comes_much_too_late(watchful: Watchfulness) -> None:
    """A frozen process, or a computer that slept: its own clock may have noticed nothing."""
    assert watchful.look(after(9), LONG_AGO) == 0
    assert watchful.look(after(900), LONG_AGO) == 3
    assert watchful.look(after(903), LONG_AGO) == 0


def test_on_a_machine_that_is_always_late_leases_end_all_the_same(watchful: Watchfulness) -> None:
    waits = [watchful.look(after(60 * n), LONG_AGO) for n in range(1, 7)]
    assert waits == [3, 0, 3, 0, 3, 0]


def test_nor_one_soon_after_the_database_was_started(watchful: Watchfulness) -> None:
    """However short it was away: nobody may have looked meanwhile."""
    assert watchful.look(after(5), after(4)) == 2
    assert watchful.look(after(7), after(4)) == 0


def test_a_clock_that_was_set_back_is_an_outage_and_no_hindrance(watchful: Watchfulness) -> None:
    assert watchful.look(after(-3600), LONG_AGO) == 3
    assert watchful.look(after(-3597), LONG_AGO) == 0


def test_a_lease_is_given_up_by_a_second_look_and_not_before_its_holder_had_a_turn(
    watchful: Watchfulness,
) -> None:
    assert watchful.lost_before(NOW) == NEVER
    watchful.looked(NOW, after(0.2))
    assert watchful.lost_before(after(1.1)) == NEVER
    assert watchful.lost_before(after(1.2)) == NOW
    watchful.looked(after(1.2), after(1.3))
    assert watchful.lost_before(after(2.2)) == NOW
    assert watchful.lost_before(after(2.3)) == after(1.2)


def test_the_turn_of_those_who_hold_leases_begins_when_the_database_answers_again(
    watchful: Watchfulness,
) -> None:
    """What ran out while it hung was found expired by the look that hung with it, and by none before."""
    watchful.looked(NOW, NOW)
    assert watchful.lost_before(after(5)) == NOW
    watchful.looked(after(5), after(9))
    assert watchful.lost_before(after(9.9)) == NOW
    assert watchful.lost_before(after(10)) == after(5)


def test_looks_that_follow_each_other_closely_keep_none_from_being_the_earlier_one() -> None:
    watchfulness = Watchfulness(5, 3)
    for tenth in range(1000):
        began = after(tenth / 10)
        assert watchfulness.lost_before(began) == (after((tenth - 11) / 10) if tenth > 10 else NEVER)
        watchfulness.looked(began, after((tenth + 1) / 10))
    assert len(watchfulness._looks) < 20


def test_where_looks_are_frequent_so_is_the_second_one() -> None:
    watchfulness = Watchfulness(0.1, 3)
    watchfulness.looked(NOW, NOW)
    assert watchfulness.lost_before(after(0.1)) == NOW


def test_what_was_seen_before_an_outage_counts_no_more(watchful: Watchfulness) -> None:
    watchful.looked(NOW, NOW)
    watchful.failed()
    watchful.look(after(5), LONG_AGO)
    assert watchful.lost_before(after(5)) == NEVER
    watchful.looked(after(5), after(5))
    assert watchful.look(after(8), LONG_AGO) == 0
    assert watchful.lost_before(after(8)) == after(5)


@pytest.mark.parametrize("slowness", [2, 20, 600])
def test_on_a_machine_where_every_look_hangs_leases_end_all_the_same(slowness: float) -> None:
    watchfulness = Watchfulness(5, 3)
    now, given_up = 0.0, []
    for _ in range(20):
        wait = watchfulness.look(after(now), LONG_AGO)
        if wait == 0:
            given_up.append(watchfulness.lost_before(after(now)))
        watchfulness.looked(after(now), after(now + slowness))
        now += slowness + (wait or 1)
    assert len(given_up) >= 9
    assert given_up == sorted(set(given_up))
    assert given_up[-1] >= after(now - 4 * (slowness + 5))


async def test_meanwhile_nothing_is_rescued_but_what_is_late_expires(database: Database) -> None:
    lost, _ = await running(database)
    late, _ = await running(database, deadline_seconds=60)
    await backdate(database, lost, "lease_expires_at")
    await backdate(database, late, "deadline")
    watchfulness = Watchfulness(5, 3600)
    swept = await sweep(database, cancel_grace_seconds=10, watchfulness=watchfulness)
    assert swept is not None
    assert (swept.moved, swept.changes.jobs) == ({"expire": 1}, {late})
    assert 3590 < swept.blind_seconds <= 3600
    assert await given_up(database, Watchfulness(0.05, 0), 1) == {lost}
    assert (await log_of(database, lost))[-1][1:] == ("queued", "rescue")


async def look(database: Database, watchfulness: Watchfulness) -> Swept:
    swept = await sweep(database, cancel_grace_seconds=10, watchfulness=watchfulness)
    assert swept is not None
    return swept


async def given_up(database: Database, watchfulness: Watchfulness, count: int) -> set[str]:
    """Look until so many were."""
    found: set[str] = set()
    async with asyncio.timeout(10 * PATIENCE):
        while len(found) < count:
            found |= (await look(database, watchfulness)).changes.jobs
    return found


async def test_leases_are_given_up_by_the_second_look_with_a_key_and_without(database: Database) -> None:
    await configure(database, "keyed", {"key": ["one"]})
    free, _ = await running(database)
    keyed, _ = await running(database, queue="keyed")
    await write(database, "UPDATE jobs SET concurrency_key = 'one' WHERE id = $1", keyed)
    for job_id in (free, keyed):
        await backdate(database, job_id, "lease_expires_at")
    watchfulness = Watchfulness(0.05, 0)
    first = await look(database, watchfulness)
    assert (first.changes.jobs, first.unconfirmed) == (set(), True)
    assert await given_up(database, watchfulness, 2) == {free, keyed}
    assert await states_of(database, free, keyed) == ["queued", "stale"]
    assert not (await look(database, watchfulness)).unconfirmed


async def test_a_lease_that_was_renewed_between_two_looks_is_kept(database: Database) -> None:
    renewed, token = await running(database)
    lost, _ = await running(database)
    for job_id in (renewed, lost):
        await backdate(database, job_id, "lease_expires_at")
    watchfulness = Watchfulness(0.05, 0)
    assert (await look(database, watchfulness)).unconfirmed
    assert await heartbeat(database, [(renewed, token)], [3600])
    assert await given_up(database, watchfulness, 1) == {lost}


async def test_finding_another_replica_at_it_is_no_look(database: Database) -> None:
    """It says nothing about the table of jobs, on which that other one may be hanging."""
    job_id, _ = await running(database)
    await backdate(database, job_id, "lease_expires_at")
    watchfulness = Watchfulness(0.05, 0)
    async with database.transaction() as other:
        assert await other.fetchval(ONE_AT_A_TIME)
        began = await database.fetchval("SELECT clock_timestamp()")
        assert await sweep(database, cancel_grace_seconds=10, watchfulness=watchfulness) is None
        a_second_later = "SELECT clock_timestamp() >= $1::timestamptz + interval '1 second'"
        await until(lambda: database.fetchval(a_second_later, began))
    swept = await look(database, watchfulness)
    assert (swept.moved, swept.unconfirmed) == ({}, True)


async def test_a_look_begins_before_what_it_waits_for_and_ends_after_it(database: Database) -> None:
    watchfulness = Watchfulness(5, 3)
    async with database.transaction() as other:
        await other.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        looking = asyncio.create_task(look(database, watchfulness))
        waited_for = (
            "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE relation = 'jobs'::regclass AND NOT granted)"
        )
        await until(lambda: other.fetchval(waited_for))
        hung_at = await other.fetchval("SELECT clock_timestamp()")
    await looking
    [seen] = watchfulness._looks
    assert seen.began_at < hung_at < seen.ended_at


# -- what holds all that together --------------------------------------------------------------------


@pytest.fixture
async def sweeper(database_url: str) -> AsyncIterator[Sweeper]:
    """A server's own, as it is put together there; its loop does not run."""
    foreman = Foreman(Settings(database_url=database_url, sweep_seconds=3600))
    await foreman.database.open()
    yield foreman.sweeper
    await foreman.database.close()


async def seasoned(database: Database, sweeper: Sweeper) -> None:
    """Its first look was an hour ago, its last one a minute ago; and the tests' database was not started just now."""
    grace = timedelta(seconds=sweeper_module.GRACE_SECONDS)
    is_over = "SELECT clock_timestamp() >= pg_postmaster_start_time() + $1::interval"
    await until(lambda: database.fetchval(is_over, grace))
    now = await database.fetchval("SELECT clock_timestamp()")
    for ago in (timedelta(hours=1), timedelta(minutes=1)):
        sweeper._watchfulness.look(now - ago, LONG_AGO)
        sweeper._watchfulness.looked(now - ago, now - ago)


async def test_the_first_look_of_a_sweeper_leaves_leases_alone(database: Database, sweeper: Sweeper) -> None:
    job_id, _ = await running(database)
    await backdate(database, job_id, "lease_expires_at")
    rest = await sweeper._run_once()
    assert rest is not None
    assert 0 < rest <= sweeper_module.GRACE_SECONDS
    assert await states_of(database, job_id) == ["loading"]


async def test_so_does_its_first_look_after_one_that_failed(
    database: Database, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    await seasoned(database, sweeper)
    lost, _ = await running(database)
    await backdate(database, lost, "lease_expires_at")
    assert await sweeper._run_once() is None
    assert await states_of(database, lost) == ["queued"]
    kept, _ = await running(database, lane="kept")
    await backdate(database, kept, "lease_expires_at")

    async def away(*_: Any, **__: Any) -> None:
        raise DatabaseUnavailable("It is away.", retry_after=1)

    with monkeypatch.context() as outage:
        outage.setattr(sweeper_module, "sweep", away)
        with pytest.raises(DatabaseUnavailable):
            await sweeper._run_once()
    assert await sweeper._run_once()
    assert await states_of(database, kept) == ["loading"]


async def test_a_sweeper_that_finds_a_lease_expired_for_the_first_time_looks_again_soon(
    database: Database, sweeper: Sweeper
) -> None:
    await seasoned(database, sweeper)
    job_id, _ = await running(database)
    await backdate(database, job_id, "lease_expires_at", timedelta(seconds=1))
    assert await sweeper._run_once() == 1
    assert await states_of(database, job_id) == ["loading"]
    async with asyncio.timeout(10 * PATIENCE):
        while await states_of(database, job_id) == ["loading"]:
            assert await sweeper._run_once() in (1, None)
    assert await sweeper._run_once() is None


async def test_the_keeper_of_leases_is_back_soon_however_long_the_outage_was(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turn is the grace, which begins with the first look of a sweeper: it must not rest for longer."""
    rests: list[float] = []
    back = asyncio.Event()

    async def away(_worker: Worker, _runs: Iterable[Run]) -> None:
        raise DatabaseUnavailable("It is away.", retry_after=1)

    async def at_once(loop: Loop, seconds: float) -> None:
        if loop.name == "lease-keeper":
            rests.append(seconds)
            if len(rests) == 50:
                back.set()
        await turn_of_the_loop()

    monkeypatch.setattr(Worker, "_heartbeat", away)
    monkeypatch.setattr(Loop, "_rest", at_once)
    worker = Foreman(Settings(database_url=database_url)).worker
    assert worker is not None
    await worker._keeper.start()
    async with asyncio.timeout(10 * PATIENCE):
        await back.wait()
    await worker._keeper.stop()
    assert max(rests) < sweeper_module.LEAST_GRACE_SECONDS / 2
