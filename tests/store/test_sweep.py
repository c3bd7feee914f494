"""What time does to jobs: rescue, expire, the end of a cancel's grace; one sweeper at a time."""

import asyncio
import json
from collections import Counter
from datetime import timedelta

import pytest

from app.jobs.states import Verb
from app.store import sweep as sweep_module
from app.store.control import cancel
from app.store.database import Database
from app.store.settle import Settlement, heartbeat, settle
from app.store.sweep import ONE_AT_A_TIME, Swept, sweep
from tests.live_tables import write
from tests.store import invariants
from tests.store.making import (
    TENANT,
    backdate,
    claim_one,
    job,
    log_of,
    put,
    put_one,
    row_of,
    running,
    states_of,
)


async def sweep_now(database: Database, grace: float = 10) -> Swept:
    swept = await sweep(database, cancel_grace_seconds=grace)
    assert swept is not None
    return swept


async def test_a_round_with_nothing_due_moves_nothing(database: Database) -> None:
    await put_one(database, lane="q", deadline_seconds=60, delay_seconds=5)
    await running(database, deadline_seconds=60)
    swept = await sweep_now(database)
    assert (swept.moved, swept.changes.jobs, swept.full) == ({}, set(), False)


@pytest.mark.parametrize("started", [False, True])
async def test_a_lost_lease_is_rescued_and_counts_as_an_attempt(database: Database, started: bool) -> None:
    job_id, token = await running(database)
    if started:
        await settle(database, [Settlement(job_id, token, Verb.START)])
    await backdate(database, job_id, "lease_expires_at")
    swept = await sweep_now(database)
    assert (swept.moved, swept.changes.jobs) == ({"rescue": 1}, {job_id})
    assert swept.changes.work == {("default", "noop")}
    row = await row_of(database, job_id)
    assert (row["state"], row["reason"], row["attempt"]) == ("queued", "rescue", 1)
    assert json.loads(row["error"])["code"] == "lease_expired"
    assert (await log_of(database, job_id))[-1][1:] == ("queued", "rescue")
    assert await heartbeat(database, [(job_id, token)]) == {}
    assert await claim_one(database, job_id) != token
    assert (await row_of(database, job_id))["attempt"] == 2
    await invariants.check_all(database)


async def test_a_lost_lease_at_the_last_attempt_is_a_failure(database: Database) -> None:
    job_id, _ = await running(database, max_attempts=1)
    await backdate(database, job_id, "lease_expires_at")
    swept = await sweep_now(database)
    assert (swept.moved, [each.job_id for each in swept.changes.failed]) == ({"rescue": 1}, [job_id])
    row = await row_of(database, job_id)
    assert (row["state"], row["reason"], row["attempt"]) == ("failed", "attempts_exhausted", 1)
    assert (await log_of(database, job_id))[-1][1:] == ("failed", "fail")
    await invariants.check_all(database)


async def test_a_lost_lease_of_a_job_being_cancelled_is_its_cancellation(database: Database) -> None:
    job_id, _ = await running(database)
    await cancel(database, [job_id], TENANT, "stop it")
    await backdate(database, job_id, "lease_expires_at")
    await sweep_now(database)
    row = await row_of(database, job_id)
    assert (row["state"], row["reason"]) == ("cancelled", "stop it")
    await invariants.check_all(database)


async def test_an_attempt_that_took_too_long_is_told_from_a_worker_that_died(database: Database) -> None:
    job_id, _ = await running(database, max_duration_seconds=5)
    await backdate(database, job_id, "lease_expires_at")
    await backdate(database, job_id, "attempt_expires_at")
    await sweep_now(database)
    assert json.loads((await row_of(database, job_id))["error"])["code"] == "attempt_timeout"


async def test_whatever_lives_expires_at_its_deadline(database: Database) -> None:
    queued = await put_one(database, lane="q", deadline_seconds=60)
    scheduled = await put_one(database, lane="s", deadline_seconds=60, delay_seconds=30)
    loading, token = await running(database, deadline_seconds=60)
    ended, ending = await running(database, lane="e", deadline_seconds=60)
    await settle(database, [Settlement(ended, ending, Verb.COMPLETE, result="1")])
    for job_id in (queued, scheduled, loading, ended):
        await backdate(database, job_id, "deadline")
    swept = await sweep_now(database)
    assert (swept.moved, swept.changes.jobs) == ({"expire": 3}, {queued, scheduled, loading})
    assert await states_of(database, queued, scheduled, loading, ended) == [
        "expired",
        "expired",
        "expired",
        "done",
    ]
    row = await row_of(database, loading)
    assert (row["reason"], row["lease_token"]) == ("deadline", None)
    assert (await log_of(database, loading))[-1][1:] == ("expired", "expire")
    [late] = (await settle(database, [Settlement(loading, token, Verb.COMPLETE, result="1")])).answers
    assert (late.ok, late.state) == (False, "expired")
    await invariants.check_all(database)


async def test_a_cancel_that_nobody_confirms_is_settled_after_the_grace(database: Database) -> None:
    job_id, token = await running(database)
    await cancel(database, [job_id], TENANT, "enough")
    assert (await sweep_now(database)).moved == {}
    await backdate(database, job_id, "cancel_requested_at", timedelta(seconds=11))
    swept = await sweep_now(database)
    assert (swept.moved, swept.changes.jobs) == ({"cancel": 1}, {job_id})
    row = await row_of(database, job_id)
    assert (row["state"], row["reason"]) == ("cancelled", "enough")
    [late] = (await settle(database, [Settlement(job_id, token, Verb.COMPLETE, result="1")])).answers
    assert not late.ok
    await invariants.check_all(database)


async def test_one_replica_at_a_time_sweeps(database: Database) -> None:
    async with database.transaction() as other:
        assert await other.fetchval(ONE_AT_A_TIME)
        assert await sweep(database, cancel_grace_seconds=10) is None
    assert await sweep(database, cancel_grace_seconds=10) is not None


async def test_a_row_that_somebody_holds_is_left_for_the_next_round(database: Database) -> None:
    held, free = [(await running(database, lane=lane))[0] for lane in "ab"]
    for job_id in (held, free):
        await backdate(database, job_id, "lease_expires_at")
    async with database.transaction() as other:
        await other.execute("SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE", held)
        async with asyncio.timeout(5):
            swept = await sweep_now(database)
        assert (swept.moved, swept.changes.jobs) == ({"rescue": 1}, {free})
    swept = await sweep_now(database)
    assert (swept.moved, swept.changes.jobs) == ({"rescue": 1}, {held})


async def test_a_full_round_says_that_there_may_be_more(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "BATCH", 3)
    await put(database, *(job(deadline_seconds=60) for _ in range(5)))
    await write(database, "UPDATE jobs SET deadline = now() - interval '1 hour'")
    first, second, third = [await sweep_now(database) for _ in range(3)]
    assert [each.moved["expire"] for each in (first, second, third)] == [3, 2, 0]
    assert [each.full for each in (first, second, third)] == [True, False, False]


async def test_a_crowd_whose_deadline_passed_in_one_queue_holds_up_no_other(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "BATCH", 10)
    for queue, jobs in (("crowd", 30), ("other", 1)):
        await put(database, *(job(queue=queue, deadline_seconds=60) for _ in range(jobs)))
        # The other's passed last.
        await write(
            database, "UPDATE jobs SET deadline = clock_timestamp() - interval '1 ms' WHERE queue = $1", queue
        )
    swept = await sweep_now(database)
    assert swept.moved == {"expire": 6}
    rows = await database.fetch("SELECT queue FROM jobs WHERE state = 'expired'")
    assert Counter(each["queue"] for each in rows) == {"crowd": 5, "other": 1}
    rounds = 1
    while swept.full:
        swept = await sweep_now(database)
        rounds += 1
    assert rounds == 4
    assert await database.fetchval("SELECT count(*) FROM jobs WHERE state = 'expired'") == 31
