"""The outbox: what may be claimed, in which order, and that its statements stay cheap whatever is pending."""

import asyncio
import json
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import pytest

from app.jobs.states import Verb
from app.store import outbox
from app.store.database import Database
from app.store.events import NewEvent, append
from app.store.low_water import THE_BEGINNING
from app.store.outbox import ALL_DELIVERIES, Delivery, DeliveryFilter, DueDelivery, Try, Wanted
from app.store.settle import Settlement, note_late, settle
from tests.patience import until
from tests.store.making import claim_one, job, put, put_one, running

URL = "http://hooks.example:8080/a?b=c"
HOST = "hooks.example:8080"
LARGEST = 256 * 1024
Answer = TypeVar("Answer")


async def claim(database: Database, host: str = HOST, room: int = 10, **more: Any) -> list[DueDelivery]:
    return await outbox.claim(
        database, [Wanted(host, room, **more)], lease_seconds=10, max_result_bytes=LARGEST
    )


async def record(database: Database, *tries: Try, take_next: bool = True) -> list[DueDelivery | None]:
    return await outbox.record(
        database, tries, lease_seconds=10, max_result_bytes=LARGEST, take_next=take_next
    )


def tried(delivery: DueDelivery, state: str = "delivered", **more: Any) -> Try:
    return Try(delivery.job_id, delivery.seq, delivery.tries, state, **more)


def names(rows: Sequence[Delivery | DueDelivery]) -> list[tuple[str, int]]:
    return [(row.job_id, row.seq) for row in rows]


async def done_job(database: Database, **fields: Any) -> str:
    """A job that went all the way: four deliveries."""
    job_id, token = await running(database, webhook_url=URL, **fields)
    await settle(database, [Settlement(job_id, token, Verb.COMPLETE, result='{"answer":42}')])
    return job_id


async def pending(database: Database) -> list[tuple[str, int]]:
    rows = await database.fetch("SELECT job_id, seq FROM outbox ORDER BY job_id, seq")
    return [(row["job_id"], row["seq"]) for row in rows]


async def after_waiting(
    database: Database, statement: Awaitable[Answer], held: str, *values: object
) -> Answer:
    """What the statement comes to when it had to wait for somebody who changed the row in the meantime."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with database.transaction() as other:
        await other.execute(held, *values)
        task = asyncio.ensure_future(statement)
        await until(lambda: database.fetchval(waiting), 30)
    return await task


async def test_a_try_is_recorded_although_its_lease_is_renewed_in_the_same_moment(database: Database) -> None:
    job_id = await done_job(database)
    [delivery] = await claim(database)
    [following] = await after_waiting(
        database, record(database, tried(delivery)), outbox.RENEW, [job_id], [1], [0], 10.0
    )
    assert await pending(database) == [(job_id, 2), (job_id, 3), (job_id, 4)]
    assert following is not None
    assert following.seq == 2


async def test_the_next_of_a_job_is_handed_out_although_somebody_puts_it_off_in_the_same_moment(
    database: Database,
) -> None:
    job_id = await done_job(database)
    [delivery] = await claim(database)
    put_off = "UPDATE outbox SET next_try_at = now() + interval '1 hour' WHERE job_id = $1 AND seq = 2"
    [following] = await after_waiting(database, record(database, tried(delivery)), put_off, job_id)
    assert following is not None
    assert following.seq == 2


async def test_a_lease_is_renewed_although_its_delivery_is_hastened_in_the_same_moment(
    database: Database,
) -> None:
    job_id = await done_job(database)
    await claim(database)
    renewing = outbox.renew(database, [(job_id, 1, 0)], 1000.0)
    await after_waiting(database, renewing, outbox.REDELIVER, job_id, "default", 1)
    left = "SELECT leased_until > now() + interval '500 seconds' FROM outbox WHERE job_id = $1 AND seq = 1"
    assert await database.fetchval(left, job_id)


async def test_only_the_first_pending_delivery_of_a_job_can_be_claimed(database: Database) -> None:
    job_id = await done_job(database)
    assert names(await claim(database)) == [(job_id, 1)]
    assert await claim(database) == []


async def test_recording_a_delivery_hands_out_the_next_of_its_job_until_there_is_none(
    database: Database,
) -> None:
    job_id = await done_job(database)
    [delivery] = await claim(database)
    seqs = [delivery.seq]
    while True:
        [following] = await record(database, tried(delivery))
        if following is None:
            break
        delivery = following
        seqs.append(delivery.seq)
    assert seqs == [1, 2, 3, 4]
    assert await pending(database) == []
    rows = await database.fetch("SELECT state, tries, delivered_at FROM deliveries WHERE job_id = $1", job_id)
    assert all(row["state"] == "delivered" and row["tries"] == 1 and row["delivered_at"] for row in rows)


async def test_a_delivery_brings_all_that_its_message_needs(database: Database) -> None:
    job_id = await done_job(database, metadata='{"k":"v"}', traceparent="00-a-b-01")
    [delivery] = await claim(database)
    contents = [delivery]
    while (following := (await record(database, tried(contents[-1])))[0]) is not None:
        contents.append(following)
    assert [each.state for each in contents] == ["queued", "loading", "working", "done"]
    assert [each.previous_state for each in contents] == [None, "queued", "loading", "working"]
    assert [each.attempt for each in contents] == [0, 1, 1, 1]
    assert [each.result for each in contents] == [None, None, None, '{"answer":42}']
    assert contents[0].job_id == job_id
    assert contents[0].webhook_url == URL
    assert json.loads(contents[0].metadata or "") == {"k": "v"}


async def test_the_attempt_is_that_of_the_event_even_when_the_job_is_further(database: Database) -> None:
    job_id, token = await running(database, webhook_url=URL)
    retry = Settlement(job_id, token, Verb.RETRY, error='{"code":"x","message":"m"}', delay_seconds=0)
    await settle(database, [retry])
    token = await claim_one(database, job_id)
    await settle(database, [Settlement(job_id, token, Verb.COMPLETE, result="1")])
    found = await claim(database)
    while (following := (await record(database, tried(found[-1])))[0]) is not None:
        found.append(following)
    assert [(each.state, each.attempt) for each in found] == [
        ("queued", 0), ("loading", 1), ("queued", 1), ("loading", 2), ("working", 2), ("done", 2),
    ]  # fmt: skip


async def test_a_result_over_the_limit_stays_where_it_is(database: Database) -> None:
    job_id, token = await running(database, webhook_url=URL, webhook_events=["done"])
    large = json.dumps("x" * LARGEST)
    await settle(database, [Settlement(job_id, token, Verb.COMPLETE, result=large)])
    [delivery] = await claim(database)
    assert delivery.result is None
    assert delivery.result_bytes == len(large)
    assert await outbox.result_of(database, job_id) == large


async def test_a_failed_try_comes_back_after_its_delay_and_holds_up_its_followers(database: Database) -> None:
    job_id = await done_job(database)
    [delivery] = await claim(database)
    assert await record(database, tried(delivery, "pending", error="no", delay_seconds=60)) == [None]
    assert await claim(database) == []
    await database.execute("UPDATE outbox SET next_try_at = now() WHERE job_id = $1 AND seq = 1", job_id)
    [again] = await claim(database)
    assert (again.seq, again.tries) == (1, 1)


async def test_followers_of_a_delivery_that_backs_off_are_moved_out_of_the_way(database: Database) -> None:
    await done_job(database)
    [delivery] = await claim(database)
    await record(database, tried(delivery, "pending", delay_seconds=60))
    await claim(database)
    due = await database.fetchval("SELECT count(*) FROM outbox WHERE next_try_at <= now()")
    assert due == 0
    moments = await database.fetchval("SELECT count(DISTINCT next_try_at) FROM outbox")
    assert moments == 1


async def test_a_follower_that_was_moved_still_leaves_right_after_the_one_before_it(
    database: Database,
) -> None:
    job_id = await done_job(database)
    [delivery] = await claim(database)
    await record(database, tried(delivery, "pending", delay_seconds=3600))
    await claim(database)
    await database.execute("UPDATE outbox SET next_try_at = now() WHERE job_id = $1 AND seq = 1", job_id)
    [delivery] = await claim(database)
    [following] = await record(database, tried(delivery))
    assert following is not None
    assert following.seq == 2


async def test_a_lease_that_ran_out_makes_the_delivery_claimable_again(database: Database) -> None:
    await done_job(database)
    [delivery] = await claim(database)
    await outbox.renew(database, [(delivery.job_id, 1, 0)], 0.0)
    assert names(await claim(database)) == [(delivery.job_id, 1)]


async def test_who_lost_the_lease_to_another_records_nothing(database: Database) -> None:
    await done_job(database)
    [mine] = await claim(database)
    await outbox.renew(database, [(mine.job_id, 1, 0)], 0.0)
    [theirs] = await claim(database)
    await record(database, tried(theirs, "pending", delay_seconds=60))
    assert await record(database, tried(mine, "given_up")) == [None]
    row = await database.fetchrow(
        f"SELECT state, tries FROM {ALL_DELIVERIES} AS deliveries WHERE job_id = $1 AND seq = 1", mine.job_id
    )
    assert row is not None
    assert (row["state"], row["tries"]) == ("pending", 1)


async def test_two_dispatchers_never_claim_the_same_delivery(database: Database) -> None:
    await put(database, *[job(webhook_url=URL) for _ in range(200)])
    claimed = await asyncio.gather(*(claim(database, room=20) for _ in range(20)))
    found = [name for rows in claimed for name in names(rows)]
    assert len(found) == len(set(found))
    rest = [name for rows in [await claim(database, room=500)] for name in names(rows)]
    assert len({*found, *rest}) == 200


async def test_each_receiver_is_claimed_for_by_itself_and_no_further_than_its_room(
    database: Database,
) -> None:
    await put(database, *[job(webhook_url=f"https://{host}/x") for host in ("a", "b", "c") for _ in range(5)])
    found = await outbox.claim(
        database, [Wanted("a", 2), Wanted("c", 100)], lease_seconds=10, max_result_bytes=LARGEST
    )
    assert sorted(row.host for row in found) == ["a"] * 2 + ["c"] * 5


async def test_a_receiver_is_known_by_host_and_port_in_lower_case(database: Database) -> None:
    await put_one(database, webhook_url="HTTP://Hooks.Example:8080?x#y")
    assert set(await outbox.receivers(database)) == {HOST}


async def test_overdue_ones_are_told_from_those_that_just_came_due(database: Database) -> None:
    old, _ = await put(database, *[job(webhook_url=URL) for _ in range(2)])
    await database.execute("UPDATE outbox SET next_try_at = now() - interval '2 min' WHERE job_id = $1", old)
    assert names(await claim(database, overdue_seconds=60)) == [(old, 1)]


async def test_receivers_tell_how_long_until_their_first_delivery_is_due(database: Database) -> None:
    await put_one(database, webhook_url=URL)
    later = await put_one(database, webhook_url="https://later.example/")
    await database.execute("UPDATE outbox SET next_try_at = now() + interval '90 s' WHERE job_id = $1", later)
    found = await outbox.receivers(database)
    assert found[HOST] <= 0
    assert found["later.example"] == pytest.approx(90, abs=5)


async def test_redelivering_starts_the_tries_over_and_hastens_what_is_pending(database: Database) -> None:
    job_id = await done_job(database)
    [delivery] = await claim(database)
    await record(database, tried(delivery, "given_up", status=500, error="no"), take_next=False)
    [again] = (await outbox.redeliver(database, job_id, "default", 1)).answers
    assert (again.state, again.tries) == ("pending", 0)
    [delivery] = await claim(database)
    await record(database, tried(delivery, "pending", delay_seconds=3600))
    [hastened] = (await outbox.redeliver(database, job_id, "default", 1)).answers
    assert (hastened.state, hastened.tries) == ("pending", 1)
    assert names(await claim(database)) == [(job_id, 1)]


async def test_another_tenant_redelivers_nothing(database: Database) -> None:
    job_id = await done_job(database)
    assert (await outbox.redeliver(database, job_id, "somebody", 1)).answers == []
    assert (await outbox.redeliver(database, job_id, "default", 99)).answers == []


async def test_only_the_events_that_were_asked_for_are_delivered(database: Database) -> None:
    job_id, token = await running(
        database, webhook_url=URL, webhook_events=["done", "late_settlement", "review.asked"]
    )
    await append(database, [NewEvent(job_id, "review.asked", "{}"), NewEvent(job_id, "review.other", "{}")])
    await settle(database, [Settlement(job_id, token, Verb.COMPLETE, result="1")])
    await note_late(database, [(job_id, "heartbeat")])
    rows = await database.fetch("SELECT type FROM outbox WHERE job_id = $1 ORDER BY seq", job_id)
    assert [row["type"] for row in rows] == ["review.asked", "done", "late_settlement"]


async def test_progress_and_output_are_delivered_at_most_every_half_second(database: Database) -> None:
    job_id, token = await running(database, webhook_url=URL, webhook_events=["progress", "output", "log"])
    for _ in range(3):
        await append(
            database,
            [NewEvent(job_id, kind, "{}", token) for kind in ("progress", "output", "log", "progress")],
        )
    rows = await database.fetch("SELECT type, count(*) FROM outbox WHERE job_id = $1 GROUP BY 1", job_id)
    assert {row["type"]: row["count"] for row in rows} == {"progress": 1, "output": 1, "log": 3}
    await database.execute("UPDATE outbox SET created_at = created_at - interval '501 milliseconds'")
    await append(database, [NewEvent(job_id, "progress", "{}", token)])
    progress = await database.fetchval(
        "SELECT count(*) FROM outbox WHERE job_id = $1 AND type = 'progress'", job_id
    )
    assert progress == 2


async def test_lists_are_filtered_by_host_and_state_and_paged(database: Database) -> None:
    mine = [await done_job(database) for _ in range(3)]
    other = await put_one(database, webhook_url="https://hooks.example/")
    [delivery] = [row for row in await claim(database) if row.job_id == mine[0]]
    await record(database, tried(delivery, "given_up"), take_next=False)

    async def listed(limit: int = 100, **wanted: Any) -> list[tuple[str, int]]:
        return names(await outbox.list_deliveries(database, DeliveryFilter(**wanted), "default", limit))

    assert await listed(state="given_up") == [(mine[0], 1)]
    assert await listed(host="hooks.example:8080") == [
        (job_id, n) for job_id in reversed(mine) for n in (4, 3, 2, 1)
    ]
    assert len(await listed(host="Hooks.Example")) == 13
    assert (await listed(limit=1)) == [(other, 1)]
    assert await listed(before=(mine[2], 2), limit=2) == [(mine[2], 1), (mine[1], 4)]
    assert await outbox.list_deliveries(database, DeliveryFilter(), "somebody", 10) == []


# -- plans ------------------------------------------------------------------------------

_MADE = "SELECT lpad(to_hex(n / 4), 26, '0'), n % 4 + 1, 'done', 'host' || n % 7 || ':443', now()"
FILL_DELIVERIES = f"""
INSERT INTO deliveries (job_id, seq, type, host, created_at, state, tries)
{_MADE}, 'delivered', 1 FROM generate_series($1::int, $2::int) n
"""
FILL_OUTBOX = f"""
INSERT INTO outbox (job_id, seq, type, host, created_at, next_try_at)
{_MADE}, now() + n * interval '1 ms' FROM generate_series($1::int, $2::int) n
"""


async def explained(database: Database, statement: str, *arguments: Any) -> list[dict[str, Any]]:
    """The nodes that read the outbox and the deliveries that are over, as they were executed."""
    async with database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        text = await connection.fetchval(
            f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) {statement}", *arguments
        )
        await transaction.rollback()
    nodes: list[dict[str, Any]] = []

    def walk(node: dict[str, Any]) -> None:
        if str(node.get("Relation Name")).startswith(("outbox", "deliveries")):
            nodes.append(node)
        for each in node.get("Plans", ()):
            walk(each)

    walk(json.loads(text)[0]["Plan"])
    return nodes


def rows_read(nodes: list[dict[str, Any]]) -> int:
    return sum(
        int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in nodes
        if node["Node Type"] not in ("ModifyTable", "Tid Scan")
    )


@pytest.fixture
async def surprised(database: Database) -> Database:
    """Statistics were taken when nothing was pending; then 40,000 deliveries came in."""
    await database.execute(FILL_DELIVERIES, 1, 40_000)
    # Such a one was there, and is gone: an empty table of which statistics know that it is.
    await database.execute(FILL_OUTBOX, 1, 4)
    await database.execute("DELETE FROM outbox")
    for table in ("deliveries", "outbox"):
        await database.execute(f"VACUUM ANALYZE {table}")
    await database.execute(FILL_OUTBOX, 40_001, 80_000)
    return database


async def test_recording_reads_the_rows_it_records_however_much_is_pending(surprised: Database) -> None:
    heads = await surprised.fetch("SELECT job_id, seq FROM outbox WHERE seq = 1 LIMIT 50")
    ids = [row["job_id"] for row in heads]
    count = len(ids)
    nodes = await explained(
        surprised,
        outbox.RECORD,
        ids,
        [1] * count,
        [0] * count,
        ["delivered"] * count,
        [204] * count,
        [None] * count,
        [0.0] * count,
        10.0,
        LARGEST,
        True,
        min(ids),
        max(ids),
    )
    assert nodes
    assert not [node for node in nodes if node["Node Type"] == "Seq Scan"]
    assert rows_read(nodes) <= 10 * count


async def test_claiming_reads_little_more_than_it_claims_however_much_is_pending(surprised: Database) -> None:
    await surprised.execute("UPDATE outbox SET next_try_at = now() WHERE host = 'host3:443'")
    nodes = await explained(
        surprised,
        outbox.CLAIM,
        ["host3:443"],
        [20],
        [0.0],
        [THE_BEGINNING],
        outbox.MAX_PUSHED,
        10.0,
    )
    assert nodes
    assert not [node for node in nodes if node["Node Type"] == "Seq Scan"]
    assert rows_read(nodes) <= 2000


async def test_finding_the_receivers_takes_a_probe_each(surprised: Database) -> None:
    nodes = await explained(surprised, outbox.RECEIVERS)
    assert {node["Node Type"] for node in nodes} <= {"Index Scan", "Index Only Scan"}
    assert rows_read(nodes) <= 20


@pytest.mark.parametrize("state", ["given_up", "refused", "pending"])
async def test_what_is_not_delivered_is_found_by_an_index(surprised: Database, state: str) -> None:
    statement, arguments = outbox.list_statement(DeliveryFilter(state), "default", 50)
    nodes = await explained(surprised, statement, *arguments)
    assert not [node for node in nodes if node["Node Type"] == "Seq Scan"]
