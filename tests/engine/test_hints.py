"""What a worker remembers of waiting work: only what its pools run, and nobody is kept from his turn."""

from collections.abc import AsyncIterator

import pytest

from app.config import Settings
from app.engine.worker import Worker
from app.foreman import Foreman
from app.jobs.lanes import llm_lane
from app.store.changes import Changes
from app.store.database import Database
from app.store.sweep import sweep
from tests.patience import until
from tests.store.making import backdate, job, log_of, put, put_one, states_of


@pytest.fixture
async def foreman(database_url: str) -> AsyncIterator[Foreman]:
    """Its parts, none of them running: each step is taken by the test."""
    foreman = Foreman(Settings(database_url=database_url))
    await foreman.database.open()
    yield foreman
    await foreman.intake.drain()
    await foreman.settler.drain()
    await foreman.database.close()


def worker_of(foreman: Foreman) -> Worker:
    assert foreman.worker is not None
    return foreman.worker


async def test_queues_that_were_used_once_leave_nothing_behind(foreman: Foreman) -> None:
    worker = worker_of(foreman)
    foreman.hub.announce(Changes(work={(f"once-{n}", "somebody-elses") for n in range(2000)}))
    foreman.hub.announce(Changes(work={(f"once-{n}", "noop") for n in range(60)}))
    known = {pool.name: len(pool.known) for pool in worker._pools}
    assert known == {"noop": 60, "http": 0, "batch": 0, "echo": 0}
    # Not all in one go: other pools have their turn in between.
    assert await worker._claim_round() == 0
    assert len(worker._pools[0].known) == 10
    assert await worker._claim_round() != 0
    assert [pool.known for pool in worker._pools] == [{}, {}, {}, {}]


async def test_hints_of_models_are_not_kept_by_a_dispatcher_without_targets(foreman: Foreman) -> None:
    assert foreman.dispatcher is not None
    foreman.hub.announce(Changes(work={(f"once-{n}", "llm|||model") for n in range(100)}))
    await foreman.dispatcher._round()
    assert foreman.dispatcher._hinted == set()


async def test_a_queue_that_always_has_work_does_not_keep_the_next_one_from_its_turn(
    foreman: Foreman, database: Database
) -> None:
    worker = worker_of(foreman)
    [noop, *_] = worker._pools
    noop.slots = 2
    # Claimed and not run: how it ends is not what this is about.
    worker.begin = lambda *_: None  # type: ignore[method-assign]
    first = await put(database, *(job(queue="a") for _ in range(10)))
    second = await put(database, *(job(queue="b") for _ in range(2)))
    foreman.hub.announce(Changes(work={("a", "noop")}))
    foreman.hub.announce(Changes(work={("b", "noop")}))
    noop.running = 0
    assert await worker._claim(noop, next(iter(noop.known)))
    assert await worker._claim(noop, next(iter(noop.known)))
    assert await states_of(database, *second) == ["loading", "loading"]
    assert (await states_of(database, *first)).count("loading") == 2


async def is_working(database: Database, job_id: str) -> bool:
    """A start is told beside the run: one that came after the end would be a late settlement."""
    return await states_of(database, job_id) == ["working"]


async def test_a_run_whose_deadline_has_passed_ends_at_once_and_settles_nothing(
    foreman: Foreman, database: Database
) -> None:
    worker = worker_of(foreman)
    payload = '{"messages": [{"role": "user", "content": "a b"}], "options": {"echo_delay_ms": 1000000}}'
    job_id = await put_one(
        database, kind="chat", lane=llm_lane("echo"), model="echo", payload=payload, deadline_seconds=60
    )
    foreman.hub.announce(Changes(work={("default", llm_lane("echo"))}))
    await worker._claim_round()
    await until(lambda: worker._runs[job_id].executing)
    await until(lambda: is_working(database, job_id))
    await backdate(database, job_id, "deadline")
    swept = await sweep(database, cancel_grace_seconds=10)
    assert swept is not None
    foreman.hub.announce(swept.changes)
    await worker._renew()
    await until(lambda: not worker._runs)
    assert (await log_of(database, job_id))[-1][1] == "expired"
