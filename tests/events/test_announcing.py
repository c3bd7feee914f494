"""What a verb changed is told by one function: who hears of it here, and what of it other processes hear."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from app.config import Settings
from app.engine.remote_claims import Claimer, RemoteClaims
from app.engine.settler import Settler
from app.events.hub import MANY, Hub
from app.store.changes import Changes, Failure
from app.store.claims import Claimant, Claims
from app.store.database import Database
from app.store.job import LeasedJob
from app.store.queues import QueueBook
from app.telemetry import CLAIMED, GATES_PASSED, NOTICES
from tests.patience import PATIENCE, until
from tests.store.making import put_one

URL = "https://receiver.example/hook"
# The parts that cross, each with something in it.
CROSSING: dict[str, Any] = {
    "jobs": {"a", "b"},
    "work": {("q", "noop")},
    "cancels": {"c"},
    "room": {"full"},
    "settings": {"changed"},
}


def local(**more: Any) -> Changes[str]:
    """With something in each of the parts that concern this process only."""
    return Changes(
        ["mine"],
        delayed=True,
        keys={("q", "k")},
        ended={"e"},
        stopped={"q"},
        webhooks=[("w", URL)],
        receivers={"receiver.example"},
        schedules=True,
        operations=True,
        accepted=Counter(q=1),
        failed=[Failure("f", "noop", "q", "failed", 1, None, None)],
        counts=Counter({(GATES_PASSED, ("tested",)): 3}),
        **more,
    )


class Listening:
    """All that a hub says that is not nothing."""

    def __init__(self, hub: Hub) -> None:
        self.heard: asyncio.Queue[Changes[Any]] = asyncio.Queue()
        hub.subscribe(lambda changes: self.heard.put_nowait(changes) if changes != Changes() else None)

    async def next(self) -> Changes[Any]:
        async with asyncio.timeout(10 * PATIENCE):
            return await self.heard.get()


@pytest.fixture
async def hubs(database: Database, database_url: str) -> AsyncIterator[tuple[Hub, Hub]]:
    """One that tells, and one of another process that listens."""
    here, there = Hub(database, None, 3600), Hub(database, database_url, 3600)
    await here.start()
    await there.start()
    await until(lambda: there._connection)
    yield here, there
    await here.stop()
    await there.stop()


def sent() -> float:
    return float(NOTICES.labels("sent")._value.get())


def passed() -> float:
    return float(GATES_PASSED.labels("tested")._value.get())


async def test_whoever_is_here_hears_of_everything_at_once(hubs: tuple[Hub, Hub]) -> None:
    here, _ = hubs
    mine, looks = Listening(here), []
    changes = local(**CROSSING)
    before = passed()
    with here.watch("a") as watch, here.watch("z") as other, here.any_change(lambda: looks.append("look")):
        here.announce(changes)
        assert mine.heard.get_nowait() is changes
        assert await watch.changed(0, 0)
        assert not await other.changed(0, 0)
    assert looks == ["look"]
    assert passed() - before == 3


async def test_another_process_hears_once_of_what_crosses_and_counts_nothing(hubs: tuple[Hub, Hub]) -> None:
    here, there = hubs
    mine, theirs = Listening(here), Listening(there)
    before, counted = sent(), passed()
    here.announce(local(**CROSSING))
    assert await theirs.next() == Changes(**CROSSING)
    there.announce(Changes(work={("end", "noop")}))
    # Of its own words it hears nothing, and of the other's nothing twice.
    assert [await mine.next(), mine.heard.qsize()] == [local(**CROSSING), 0]
    assert [await theirs.next(), theirs.heard.qsize()] == [Changes(work={("end", "noop")}), 0]
    assert passed() - counted == 3
    await until(lambda: sent() - before >= 2)
    assert sent() - before == 2


@pytest.mark.parametrize("part", sorted(CROSSING))
async def test_each_part_crosses_by_itself(hubs: tuple[Hub, Hub], part: str) -> None:
    here, there = hubs
    theirs = Listening(there)
    here.announce(Changes(**{part: CROSSING[part]}))
    assert await theirs.next() == Changes(**{part: CROSSING[part]})


async def test_what_concerns_this_process_only_does_not_cross(hubs: tuple[Hub, Hub]) -> None:
    here, there = hubs
    theirs = Listening(there)
    before = sent()
    here.announce(local())
    here.announce(Changes(jobs={"end"}))
    assert await theirs.next() == Changes(jobs={"end"})
    await until(lambda: sent() - before >= 1)
    assert sent() - before == 1


async def test_of_many_jobs_another_process_hears_that_they_are_many(
    hubs: tuple[Hub, Hub], database: Database
) -> None:
    here, there = hubs
    theirs, looks = Listening(there), []
    job_id = await put_one(database)
    jobs = {job_id, *(f"job-{n}" for n in range(MANY))}
    with there.watch(job_id) as watch, there.any_change(lambda: looks.append("look")):
        here.announce(Changes(jobs=jobs, work={("q", "noop")}))
        assert await theirs.next() == Changes(work={("q", "noop")})
        # It looks for itself, at those that it watches.
        assert await watch.changed(0, 10 * PATIENCE)
    assert looks
    assert await theirs.next() == Changes(jobs={job_id})


async def test_a_claim_is_told_with_its_jobs_and_their_webhooks(database: Database) -> None:
    hub = Hub(database, None, 3600)
    claims = Claims(database, QueueBook(database))
    desk = RemoteClaims(hub, claims, Settler(database, hub), Settings(lease_seconds=30))
    plain, hooked = await put_one(database), await put_one(database, webhook_url=URL)
    mine = Listening(hub)
    before = CLAIMED._value.get()
    await desk.claim(Claimer(["default"], ("noop",), Claimant("tester", 10, 30)), 0)
    told = mine.heard.get_nowait()
    expected: Changes[LeasedJob] = Changes(told.answers, jobs={plain, hooked}, webhooks=[(hooked, URL)])
    assert told == replace(expected, counts=told.counts, durations=told.durations)
    assert CLAIMED._value.get() - before == 2
    await desk.drain()
