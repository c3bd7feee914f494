"""Jobs that end when they begin: settled together, never lost on the way, and each on its own terms."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.config import Settings
from app.engine.settler import Settler
from app.engine.worker import Worker
from app.foreman import Foreman
from app.jobs.states import Verb
from app.store.database import Database
from app.store.settle import Settlement, settle
from tests.patience import until
from tests.store.making import claim, claim_one, job, log_of, put, row_of, running, states_of


@pytest.fixture
async def foreman(database_url: str) -> AsyncIterator[Foreman]:
    """Its parts, none of them running: each step is taken by the test."""
    foreman = Foreman(Settings(database_url=database_url, lease_seconds=600))
    await foreman.database.open()
    yield foreman
    await foreman.settler.drain()
    await foreman.database.close()


class HeldUp:
    """A database that does not settle anything until it is let go."""

    def __init__(self, settler: Settler, monkeypatch: pytest.MonkeyPatch) -> None:
        self._go_on = asyncio.Event()
        self._settle = settler.settle_many_surely
        monkeypatch.setattr(settler, "settle_many_surely", self._later)

    async def _later(self, settlements: list[Settlement]) -> None:
        await self._go_on.wait()
        await self._settle(settlements)

    def let_go(self) -> None:
        self._go_on.set()


def worker_of(foreman: Foreman) -> Worker:
    assert foreman.worker is not None
    return foreman.worker


async def test_what_was_claimed_together_is_done_with_its_whole_history(
    foreman: Foreman, database: Database
) -> None:
    ids = await put(database, *(job() for _ in range(30)))
    worker = worker_of(foreman)
    [noop, *_] = worker._pools
    worker.begin(noop, await claim(database, limit=100))
    assert (noop.running, noop.settling) == (0, 30)
    await until(lambda: noop.settling == 0)
    assert set(await states_of(database, *ids)) == {"done"}
    assert [(seq, type_) for seq, type_, _ in await log_of(database, ids[0])] == [
        (1, "queued"),
        (2, "loading"),
        (3, "working"),
        (4, "done"),
    ]


async def test_their_leases_are_renewed_while_the_settlement_has_to_wait(
    foreman: Foreman, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_up = HeldUp(foreman.settler, monkeypatch)
    [kept, lost] = await put(database, job(), job())
    worker = worker_of(foreman)
    worker.begin(worker._pools[0], await claim(database, lease_seconds=600))
    [ended] = worker._instant_runs.unsettled()
    await worker._renew()
    assert len(ended.held) == 2  # young leases are left alone
    ended.claimed_at -= 300
    await settle(database, [Settlement(lost, dict(ended.held)[lost], Verb.RELEASE)])
    await claim_one(database, lost)
    before = (await row_of(database, kept))["lease_expires_at"]
    await worker._renew()
    assert (await row_of(database, kept))["lease_expires_at"] > before
    assert [job_id for job_id, _ in ended.held] == [kept]
    held_up.let_go()
    await until(lambda: not worker._instant_runs.unsettled())
    # The one whose lease was lost is not settled by a former holder, and does not hold the other up.
    assert await states_of(database, kept, lost) == ["done", "loading"]


async def test_stopping_waits_for_what_has_ended_and_is_not_settled_yet(
    foreman: Foreman, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_up = HeldUp(foreman.settler, monkeypatch)
    ids = await put(database, *(job() for _ in range(5)))
    worker = worker_of(foreman)
    worker.begin(worker._pools[0], await claim(database))
    stopping = asyncio.create_task(worker.stop())
    await until(lambda: worker._stopping)
    assert not stopping.done()
    held_up.let_go()
    async with asyncio.timeout(100):
        await stopping
    assert set(await states_of(database, *ids)) == {"done"}


async def test_one_that_cannot_be_settled_takes_no_other_along(foreman: Foreman, database: Database) -> None:
    good, spoilt = await running(database), await running(database)
    await foreman.settler.settle_many_surely(
        [
            Settlement(*good, Verb.COMPLETE, result="1"),
            Settlement(*spoilt, Verb.FAIL, error="this is no JSON"),
        ]
    )
    assert await states_of(database, good[0], spoilt[0]) == ["done", "loading"]


async def test_groups_that_name_the_same_job_are_settled_one_after_the_other(
    foreman: Foreman, database: Database
) -> None:
    job_id, token = await running(database)
    other = await running(database)
    settlements = [
        [Settlement(job_id, token, Verb.COMPLETE, result="1")],
        [Settlement(*other, Verb.COMPLETE, result="2"), Settlement(job_id, token, Verb.RELEASE)],
    ]
    # The first leaves at once; the others meet in the next flush.
    warm_up = asyncio.create_task(foreman.settler.settle_many([Settlement("none", "none", Verb.COMPLETE)]))
    answers = await asyncio.gather(*map(foreman.settler.settle_many, settlements))
    assert [[each.ok for each in group] for group in answers] == [[True], [True, False]]
    assert [each.state for each in await warm_up] == [None]
