"""What runs say lies in days that are dropped whole; states and posted events stay with their job."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import orjson
import pytest

from app.artifacts.store import ArtifactStore
from app.engine.janitor import Janitor
from app.store import partitions
from app.store.control import cancel, delete
from app.store.database import Database
from app.store.events import CHATTER_TYPES, READ, NewEvent, Want, append, read_pages
from app.store.history import ALL_EVENTS
from app.store.partitions import DAYS_AHEAD, renew
from tests.live_tables import write
from tests.patience import until
from tests.store.making import TENANT, put_one, running

TYPES = ["output", "progress", "log", "approve"]


def today() -> date:
    return datetime.now(UTC).date()


async def days_of(database: Database, table: str = "chatter") -> set[str]:
    rows = await database.fetch(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = $1::regclass",
        table,
    )
    return {row["relname"] for row in rows}


def names(table: str, *days: date) -> set[str]:
    return {f"{table}_rest", *(f"{table}_{day:%Y%m%d}" for day in days)}


def usual(table: str = "chatter") -> set[str]:
    return names(table, *(today() + timedelta(days=n) for n in range(DAYS_AHEAD + 1)))


async def talk(database: Database, job_id: str, token: str) -> None:
    await append(database, [NewEvent(job_id, name, f'{{"n":{n}}}', token) for n, name in enumerate(TYPES)])


async def make_day(database: Database, table: str, day: date) -> None:
    await database.execute(
        f"CREATE TABLE {table}_{day:%Y%m%d} PARTITION OF {table} "
        f"FOR VALUES FROM ('{day}Z') TO ('{day + timedelta(days=1)}Z')"
    )


async def logged(database: Database, want: Want) -> list[tuple[int, str]]:
    [page] = await read_pages(database, [want])
    assert page is not None
    return [(event.seq, event.type) for event in page.events]


async def test_chatter_and_states_are_one_log_to_the_reader(database: Database) -> None:
    job_id, token = await running(database)
    await talk(database, job_id, token)
    assert await database.fetchval("SELECT array_agg(type ORDER BY seq) FROM chatter") == list(TYPES[:3])
    assert await database.fetchval(f"SELECT array_agg(type ORDER BY seq) FROM {ALL_EVENTS} AS events") == [
        "queued",
        "loading",
        "approve",
    ]
    assert await logged(database, Want(job_id)) == [
        (1, "queued"),
        (2, "loading"),
        (3, "output"),
        (4, "progress"),
        (5, "log"),
        (6, "approve"),
    ]
    assert await logged(database, Want(job_id, 3, ("log", "approve"))) == [(5, "log"), (6, "approve")]
    assert await logged(database, Want(job_id, 3, max_rows=2)) == [(4, "progress"), (5, "log")]


async def test_pages_are_bounded_by_bytes_but_never_empty(database: Database) -> None:
    job_id = await put_one(database)
    await append(database, [NewEvent(job_id, "note", orjson.dumps("x" * 5000).decode()) for _ in range(10)])
    sizes, after = [], 0
    while True:
        [page] = await read_pages(database, [Want(job_id, after, max_bytes=12_000)])
        assert page is not None
        if page.is_last and not page.events:
            break
        sizes.append(len(page.events))
        assert page.next_after == page.events[-1].seq
        after = page.next_after
    assert sizes == [4, 3, 3, 1]
    [page] = await read_pages(database, [Want(job_id, 1, max_bytes=1)])
    assert page is not None
    assert len(page.events) == 1


async def test_many_logs_are_read_by_one_query_each_to_its_own_reader(database: Database) -> None:
    talking = [await running(database, queue=f"q{n}") for n in range(4)]
    for job_id, token in talking:
        await talk(database, job_id, token)
    wants = [Want(job_id, n % 3, ("output", "approve")) for n, (job_id, _) in enumerate(talking)]
    pages = await read_pages(database, [*wants, Want("0" * 26), Want(talking[0][0], 99)])
    for page in pages[:4]:
        assert page is not None
        assert [event.type for event in page.events] == ["output", "approve"]
        assert (page.state, page.seq, page.tenant, page.next_after) == ("loading", 6, TENANT, 6)
    assert pages[4] is None
    assert pages[5] is not None
    assert pages[5].events == []


async def test_days_are_made_ahead_and_dropped_when_they_are_over(database: Database) -> None:
    assert await days_of(database) == usual()
    for age in (1, 6, 7, 8, 30):
        await make_day(database, "chatter", today() - timedelta(days=age))
    await database.execute(f"DROP TABLE chatter_{today() + timedelta(days=2):%Y%m%d}")
    renewal = await renew(database, "chatter", 7)
    assert renewal is not None
    assert renewal.made == [today() + timedelta(days=2)]
    assert renewal.dropped == [today() - timedelta(days=30), today() - timedelta(days=8)]
    assert renewal.postponed == []
    assert await days_of(database) == usual() | names(
        "chatter", *(today() - timedelta(days=n) for n in (1, 6, 7))
    )
    again = await renew(database, "chatter", 7)
    assert again is not None
    assert (again.made, again.dropped, again.postponed) == ([], [], [])


async def test_a_job_keeps_its_states_and_its_numbers_when_its_chatter_is_dropped(database: Database) -> None:
    job_id, token = await running(database)
    await database.execute("UPDATE jobs SET created_at = now() - interval '9 days'")
    day = today() - timedelta(days=8)
    await make_day(database, "chatter", day)
    await talk(database, job_id, token)
    await database.execute("UPDATE chatter SET at = at - interval '8 days'")
    assert len(await logged(database, Want(job_id))) == 6
    await renew(database, "chatter", 7)
    assert await logged(database, Want(job_id)) == [(1, "queued"), (2, "loading"), (6, "approve")]
    [appended] = (await append(database, [NewEvent(job_id, "log", "{}", token)])).answers
    assert appended is not None
    assert appended.seq == 7


async def test_a_lock_held_by_somebody_postpones_the_dropping_and_stops_nobody(database: Database) -> None:
    old = today() - timedelta(days=9)
    await make_day(database, "chatter", old)
    async with database.transaction() as reader:
        # As a dump does, for hours.
        await reader.execute("LOCK TABLE chatter IN ACCESS SHARE MODE")
        renewal = await renew(database, "chatter", 7)
        assert renewal is not None
        assert renewal.postponed == [old]
        job_id, token = await running(database)
        await talk(database, job_id, token)
    renewal = await renew(database, "chatter", 7)
    assert renewal is not None
    assert renewal.dropped == [old]


async def sleep_through_all_days(database: Database, table: str) -> None:
    """As a machine that wakes up on a day for which nothing was made."""
    for n in range(DAYS_AHEAD + 1):
        await database.execute(f"DROP TABLE {table}_{today() + timedelta(days=n):%Y%m%d}")


async def test_rows_without_a_day_go_to_the_rest_and_move_into_their_day_when_it_is_made(
    database: Database,
) -> None:
    for table in ("chatter", "announcements"):
        await sleep_through_all_days(database, table)
    job_id, token = await running(database)
    await talk(database, job_id, token)
    feed = "SELECT xid, id, job_ids, seqs FROM announcements ORDER BY xid, id"
    announced = await database.fetch(feed)
    for table in ("chatter", "announcements"):
        assert await database.fetchval(f"SELECT count(*) FROM {table}_rest") >= 3
        renewal = await renew(database, table, 7)
        assert renewal is not None
        assert renewal.postponed == []
        assert today() in renewal.made
        assert await database.fetchval(f"SELECT count(*) FROM {table}_rest") == 0
    assert len(await logged(database, Want(job_id))) == 6
    assert await database.fetch(feed) == announced
    await talk(database, job_id, token)
    assert await database.fetchval("SELECT count(*) FROM chatter_rest") == 0


async def test_a_day_with_too_many_rows_in_the_rest_stays_there_until_they_are_old(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "MAX_MOVED", 2)
    monkeypatch.setattr(partitions, "REST_BATCH", 1)
    job_id, token = await running(database)
    await sleep_through_all_days(database, "chatter")
    await talk(database, job_id, token)
    renewal = await renew(database, "chatter", 7)
    assert renewal is not None
    # The others can be made.
    assert renewal.postponed == [today()]
    assert len(renewal.made) == DAYS_AHEAD
    assert len(await logged(database, Want(job_id))) == 6
    await database.execute("UPDATE chatter SET at = at - interval '30 days'")
    await renew(database, "chatter", 7)
    assert await database.fetchval("SELECT count(*) FROM chatter_rest") == 0


async def test_a_janitor_looks_after_its_days_when_it_wakes_up_on_another(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    janitor = Janitor(database, ArtifactStore(database, None), chatter_days=7)
    await janitor._run_once()
    await database.execute(f"DROP TABLE chatter_{today():%Y%m%d}")
    await janitor._run_once()
    assert f"chatter_{today():%Y%m%d}" not in await days_of(database)
    # Days have gone by of which its clock knows nothing.
    monkeypatch.setattr(janitor, "_renewed_on", today() - timedelta(days=5))
    await janitor._run_once()
    assert f"chatter_{today():%Y%m%d}" in await days_of(database)


async def test_several_janitors_at_once_do_not_disturb_each_other(database: Database) -> None:
    await database.execute(f"DROP TABLE chatter_{today():%Y%m%d}")
    await make_day(database, "chatter", today() - timedelta(days=9))
    await asyncio.gather(*(renew(database, "chatter", 7) for _ in range(6)))
    assert await days_of(database) == usual()


WAITING_FOR_THE_REST = (
    "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'chatter_rest'::regclass"
)


async def test_a_janitor_at_work_keeps_the_others_out_until_it_is_done(database: Database) -> None:
    async with database.transaction() as somebody:
        await somebody.execute("LOCK TABLE chatter_rest IN EXCLUSIVE MODE")
        first = asyncio.create_task(renew(database, "chatter", 7))
        await until(lambda: database.fetchval(WAITING_FOR_THE_REST))
        assert await renew(database, "chatter", 7) is None
        assert not first.done()
    assert await first is not None


async def test_a_deleted_job_takes_all_of_its_log_with_it(database: Database) -> None:
    job_id, token = await running(database)
    kept, kept_token = await running(database, queue="other")
    await talk(database, job_id, token)
    await talk(database, kept, kept_token)
    await cancel(database, [job_id], TENANT, None)
    await write(
        database,
        "UPDATE jobs SET state = 'cancelled', completed_at = now(), lease_token = NULL WHERE id = $1",
        job_id,
    )
    assert (await delete(database, [job_id], TENANT)).answers
    for table in ("events", "chatter"):
        rows = await database.fetch(f"SELECT DISTINCT job_id FROM {table}")
        assert [row["job_id"] for row in rows] == [kept]


@pytest.fixture
def explained(database: Database) -> Any:
    async def explain(want: Want) -> list[dict[str, Any]]:
        """The scans that were really made, of all that the plan could have made."""
        async with database.connection() as connection:
            text = await connection.fetchval(
                f"EXPLAIN (ANALYZE, FORMAT JSON) {READ}",
                [want.job_id],
                [want.after],
                [None if want.types is None else "{" + ",".join(want.types) + "}"],
                [want.chatty],
                [want.max_rows],
                [want.max_bytes],
                [want.tenant],
                want.job_id,
                want.job_id,
            )
        return [node for node in _nodes(orjson.loads(text)[0]["Plan"]) if node["Actual Loops"] > 0]

    return explain


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


async def test_a_log_is_read_from_its_own_days_by_key_alone(database: Database, explained: Any) -> None:
    for age in range(1, 15):
        await make_day(database, "chatter", today() - timedelta(days=age))
    await database.execute(
        "INSERT INTO chatter (job_id, seq, type, state, data, at) "
        "SELECT lpad(n::text, 26, '0'), n % 50, 'output', 'working', '{}', now() - (n % 14) * interval '1 day' "
        "FROM generate_series(1, 20000) n"
    )
    await database.execute(
        "INSERT INTO events (job_id, seq, type, state) "
        "SELECT lpad(n::text, 26, '0'), 1, 'queued', 'queued' FROM generate_series(1, 5000) n"
    )
    job_id, token = await running(database)
    await talk(database, job_id, token)
    await database.execute("ANALYZE")
    scans = [node for node in await explained(Want(job_id)) if "Relation Name" in node]
    assert {node["Relation Name"] for node in scans} <= {
        "jobs",
        *await days_of(database, "events"),
        # An hour on either side for the clocks: around midnight that is two days.
        *(f"chatter_{today() + timedelta(days=n):%Y%m%d}" for n in (-1, 0, 1)),
    }
    # The table of jobs has one row here, and is read as such.
    logs = [node for node in scans if node["Relation Name"] != "jobs"]
    assert all(node["Node Type"].startswith("Index") for node in logs), logs
    only_states = await explained(Want(job_id, types=("done", "approve")))
    assert not any(str(node.get("Relation Name", "")).startswith("chatter") for node in only_states)


async def test_events_of_an_older_version_that_lie_in_the_other_table_are_still_read(
    database: Database,
) -> None:
    """Before there was chatter, everything was written into `events`; nothing was moved."""
    job_id, token = await running(database)
    await database.execute(
        "INSERT INTO events (job_id, seq, type, state, data) VALUES ($1, 3, 'output', 'working', '{}')",
        job_id,
    )
    await database.execute("UPDATE jobs SET seq = 3")
    await talk(database, job_id, token)
    assert [seq for seq, _ in await logged(database, Want(job_id))] == [1, 2, 3, 4, 5, 6, 7]
    assert await logged(database, Want(job_id, types=("output",))) == [(3, "output"), (4, "output")]
    assert set(TYPES[:3]) == set(CHATTER_TYPES)
