"""Events and deliveries lie in the days of their jobs, which are dropped whole; what is left of a day goes on as it was."""

import asyncio
import json
from collections.abc import Awaitable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from ulid import ULID

from app.artifacts.store import ArtifactStore
from app.engine.janitor import Janitor
from app.jobs.ids import id_floor
from app.jobs.states import Verb
from app.store import bulk, outbox, partitions
from app.store.control import delete, revive
from app.store.database import Database
from app.store.events import READ, NewEvent, Want, append, read_pages
from app.store.outbox import Delivery, DeliveryFilter, Try, deliveries_of, list_deliveries, redeliver
from app.store.partitions import DAYS_AHEAD, OF_JOBS, Renewal, renew
from app.store.read import Filter
from app.store.settle import Settlement, settle
from tests.live_tables import write
from tests.patience import until
from tests.store import invariants
from tests.store.making import TENANT, claim_one, running
from tests.store.test_prune import planned, pruned

URL = "http://hooks.example/"
HOST = "hooks.example"
ERROR = '{"code":"x","message":"y","retryable":false}'


def today() -> date:
    return datetime.now(UTC).date()


OLD = today() - timedelta(days=8)


def floor(day: date) -> str:
    return id_floor(datetime(day.year, day.month, day.day, tzinfo=UTC))


def an_id(day: date) -> str:
    """Of a job that came around noon."""
    return str(ULID.from_datetime(datetime(day.year, day.month, day.day, 12, tzinfo=UTC)))


async def days_of(database: Database, table: str) -> set[str]:
    rows = await database.fetch(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = $1::regclass",
        table,
    )
    return {row["relname"] for row in rows}


@pytest.fixture(autouse=True)
async def days(database: Database) -> None:
    """As they are after some weeks: what was there before there were days is gone."""
    for table in OF_JOBS:
        first = f"{table}_{today() + timedelta(days=1):%Y%m%d}"
        await database.execute(f"DROP TABLE {first}")
        for n in range(-12, 2):
            day = today() + timedelta(days=n)
            await database.execute(
                f"CREATE TABLE {table}_{day:%Y%m%d} PARTITION OF {table} "
                f"FOR VALUES FROM ('{floor(day)}') TO ('{floor(day + timedelta(days=1))}')"
            )


async def renewed(database: Database, table: str) -> Renewal:
    renewal = await renew(database, table, partitions.JOB_DAYS)
    assert renewal is not None
    return renewal


async def deliver(database: Database, job_id: str, times: int, state: str = "delivered") -> None:
    """So many of its deliveries, one after the other."""
    for _ in range(times):
        found = await database.fetchrow(
            "SELECT seq, tries FROM outbox WHERE job_id = $1 ORDER BY seq LIMIT 1", job_id
        )
        assert found is not None
        tried = Try(job_id, found["seq"], found["tries"], state, 204 if state == "delivered" else 500)
        await outbox.record(database, [tried], lease_seconds=10, max_result_bytes=1000, take_next=False)


async def eventful(database: Database, day: date = OLD, **fields: Any) -> str:
    """A job of that day that has failed twice and was told things: four rows of events; of its five deliveries four are
    over, one of them in vain."""
    job_id, token = await running(
        database, id=an_id(day), queue=f"q{an_id(day)}", webhook_url=URL, max_attempts=2, **fields
    )
    await append(database, [NewEvent(job_id, "late_settlement", f'{{"n":{n}}}') for n in range(2)])
    await settle(database, [Settlement(job_id, token, Verb.RETRY, error=ERROR, delay_seconds=0)])
    token = await claim_one(database, job_id)
    await settle(database, [Settlement(job_id, token, Verb.FAIL, error=ERROR)])
    await deliver(database, job_id, 3)
    await deliver(database, job_id, 1, "given_up")
    return job_id


PLAIN = """
INSERT INTO jobs (id, tenant, queue, lane, kind, state, payload, seq, completed_at, history, webhook_url)
SELECT $1 || lpad(n::text, 13, '0'), 'default', 'plain', 'noop', 'noop', 'done', '{}', 3, now() - interval '8 days', '', $3
FROM generate_series(1, $2::int) n
"""
PLAIN_EVENTS = """
INSERT INTO events (job_id, seq, type, state, reason)
SELECT $1 || lpad(n::text, 13, '0'), seq, 'note', 'done', NULL
FROM generate_series(1, $2::int) n CROSS JOIN generate_series(2, 3) seq
"""
PLAIN_DELIVERIES = """
INSERT INTO deliveries (job_id, seq, type, state, tries, created_at, delivered_at, host)
SELECT $1 || lpad(n::text, 13, '0'), seq, 'note', 'delivered', 1, now(), now(), 'hooks.example'
FROM generate_series(1, $2::int) n CROSS JOIN generate_series(1, 3) seq
"""


async def fill(database: Database, day: date, jobs: int) -> None:
    """Jobs of that day that are done, with two rows of events and three deliveries each."""
    prefix = floor(day)[:10] + "000"
    await write(database, PLAIN, prefix, jobs, URL)
    await database.execute(PLAIN_EVENTS, prefix, jobs)
    await database.execute(PLAIN_DELIVERIES, prefix, jobs)


async def rows_in(database: Database, table: str) -> int:
    return int(await database.fetchval(f"SELECT count(*) FROM {table}"))


async def story(database: Database, *job_ids: str) -> list[object]:
    """Of each job its log and its deliveries, as everybody reads them."""
    pages = await read_pages(database, [Want(job_id) for job_id in job_ids])
    logs = [page.events for page in pages if page is not None]
    return [*logs, *[await deliveries_of(database, each, TENANT, 0, 100) for each in job_ids]]


async def listed(database: Database, **wanted: Any) -> set[str]:
    found = await list_deliveries(database, DeliveryFilter(**wanted), TENANT, 100_000)
    return {each.job_id for each in found}


async def test_a_day_is_dropped_when_retention_has_removed_its_jobs_and_the_few_others_are_as_before(
    database: Database,
) -> None:
    await fill(database, OLD, 3_000)
    kept = [await eventful(database) for _ in range(3)]
    gone = await database.fetchval("SELECT min(id) FROM jobs WHERE queue = 'plain'")
    before = await story(database, *kept)
    [log, *_] = before
    assert isinstance(log, list)
    assert [event.seq for event in log] == list(range(1, 8))
    in_day = [await rows_in(database, f"{table}_{OLD:%Y%m%d}") for table in OF_JOBS]
    assert in_day == [6_000 + 3 * 4, 9_000 + 3 * 4]

    await planned(database)
    assert await pruned(database) == 3_000
    # Nothing of it was deleted, and nobody sees it any more.
    assert [await rows_in(database, f"{table}_{OLD:%Y%m%d}") for table in OF_JOBS] == in_day
    assert await read_pages(database, [Want(gone)]) == [None]
    assert await deliveries_of(database, gone, TENANT, 0, 10) == []
    assert await listed(database) == await listed(database, host=HOST) == set(kept)
    assert await listed(database, state="delivered") == set(kept)
    assert await story(database, *kept) == before

    for table in OF_JOBS:
        assert OLD in (await renewed(database, table)).dropped
        assert await database.fetchval("SELECT to_regclass($1)", f"{table}_{OLD:%Y%m%d}") is None
        assert (await renewed(database, table)).dropped == []
    assert [await rows_in(database, f"{table}_rest") for table in OF_JOBS] == [3 * 4, 3 * 4]
    assert await story(database, *kept) == before
    assert await listed(database, state="given_up") == set(kept)
    await invariants.check_all(database, kept, pruned=True)

    # They live on: what happens to them now lies beside what was moved.
    await revive(database, [kept[0]], TENANT)
    for job_id, times in zip(kept, (2, 1, 1), strict=True):
        await deliver(database, job_id, times)
    await invariants.check_all(database, kept, pruned=True)
    assert await rows_in(database, "events_rest") == 3 * 4 + 1
    # And go as everybody does, with all their rows.
    await database.execute(
        "UPDATE jobs SET completed_at = now() - interval '31 days' WHERE completed_at IS NOT NULL"
    )
    await database.execute("UPDATE retention_walks SET due_at = now(), after_id = ''")
    assert await pruned(database) == 2
    for table in OF_JOBS:
        left = await database.fetch(f"SELECT DISTINCT job_id FROM {table}_rest")
        assert [row["job_id"] for row in left] == [kept[0]]


async def test_a_day_of_which_many_jobs_are_left_stays(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database, OLD, 10)
    for limit, value in (("MAX_JOBS_LEFT", 9), ("MAX_ROWS_LEFT", 19)):
        with monkeypatch.context() as patch:
            patch.setattr(partitions, limit, value)
            for table in OF_JOBS:
                renewal = await renewed(database, table)
                assert OLD not in renewal.dropped + renewal.postponed
                assert f"{table}_{OLD:%Y%m%d}" in await days_of(database, table)
    assert OLD in (await renewed(database, "events")).dropped
    assert await rows_in(database, "events_rest") == 20


async def test_an_old_day_that_stays_crowded_is_rid_of_what_nobody_sees(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One queue keeps its jobs for ever, and another's are gone."""
    monkeypatch.setattr(partitions, "MAX_JOBS_LEFT", 2)
    monkeypatch.setattr(partitions, "SWEEP_BATCH", 7)
    kept = [await eventful(database) for _ in range(3)]
    before = await story(database, *kept)
    await fill(database, OLD, 20)
    await planned(database)
    assert await pruned(database) == 20
    janitor = Janitor(database, ArtifactStore(database, None), chatter_days=7)
    await janitor._run_once()
    assert await rows_in(database, "events") == 2 * 20 + 12, "a month it may wait"
    monkeypatch.setattr(partitions, "CROWDED_DAYS", 7)
    await janitor._renew()
    assert set(janitor._crowded) == {f"{table}_{OLD:%Y%m%d}" for table in OF_JOBS}
    while janitor._crowded:
        await janitor._run_once()
    assert [await rows_in(database, table) for table in OF_JOBS] == [12, 12]
    assert await story(database, *kept) == before
    await invariants.check_all(database)
    # Not again for a while; and one that is gone meanwhile is none.
    await janitor._renew()
    assert janitor._crowded == {}
    assert await partitions.sweep(database, "events_20000101", ("", 0)) is None


async def test_a_day_in_which_nothing_was_written_is_dropped_whatever_jobs_it_had(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "MAX_JOBS_LEFT", 1)
    await write(database, PLAIN, floor(OLD)[:10] + "000", 10, None)
    for table in OF_JOBS:
        renewal = await renewed(database, table)
        assert renewal.dropped == [today() - timedelta(days=n) for n in range(12, 1, -1)]
        assert await days_of(database, table) == {
            f"{table}_rest",
            *(f"{table}_{today() + timedelta(days=n):%Y%m%d}" for n in range(-1, DAYS_AHEAD + 1)),
        }


async def test_the_first_partition_has_all_days_up_to_its_own_and_goes_as_the_others_do(
    database: Database,
) -> None:
    """As the migration leaves it: what was there before there were days, and a day to come."""
    for table in OF_JOBS:
        for name in await days_of(database, table) - {f"{table}_rest"}:
            await database.execute(f"DROP TABLE {name}")
        await database.execute(
            f"CREATE TABLE {table}_{today() + timedelta(days=1):%Y%m%d} PARTITION OF {table} "
            f"FOR VALUES FROM (MINVALUE) TO ('{floor(today() + timedelta(days=2))}')"
        )
        renewal = await renewed(database, table)
        assert renewal.made == [today() + timedelta(days=n) for n in (2, 3)]
        assert renewal.dropped == renewal.postponed == []
        await database.execute(
            f"ALTER TABLE {table}_{today() + timedelta(days=1):%Y%m%d} RENAME TO {table}_{OLD:%Y%m%d}"
        )
    kept = await eventful(database, OLD - timedelta(days=100))
    before = await story(database, kept)
    for table in OF_JOBS:
        assert (await renewed(database, table)).dropped == [OLD]
    assert await story(database, kept) == before


async def test_a_job_that_is_deleted_takes_its_rows_out_of_its_day_at_once(database: Database) -> None:
    gone, other, kept = [await eventful(database) for _ in range(3)]
    assert await rows_in(database, "outbox") == 3
    assert (await delete(database, [gone], TENANT)).answers == [gone]
    await bulk.begin(database, "delete", Filter(queue=f"q{other}"), TENANT)
    await write(database, "UPDATE jobs SET queue = $2 WHERE id = $1", other, f"q{other}")
    while await bulk.step(database) is not None:
        pass
    for table in ("outbox", *OF_JOBS):
        rows = await database.fetch(f"SELECT DISTINCT job_id FROM {table}")
        assert {row["job_id"] for row in rows} == {kept}, table
    await invariants.check_all(database)


async def test_a_job_whose_day_was_dropped_is_deleted_with_all_its_rows(database: Database) -> None:
    gone, kept = [await eventful(database) for _ in range(2)]
    for table in OF_JOBS:
        await renewed(database, table)
    assert (await delete(database, [gone], TENANT)).answers == [gone]
    await invariants.check_all(database)
    assert await rows_in(database, "events_rest") == 4
    assert len(await deliveries_of(database, kept, TENANT, 0, 100)) == 5


async def test_who_holds_a_table_postpones_the_drop_and_nobody_waits_behind_it(database: Database) -> None:
    await fill(database, OLD, 5)
    kept = await eventful(database)
    before = await story(database, kept)
    for table in OF_JOBS:
        async with database.transaction() as writer:
            # As every claim and settlement does for a moment, and a dump for hours.
            await writer.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
            renewal = await renewed(database, table)
            assert OLD in renewal.postponed
            assert OLD not in renewal.dropped
            job_id, token = await running(database, webhook_url=URL)
            await append(database, [NewEvent(job_id, "late_settlement", "{}", token)])
            await deliver(database, job_id, 1)
        assert await story(database, kept) == before
        assert OLD in (await renewed(database, table)).dropped
    assert await story(database, kept) == before
    await invariants.check_all(database, [kept])


async def test_a_janitor_drops_days_while_everybody_works(database: Database) -> None:
    """Rows that are written in the same moment, also of jobs whose day goes, are all there in the end."""
    jobs = [
        await running(database, id=an_id(OLD - timedelta(days=n)), queue=f"q{n}", webhook_url=URL)
        for n in range(4)
    ]
    dropped: list[date] = []
    done = asyncio.Event()

    async def write_on(job_id: str, token: str) -> int:
        written = 0
        while not done.is_set():
            [appended] = (await append(database, [NewEvent(job_id, "late_settlement", "{}", token)])).answers
            assert appended is not None
            written += 1
            if await database.fetchval("SELECT count(*) FROM outbox WHERE job_id = $1", job_id):
                await deliver(database, job_id, 1)
        return written

    async def clean_up() -> None:
        janitor = Janitor(database, ArtifactStore(database, None), chatter_days=7)
        for _ in range(200):
            await janitor._renew()
            dropped[:] = [
                OLD - timedelta(days=n)
                for n in range(4)
                if not await database.fetchval(
                    "SELECT to_regclass($1)", f"events_{OLD - timedelta(days=n):%Y%m%d}"
                )
            ]
            if len(dropped) == 4:
                break
        done.set()

    cleaning = asyncio.ensure_future(clean_up())
    written = await asyncio.gather(*(write_on(*each) for each in jobs))
    await cleaning
    assert len(dropped) == 4
    for (job_id, _), count in zip(jobs, written, strict=True):
        [page] = await read_pages(database, [Want(job_id, max_rows=100_000, max_bytes=10**9)])
        assert page is not None
        assert [event.seq for event in page.events] == list(range(1, count + 3))
    await invariants.check_all(database)


async def test_a_job_from_a_day_that_has_no_partition_lies_in_the_rest_until_there_is_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's clock is a month ahead, or a year behind."""
    ahead, behind = today() + timedelta(days=30), today() - timedelta(days=400)
    jobs = [await eventful(database, day) for day in (ahead, behind)]
    before = await story(database, *jobs)
    assert [await rows_in(database, f"{table}_rest") for table in OF_JOBS] == [8, 8]
    monkeypatch.setattr(partitions, "TODAY", f"SELECT date '{ahead - timedelta(days=2)}'")
    for table in OF_JOBS:
        assert ahead in (await renewed(database, table)).made
        assert await rows_in(database, f"{table}_rest") == 4
    assert await story(database, *jobs) == before
    await invariants.check_all(database)


@pytest.mark.parametrize("dropped", [False, True])
async def test_an_old_delivery_is_sent_again(database: Database, dropped: bool) -> None:
    job_id = await eventful(database)
    while await rows_in(database, "outbox"):
        await deliver(database, job_id, 1)
    if dropped:
        for table in OF_JOBS:
            assert OLD in (await renewed(database, table)).dropped
    before = await deliveries_of(database, job_id, TENANT, 0, 100)
    changes = await redeliver(database, job_id, TENANT, 6)
    assert [(each.seq, each.state, each.tries) for each in changes.answers] == [(6, "pending", 0)]
    assert changes.receivers == {HOST}
    during = await deliveries_of(database, job_id, TENANT, 0, 100)
    assert [each.seq for each in during] == [each.seq for each in before]
    assert [each.state for each in during].count("pending") == 1
    [claimed] = await outbox.claim(
        database, [outbox.Wanted(HOST, 10)], lease_seconds=10, max_result_bytes=1000
    )
    assert (claimed.seq, claimed.state, claimed.previous_state, claimed.attempt) == (
        6,
        "loading",
        "queued",
        2,
    )
    await deliver(database, job_id, 1)
    after = await deliveries_of(database, job_id, TENANT, 0, 100)
    assert [each.state for each in after] == ["delivered"] * len(before)
    assert await rows_in(database, "outbox") == 0
    await invariants.check_all(database)


async def while_somebody(database: Database, holds: str, *values: object, then: Awaitable[Any]) -> Any:
    """What becomes of it when it meets somebody who is in the middle of a transaction."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with database.transaction() as other:
        await other.fetch(holds, *values)
        task = asyncio.ensure_future(then)
        await until(lambda: database.fetchval(waiting))
    return await task


def recording(job_id: str, seq: int) -> tuple[Any, ...]:
    return [job_id], [seq], [0], ["delivered"], [204], [], [0.0], 10.0, 1000, True, job_id, job_id


async def test_a_delivery_that_is_recorded_while_its_job_is_deleted_is_not_left_behind(
    database: Database,
) -> None:
    job_id = await eventful(database)
    deleting = delete(database, [job_id], TENANT)
    changes = await while_somebody(database, outbox.RECORD, *recording(job_id, 7), then=deleting)
    assert changes.answers == [job_id]
    for table in ("outbox", *OF_JOBS):
        assert await rows_in(database, table) == 0


async def test_a_delivery_of_a_job_that_is_being_deleted_is_not_sent_again(database: Database) -> None:
    job_id = await eventful(database)
    changes = await while_somebody(
        database,
        "SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE",
        job_id,
        then=redeliver(database, job_id, TENANT, 1),
    )
    assert [each.seq for each in changes.answers] == [1]
    assert (await delete(database, [job_id], TENANT)).answers == [job_id]
    assert (await redeliver(database, job_id, TENANT, 1)).answers == []
    assert await rows_in(database, "outbox") == 0


async def test_a_delivery_is_found_although_it_is_recorded_or_sent_again_in_the_same_moment(
    database: Database,
) -> None:
    job_id = await eventful(database)
    again = redeliver(database, job_id, TENANT, 7)
    changes = await while_somebody(database, outbox.RECORD, *recording(job_id, 7), then=again)
    assert [(each.seq, each.state, each.tries) for each in changes.answers] == [(7, "pending", 0)]
    again = redeliver(database, job_id, TENANT, 1)
    changes = await while_somebody(database, outbox.REDELIVER, job_id, TENANT, 1, then=again)
    assert [(each.seq, each.state) for each in changes.answers] == [(1, "pending")]
    await invariants.check_all(database)


async def test_webhooks_of_progress_are_throttled_by_those_that_have_left_already(database: Database) -> None:
    job_id, token = await running(database, webhook_url=URL, webhook_events=["progress"])
    for _ in range(3):
        await append(database, [NewEvent(job_id, "progress", "{}", token)])
        if await rows_in(database, "outbox"):
            await deliver(database, job_id, 1)
    assert (await rows_in(database, "outbox"), await rows_in(database, "deliveries")) == (0, 1)
    await database.execute("UPDATE deliveries SET created_at = created_at - interval '501 milliseconds'")
    await append(database, [NewEvent(job_id, "progress", "{}", token)])
    assert await rows_in(database, "outbox") == 1


async def test_lists_are_paged_across_what_is_pending_and_what_is_over(database: Database) -> None:
    jobs = [await eventful(database, OLD + timedelta(days=n)) for n in range(3)]
    everything = await list_deliveries(database, DeliveryFilter(), TENANT, 100)
    assert [(each.job_id, each.seq) for each in everything] == [
        (job_id, seq) for job_id in reversed(jobs) for seq in (7, 6, 5, 2, 1)
    ]
    paged: list[Delivery] = []
    while page := await list_deliveries(
        database, DeliveryFilter(before=(paged[-1].job_id, paged[-1].seq) if paged else None), TENANT, 5
    ):
        paged += page
    assert paged == everything
    assert {each.next_try_at is None for each in everything if each.state != "pending"} == {True}


# -- what they cost ---------------------------------------------------------------------------------------------


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes_of(child)


async def opened(database: Database, statement: str, *arguments: object) -> set[str]:
    """The days that a statement opens, whether it then reads them or not."""
    async with database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *arguments)
        await transaction.rollback()
    names = {str(node.get("Relation Name", "")) for node in nodes_of(json.loads(text)[0]["Plan"])}
    return {name for name in names if name.startswith(OF_JOBS)} - {"events", "deliveries"}


async def test_a_look_into_the_rows_of_a_job_opens_its_day_alone(database: Database) -> None:
    job_id = await eventful(database)
    events, deliveries = f"events_{OLD:%Y%m%d}", f"deliveries_{OLD:%Y%m%d}"
    page = ([job_id], [0], [None], [True], [200], [10_000], [TENANT], job_id, job_id)
    assert await opened(database, READ, *page) == {events}
    assert await opened(database, outbox.OF_JOB, job_id, TENANT, 0, 10) == {deliveries}
    assert await opened(database, outbox.CONTENT, [job_id], [7], 1000, job_id, job_id) == {events}
    assert await opened(database, outbox.RECORD, *recording(job_id, 7)) <= {events, deliveries}
    assert await opened(database, outbox.CHATTER, job_id, 1) == {deliveries}
    claiming = ([HOST], [20], [0.0], [datetime(2020, 1, 1, tzinfo=UTC)], 100, 10.0)
    assert await opened(database, outbox.CLAIM, *claiming) == set()
    listing, arguments = outbox.list_statement(DeliveryFilter("pending"), TENANT, 10)
    assert await opened(database, listing, *arguments) == set()


async def test_a_settlement_opens_no_day_where_nothing_is_written(database: Database) -> None:
    """It has an INSERT INTO events and one into the outbox, as every statement that moves jobs; mostly of no row."""
    locked = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation = ANY ($1::regclass[])"
    names = [name for table in OF_JOBS for name in await days_of(database, table)]
    for verb, opened_days in ((Verb.COMPLETE, 0), (Verb.FAIL, 1)):
        job_id, token = await running(database)
        settled = Settlement(job_id, token, verb)
        settled.result = "1" if verb is Verb.COMPLETE else None
        settled.error = ERROR if verb is Verb.FAIL else None
        async with database.transaction() as connection:
            assert (await settle(connection, [settled])).answers[0].ok
            assert await connection.fetchval(locked, names) == opened_days
