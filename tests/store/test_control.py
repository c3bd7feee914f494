"""What callers and operators do to a job by its id: cancel, revive, delete."""

import asyncio

import pytest

from app.jobs.states import TERMINAL, Verb
from app.store.control import FAMILY_BATCH, Cancel, cancel, delete, revive
from app.store.database import Database
from app.store.outbox import Try, record
from app.store.settle import Settlement, note_late, settle
from tests.live_tables import write
from tests.patience import until
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

ERROR = '{"code":"broken","message":"It broke.","retryable":false}'


async def failed(database: Database, **fields: object) -> str:
    job_id, token = await running(database, **fields)
    await settle(database, [Settlement(job_id, token, Verb.FAIL, error=ERROR)])
    return job_id


async def test_a_queued_job_is_cancelled_at_once(database: Database) -> None:
    job_id = await put_one(database)
    assert (await cancel(database, [job_id], TENANT, "not needed")).answers == [
        Cancel(job_id, changed=True, requested=False)
    ]
    row = await row_of(database, job_id)
    assert (row["state"], row["reason"]) == ("cancelled", "not needed")
    assert row["completed_at"] is not None
    assert await log_of(database, job_id) == [(1, "queued", "enqueue"), (2, "cancelled", "cancel")]
    await invariants.check_all(database)


async def test_a_scheduled_job_is_cancelled_at_once_too(database: Database) -> None:
    job_id = await put_one(database, delay_seconds=60)
    await cancel(database, [job_id], TENANT, None)
    assert (await row_of(database, job_id))["reason"] == "cancel"


@pytest.mark.parametrize("started", [False, True])
async def test_a_running_job_is_asked_once_and_keeps_its_lease(database: Database, started: bool) -> None:
    job_id, token = await running(database)
    if started:
        await settle(database, [Settlement(job_id, token, Verb.START)])
    [first] = (await cancel(database, [job_id], TENANT, "first")).answers
    [second] = (await cancel(database, [job_id], TENANT, "second")).answers
    assert (first.changed, first.requested) == (True, True)
    assert (second.changed, second.requested) == (False, True)
    row = await row_of(database, job_id)
    assert (row["lease_token"], row["cancel_reason"]) == (token, "first")
    assert row["state"] == ("working" if started else "loading")
    assert [each[1] for each in await log_of(database, job_id)].count("cancel_requested") == 1
    await invariants.check_all(database)


async def test_an_ended_job_stays_as_it_is(database: Database) -> None:
    job_id = await failed(database)
    before = await row_of(database, job_id)
    [controlled] = (await cancel(database, [job_id], TENANT, "too late")).answers
    assert (controlled.changed, controlled.requested) == (False, False)
    assert before["state"] == "failed"
    assert await row_of(database, job_id) == before


async def test_a_job_of_nobody_or_of_another_tenant_is_not_found(database: Database) -> None:
    job_id = await put_one(database)
    assert (await cancel(database, ["0" * 26], TENANT, None)).answers == []
    assert (await cancel(database, [job_id], "acme", None)).answers == []
    assert (await revive(database, [job_id], "acme")).answers == []
    assert (await delete(database, [job_id], "acme")).answers == []
    assert await states_of(database, job_id) == ["queued"]


async def test_cancel_reaches_the_descendants_and_nobody_else(database: Database) -> None:
    root = await put_one(database)
    [child, running_child, bystander] = await put(
        database, job(parent_id=root), job(parent_id=root, lane="w"), job(lane="b")
    )
    grandchild = await put_one(database, parent_id=running_child)
    ended = await put_one(database, parent_id=root, lane="d")
    token = await claim_one(database, ended)
    await settle(database, [Settlement(ended, token, Verb.COMPLETE, result="1")])
    await claim_one(database, running_child)
    controlled = (await cancel(database, [root], TENANT, "all of it")).answers
    assert controlled[0].job_id == root
    assert {
        each.job_id: ((await row_of(database, each.job_id))["state"], each.changed, each.requested)
        for each in controlled
    } == {
        root: ("cancelled", True, False),
        child: ("cancelled", True, False),
        running_child: ("loading", True, True),
        grandchild: ("cancelled", True, False),
    }
    assert await states_of(database, bystander, ended) == ["queued", "done"]
    await invariants.check_all(database)


async def test_cancel_reaches_families_of_any_size(database: Database) -> None:
    root = await put_one(database)
    children = await put(database, *(job(parent_id=root) for _ in range(FAMILY_BATCH + 200)))
    first = await cancel(database, [root], TENANT, None, at_once=False)
    assert [each.job_id for each in first.answers][:2] == [root, children[0]]
    assert len(first.answers) == FAMILY_BATCH
    rest = await cancel(database, [root], TENANT, None)
    assert (rest.answers[0].job_id, rest.answers[0].changed) == (root, False)
    assert len(rest.jobs) == 201
    assert set(await states_of(database, root, *children)) == {"cancelled"}
    await invariants.check_all(database)


async def test_revive_starts_over_under_the_same_id(database: Database) -> None:
    job_id = await failed(database, max_attempts=1, deadline_seconds=100)
    deadline = (await row_of(database, job_id))["deadline"]
    revived = await revive(database, [job_id], TENANT)
    assert (revived.answers, revived.work) == ([job_id], {("default", "noop")})
    row = await row_of(database, job_id)
    assert (row["state"], row["attempt"], row["deferrals"], row["error"], row["reason"]) == (
        "queued",
        0,
        0,
        None,
        "revive",
    )
    assert (row["completed_at"], row["deadline"]) == (None, deadline)
    assert row["started_at"] is not None  # from the first claim on
    assert (await log_of(database, job_id))[-1][1:] == ("queued", "revive")
    assert await claim_one(database, job_id)
    await invariants.check_all(database)


async def test_revive_drops_a_deadline_that_has_passed(database: Database) -> None:
    job_id = await failed(database, deadline_seconds=100)
    await backdate(database, job_id, "deadline")
    await revive(database, [job_id], TENANT)
    assert (await row_of(database, job_id))["deadline"] is None


async def test_only_failed_jobs_are_revived(database: Database) -> None:
    queued = await put_one(database, lane="q")
    loading, _ = await running(database)
    done, token = await running(database, lane="d")
    await settle(database, [Settlement(done, token, Verb.COMPLETE, result="1")])
    cancelled = await put_one(database, lane="c")
    await cancel(database, [cancelled], TENANT, None)
    for job_id in (queued, loading, done, cancelled, "0" * 26):
        assert (await revive(database, [job_id], TENANT)).answers == []
    assert await states_of(database, queued, loading, done, cancelled) == [
        "queued",
        "loading",
        "done",
        "cancelled",
    ]


async def test_delete_removes_a_job_and_all_it_owns_and_nothing_else(database: Database) -> None:
    gone, kept = [await failed(database, webhook_url="https://example.org/") for _ in range(2)]
    for job_id in (gone, kept):
        await database.execute(
            "INSERT INTO artifacts (job_id, name, content_type, size, data) VALUES ($1, 'a', 'text/plain', 1, 'x')",
            job_id,
        )
    # Of each job, one is over and the others are not.
    delivered = [Try(job_id, 1, 0, "delivered") for job_id in (gone, kept)]
    await record(database, delivered, lease_seconds=10, max_result_bytes=1, take_next=False)
    assert (await delete(database, [gone], TENANT)).answers == [gone]
    assert (await delete(database, [gone], TENANT)).answers == []
    for table, column in (
        ("jobs", "id"),
        ("events", "job_id"),
        ("outbox", "job_id"),
        ("deliveries", "job_id"),
        ("artifacts", "job_id"),
    ):
        left = await database.fetch(f"SELECT DISTINCT {column} AS id FROM {table}")
        assert [row["id"] for row in left] == [kept], table


async def test_a_late_settlement_noted_meanwhile_leaves_no_event_of_a_deleted_job(database: Database) -> None:
    job_id = await failed(database)
    async with database.connection() as other:
        async with other.transaction():
            await note_late(other, [(job_id, "complete")])
            deleting = asyncio.create_task(delete(database, [job_id], TENANT))
            await until(lambda: other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        assert (await deleting).answers == [job_id]
    assert await database.fetchval("SELECT count(*) FROM events") == 0


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_every_ended_job_can_be_deleted(database: Database, state: str) -> None:
    job_id = await put_one(database)
    await write(database, "UPDATE jobs SET state = $2, completed_at = now() WHERE id = $1", job_id, state)
    assert (await delete(database, [job_id], TENANT)).answers == [job_id]


async def test_a_live_job_is_not_deleted(database: Database) -> None:
    queued = await put_one(database, lane="q")
    loading, _ = await running(database)
    for job_id in (queued, loading):
        assert (await delete(database, [job_id], TENANT)).answers == []
    assert await invariants.check_all(database) == 2


async def test_a_cancel_that_waits_for_a_lock_acts_on_what_the_lock_shows(database: Database) -> None:
    """It saw a failed job, waited for somebody who revived and claimed it, and asks the run to stop."""
    job_id = await failed(database)
    async with database.transaction() as other:
        await write(
            other,
            "UPDATE jobs SET state = 'loading', completed_at = NULL, lease_token = 'x' WHERE id = $1",
            job_id,
        )
        cancelling = asyncio.create_task(cancel(database, [job_id], TENANT, None))
        await until_somebody_waits_for_a_lock(database)
    [controlled] = (await cancelling).answers
    assert (controlled.changed, controlled.requested) == (True, True)
    row = await row_of(database, job_id)
    assert (row["state"], row["completed_at"], row["lease_token"]) == ("loading", None, "x")


async def until_somebody_waits_for_a_lock(database: Database) -> None:
    waits = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%family%'"
    )
    await until(lambda: database.fetchval(waits))
