"""enqueue: many submissions, one commit, each answered on its own; a key makes a second try harmless."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from app.errors import IdempotencyMismatch, InvalidRequest, JobTerminal
from app.jobs.submission import NewJob
from app.store.control import cancel
from app.store.database import Database
from app.store.enqueue import enqueue
from app.store.history import ALL_EVENTS
from app.store.idempotency import Receipt, Submission
from app.store.outbox import ALL_DELIVERIES
from tests.store import invariants
from tests.store.making import TENANT, claim, claim_one, job, log_of, put, put_one, row_of, running


def keyed(key: str, *jobs: NewJob, body: bytes = b"body", tenant: str = TENANT) -> Submission:
    return Submission(list(jobs) or [job()], tenant, key, body)


async def count(database: Database, table: str = "jobs") -> int:
    return int(await database.fetchval(f"SELECT count(*) FROM {table}"))


async def test_many_submissions_are_one_statement_and_answered_in_order(database: Database) -> None:
    submissions = [Submission([job(), job()]), Submission([job()]), Submission([job() for _ in range(50)])]
    receipts = (await enqueue(database, submissions)).answers
    assert receipts == [Receipt([each.id for each in submission.jobs]) for submission in submissions]
    assert await count(database) == 53
    assert await database.fetchval("SELECT count(DISTINCT xmin::text) FROM jobs") == 1
    assert await invariants.check_all(database) == 53


async def test_a_new_job_is_queued_with_its_first_event(database: Database) -> None:
    job_id = await put_one(database, payload='{"z": 1.00, "a":[ ]}')
    row = await row_of(database, job_id)
    assert (row["state"], row["attempt"], row["max_attempts"], row["seq"]) == ("queued", 0, 5, 1)
    assert row["payload"] == '{"z": 1.00, "a":[ ]}'
    assert row["ready_at"] == row["run_at"] == row["created_at"]
    assert row["reason"] is None
    assert await log_of(database, job_id) == [(1, "queued", "enqueue")]


async def test_every_field_is_kept(database: Database) -> None:
    parent = await put_one(database)
    at = datetime(2040, 1, 2, 3, 4, 5, 678901, UTC)
    fields = {
        "queue": "q",
        "kind": "report",
        "lane": "report",
        "model": "m",
        "priority": -7,
        "interactive": True,
        "run_at": at,
        "deadline": at + timedelta(days=1),
        "max_duration_seconds": 1.25,
        "max_attempts": 9,
        "backoff_seconds": [0.5, 1e-7, 3.0],
        "parent_id": parent,
        "webhook_url": "https://example.org/",
        "webhook_events": ["done", "null", "NULL", "my-own.event"],
        "target": "gpu",
        "request_id": "r",
        "traceparent": "t",
        "tracestate": "s",
    }
    row = await row_of(database, await put_one(database, metadata='{"b":"2","a":"1"}', **fields))
    assert {name: row[name] for name in fields} == fields
    assert json.loads(row["metadata"]) == {"a": "1", "b": "2"}
    assert row["rank"] == -13
    assert row["ready_at"] is None
    assert row["reason"] == "scheduled"


async def test_a_moment_in_the_past_is_now_and_one_ahead_waits(database: Database) -> None:
    past, ahead, delayed, at_once = await put(
        database,
        job(run_at=datetime(2001, 1, 1, tzinfo=UTC)),
        job(run_at=datetime(2101, 1, 1, tzinfo=UTC)),
        job(delay_seconds=3600),
        job(delay_seconds=0),
    )
    assert {record.id for record in await claim(database)} == {past, at_once}
    for job_id in (ahead, delayed):
        assert (await row_of(database, job_id))["reason"] == "scheduled"
    waits = (await row_of(database, delayed))["run_at"] - (await row_of(database, delayed))["created_at"]
    assert waits == timedelta(hours=1)


async def test_a_deadline_in_seconds_counts_from_the_databases_now(database: Database) -> None:
    row = await row_of(database, await put_one(database, deadline_seconds=90))
    assert row["deadline"] - row["created_at"] == timedelta(seconds=90)


async def test_a_webhook_url_brings_an_outbox_row_in_the_same_commit(database: Database) -> None:
    wanted = await put_one(database, webhook_url="https://example.org/")
    chosen = await put_one(database, webhook_url="https://example.org/", webhook_events=["done"])
    rows = await database.fetch(f"SELECT job_id, seq, type, state FROM {ALL_DELIVERIES} AS deliveries")
    assert [tuple(row) for row in rows] == [(wanted, 1, "queued", "pending")]
    assert await invariants.check_all(database, [wanted, chosen]) == 2


# -- idempotency -----------------------------------------------------------------------------------------


async def test_the_same_key_and_body_get_the_first_answer_again(database: Database) -> None:
    [first] = (await enqueue(database, [keyed("k", job(), job())])).answers
    [second] = (await enqueue(database, [keyed("k", job(), job())])).answers
    assert isinstance(first, Receipt)
    assert second == Receipt(first.job_ids, replayed=True)
    assert await count(database) == 2


async def test_the_same_key_with_another_body_is_refused(database: Database) -> None:
    [first] = (await enqueue(database, [keyed("k")])).answers
    [second] = (await enqueue(database, [keyed("k", body=b"other")])).answers
    assert isinstance(first, Receipt)
    assert isinstance(second, IdempotencyMismatch)
    assert (second.status, second.code) == (422, "idempotency_mismatch")
    assert await count(database) == 1


async def test_a_key_belongs_to_its_tenant(database: Database) -> None:
    one, other = (
        await enqueue(database, [keyed("k"), keyed("k", job(tenant="acme"), tenant="acme")])
    ).answers
    assert isinstance(one, Receipt)
    assert isinstance(other, Receipt)
    assert not other.replayed
    assert await count(database) == 2


async def test_repeats_inside_one_batch_are_told_apart(database: Database) -> None:
    submissions = [
        keyed("a"),
        keyed("b"),
        keyed("a"),
        Submission([job()]),
        keyed("a", body=b"other"),
        keyed("b"),
    ]
    first_a, first_b, second_a, without, mismatch, second_b = (await enqueue(database, submissions)).answers
    assert isinstance(first_a, Receipt)
    assert isinstance(first_b, Receipt)
    assert not first_a.replayed
    assert not first_b.replayed
    assert second_a == Receipt(first_a.job_ids, replayed=True)
    assert second_b == Receipt(first_b.job_ids, replayed=True)
    assert isinstance(without, Receipt)
    assert isinstance(mismatch, IdempotencyMismatch)
    assert await count(database) == 3


async def test_fifty_at_once_over_many_connections_make_one_job(database: Database) -> None:
    enqueued = await asyncio.gather(*(enqueue(database, [keyed("k")]) for _ in range(50)))
    answers = [answer for each in enqueued for answer in each.answers if isinstance(answer, Receipt)]
    assert len(answers) == 50
    assert len({answer.job_ids[0] for answer in answers}) == 1
    assert sum(not answer.replayed for answer in answers) == 1
    assert await count(database) == 1


async def test_batches_with_the_same_keys_in_another_order_do_not_deadlock(database: Database) -> None:
    keys = [f"k{n}" for n in range(200)]
    orders = [keys, keys[::-1], keys[100:] + keys[:100], keys[50:] + keys[:50]]
    for _ in range(3):
        await database.execute("TRUNCATE jobs, queued, events, idempotency_keys")
        batches = [[keyed(key) for key in order] for order in orders]
        enqueued = await asyncio.gather(*(enqueue(database, batch) for batch in batches))
        for changes, batch in zip(enqueued, batches, strict=True):
            assert [isinstance(answer, Receipt) for answer in changes.answers] == [True] * len(batch)
        assert await count(database) == len(keys)


# -- parents ---------------------------------------------------------------------------------------------


async def test_a_childs_deadline_is_capped_by_its_parents(database: Database) -> None:
    parent = await put_one(database, deadline_seconds=60)
    ends = (await row_of(database, parent))["deadline"]
    later, none, sooner = await put(
        database,
        job(parent_id=parent, deadline_seconds=3600),
        job(parent_id=parent),
        job(parent_id=parent, deadline_seconds=5),
    )
    assert (await row_of(database, later))["deadline"] == ends
    assert (await row_of(database, none))["deadline"] == ends
    assert (await row_of(database, sooner))["deadline"] < ends


async def test_a_child_of_nobody_is_refused_and_its_neighbours_are_not(database: Database) -> None:
    parent = await put_one(database)
    stranger = await put_one(database, tenant="acme")
    changes = await enqueue(
        database,
        [
            Submission([job(parent_id=parent)]),
            Submission([job(parent_id="0" * 26)]),
            Submission([job(parent_id=stranger)]),
            Submission([job()]),
        ],
    )
    assert [type(answer) for answer in changes.answers] == [Receipt, InvalidRequest, InvalidRequest, Receipt]
    assert await count(database) == 4


async def test_a_parent_that_has_ended_takes_no_more_children(database: Database) -> None:
    parent = await put_one(database)
    await cancel(database, [parent], TENANT, None)
    [answer] = (await enqueue(database, [Submission([job(parent_id=parent)])])).answers
    assert isinstance(answer, JobTerminal)
    assert "cancel" in answer.detail


async def test_a_parent_that_is_being_cancelled_takes_no_more_children(database: Database) -> None:
    parent, _ = await running(database)
    await cancel(database, [parent], TENANT, None)
    [answer] = (await enqueue(database, [Submission([job(parent_id=parent)])])).answers
    assert isinstance(answer, JobTerminal)


async def test_jobs_accepted_together_are_refused_together(database: Database) -> None:
    [answer] = (await enqueue(database, [Submission([job(), job(parent_id="0" * 26), job()])])).answers
    assert isinstance(answer, InvalidRequest)
    assert await count(database) == 0
    assert await count(database, "events") == 0


async def test_a_batchs_wrong_parent_is_named_by_its_index(database: Database) -> None:
    batch = Submission([job(), job(parent_id="0" * 26)], batch=True)
    [answer] = (await enqueue(database, [batch])).answers
    assert isinstance(answer, InvalidRequest)
    assert answer.extra["index"] == 1
    assert answer.detail.startswith("jobs[1]")
    ended = await put_one(database)
    await cancel(database, [ended], TENANT, None)
    [answer] = (
        await enqueue(database, [Submission([job(), job(), job(parent_id=ended)], batch=True)])
    ).answers
    assert isinstance(answer, JobTerminal)
    assert answer.extra["index"] == 2


async def test_a_repeat_gets_its_first_answer_even_when_the_parent_has_ended_meanwhile(
    database: Database,
) -> None:
    parent = await put_one(database)
    [first] = (await enqueue(database, [keyed("k", job(parent_id=parent))])).answers
    await cancel(database, [parent], TENANT, None)
    [again] = (await enqueue(database, [keyed("k", job(parent_id=parent))])).answers
    assert isinstance(first, Receipt)
    assert again == Receipt(first.job_ids, replayed=True)
    [other] = (await enqueue(database, [keyed("k", job(parent_id=parent), body=b"other")])).answers
    assert isinstance(other, IdempotencyMismatch)
    [fresh] = (await enqueue(database, [keyed("fresh", job(parent_id=parent))])).answers
    assert isinstance(fresh, JobTerminal)


async def test_no_child_escapes_a_cancel_that_runs_beside_its_enqueue(database: Database) -> None:
    for _ in range(15):
        parent = await put_one(database)
        token = await claim_one(database, parent)
        assert token
        enqueued, _ = await asyncio.gather(
            asyncio.gather(*(enqueue(database, [Submission([job(parent_id=parent)])]) for _ in range(6))),
            cancel(database, [parent], TENANT, None),
        )
        accepted = [each for each in enqueued for answer in each.answers if isinstance(answer, Receipt)]
        states = await database.fetch("SELECT state FROM jobs WHERE parent_id = $1", parent)
        assert [row["state"] for row in states] == ["cancelled"] * len(accepted)


@pytest.mark.parametrize("size", [1, 1000])
async def test_a_whole_batch_is_one_commit(database: Database, size: int) -> None:
    submission = Submission([job(queue=f"q{n % 3}") for n in range(size)])
    [receipt] = (await enqueue(database, [submission])).answers
    assert receipt == Receipt([each.id for each in submission.jobs])
    assert await database.fetchval("SELECT count(DISTINCT xmin::text) FROM jobs") == 1
    assert await database.fetchval("SELECT count(DISTINCT xmin::text) FROM queued") == 1
    assert await count(database, "queued") == size
    assert await count(database, f"{ALL_EVENTS} AS events") == size
