"""How far claims reach beyond the free slots."""

import asyncio
import uuid
from typing import Any

from foreman_client import AsyncForeman, Worker
from foreman_client.worker.reach import FARTHEST, ROUNDS_TO_FORGIVE, ROUNDS_TO_TRUST, Reach
from tests.client.conftest import working
from tests.conftest import Server
from tests.patience import until


def quick_rounds(reach: Reach, rounds: int) -> None:
    for _ in range(rounds):
        reach.learn(full=True, all_ended=True, gave_back=False)


def test_claims_take_the_free_slots_only_until_handlers_have_proved_quick() -> None:
    reach = Reach()
    quick_rounds(reach, ROUNDS_TO_TRUST - 1)
    assert reach.beyond(10) == 0
    quick_rounds(reach, 1)
    assert reach.beyond(10) == 10
    quick_rounds(reach, 1)
    assert reach.beyond(10) == 20
    quick_rounds(reach, 100)
    assert reach.beyond(10) == FARTHEST


def test_a_handler_that_waits_or_an_empty_queue_ends_it() -> None:
    for learned in ({"full": True, "all_ended": False}, {"full": False, "all_ended": True}):
        reach = Reach()
        quick_rounds(reach, 10)
        reach.learn(**learned, gave_back=False)
        assert reach.beyond(10) == 0


def test_having_had_to_give_jobs_back_is_remembered() -> None:
    reach = Reach()
    quick_rounds(reach, 10)
    reach.learn(full=True, all_ended=False, gave_back=True)
    quick_rounds(reach, ROUNDS_TO_FORGIVE)
    assert reach.beyond(10) == 0
    quick_rounds(reach, ROUNDS_TO_TRUST)
    assert reach.beyond(10) == 10


async def test_jobs_that_turn_slow_are_given_back_and_never_run_beyond_the_slots(
    shared_server: Server, aforeman: AsyncForeman
) -> None:
    kind = f"turns-{uuid.uuid4().hex[:8]}"
    worker = Worker(shared_server.url, concurrency=2)
    running, most, ended = 0, 0, 0
    slow_began, go_on = asyncio.Event(), asyncio.Event()

    @worker.task(kind)
    async def turning(payload: Any) -> None:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        try:
            if payload["n"] >= 100:
                slow_began.set()
                await go_on.wait()
        finally:
            running -= 1
            ended += 1

    handles = await aforeman.submit_many([{"kind": kind, "payload": {"n": n}} for n in range(300)])
    async with working(worker), asyncio.timeout(60):
        await slow_began.wait()

        async def two_are_active() -> bool:
            jobs = (await aforeman.list_jobs(kind=kind, state=["loading", "working"], limit=200)).jobs
            return [job.attempt for job in jobs] == [1, 1]

        await until(two_are_active)
        waiting = (await aforeman.list_jobs(kind=kind, state="queued", limit=200)).jobs
        assert waiting
        assert {job.attempt for job in waiting} == {0}
        go_on.set()
        await until(lambda: ended == 300)
    assert most == 2
    states = {(await handle.wait(10)).attempt for handle in (handles[0], handles[150], handles[-1])}
    assert states == {1}
