"""What a run said last is written in the commit of its settlement: before it, and only with the lease."""

from typing import Any

import pytest

from app.jobs.states import Verb
from app.store.announcements import Place, read_on
from app.store.claims import Claimant, Claims
from app.store.database import Database
from app.store.events import NewEvent, Want, append, read_pages
from app.store.queues import QueueBook
from app.store.settle import Settlement, settle
from app.telemetry import EVENTS_APPENDED
from tests.store.making import put_one, row_of, running

SAID = '{"attempt":1,"run":2,"offset":0,"text":"last words"}'


async def log(database: Database, job_id: str) -> list[tuple[int, str, str, str | None]]:
    [page] = await read_pages(database, [Want(job_id)])
    assert page is not None
    return [(each.seq, each.type, each.state, each.data) for each in page.events]


async def settle_one(database: Database, job_id: str, token: str, verb: Verb, **more: Any) -> Any:
    return await settle(database, [Settlement(job_id, token, verb, **more)])


async def test_output_stands_before_the_end_in_the_state_it_was_said_in(database: Database) -> None:
    job_id, token = await running(database)
    await settle_one(database, job_id, token, Verb.START)
    await append(database, [NewEvent(job_id, "output", "{}", token)])
    changes = await settle_one(database, job_id, token, Verb.COMPLETE, result="1", output=SAID)
    assert await log(database, job_id) == [
        (1, "queued", "queued", None),
        (2, "loading", "loading", '{"attempt":1,"worker":"tester"}'),
        (3, "working", "working", None),
        (4, "output", "working", "{}"),
        (5, "output", "working", SAID),
        (6, "done", "done", None),
    ]
    assert (await row_of(database, job_id))["seq"] == 6
    assert changes.counts[EVENTS_APPENDED, ("output",)] == 1


async def test_a_job_that_was_never_started_passes_through_working_behind_it(database: Database) -> None:
    job_id, token = await running(database)
    await settle_one(database, job_id, token, Verb.COMPLETE, result="1", output=SAID)
    assert [each[:3] for each in await log(database, job_id)] == [
        (1, "queued", "queued"),
        (2, "loading", "loading"),
        (3, "output", "loading"),
        (4, "working", "working"),
        (5, "done", "done"),
    ]


@pytest.mark.parametrize(
    ("verb", "state"),
    [
        (Verb.FAIL, "failed"),
        (Verb.RETRY, "queued"),
        (Verb.DEFER, "queued"),
        (Verb.RELEASE, "queued"),
        (Verb.CANCEL, "cancelled"),
    ],
)
async def test_whatever_becomes_of_the_job(database: Database, verb: Verb, state: str) -> None:
    job_id, token = await running(database)
    await settle_one(database, job_id, token, verb, output=SAID)
    assert [each[:2] for each in await log(database, job_id)] == [
        (1, "queued"),
        (2, "loading"),
        (3, "output"),
        (4, state),
    ]


async def test_a_batch_may_hold_both_and_is_announced_in_order(database: Database) -> None:
    ids = [await put_one(database) for _ in range(3)]
    claims = Claims(database, QueueBook(database))
    jobs = (await claims.claim("default", ["noop"], [Claimant("tester", 3, 30)])).answers
    said = {ids[0]: SAID, ids[2]: SAID}
    await settle(
        database,
        [Settlement(job.id, job.lease_token, Verb.RELEASE, output=said.get(job.id)) for job in jobs],
    )
    assert [(await row_of(database, job_id))["seq"] for job_id in ids] == [4, 3, 4]
    feed = await read_on(database, Place(0))
    told = [(each.job_id, each.seq) for each in feed.events if each.seq > 2]
    assert sorted(told) == sorted([(ids[0], 3), (ids[0], 4), (ids[1], 3), (ids[2], 3), (ids[2], 4)])
    assert all(told.index((job_id, 3)) < told.index((job_id, 4)) for job_id in said)


async def test_without_the_lease_nothing_is_written(database: Database) -> None:
    job_id, _ = await running(database)
    [late] = (await settle_one(database, job_id, "another", Verb.COMPLETE, result="1", output=SAID)).answers
    assert not late.ok
    assert [each[1] for each in await log(database, job_id)] == ["queued", "loading", "late_settlement"]
