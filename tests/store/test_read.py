"""Reading jobs: by filter, newest first; positions; where each job's log stands."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from ulid import ULID

from app.store.control import cancel
from app.store.database import Database
from app.store.read import (
    POSITION_LIMIT,
    Filter,
    get_job,
    know_queues,
    list_jobs,
    list_statements,
    moved_past,
    queue_position,
)
from tests.live_tables import write
from tests.store.making import TENANT, claim_one, job, put, put_one, running


async def listed(database: Database, limit: int = 100, tenant: str = TENANT, **wanted: Any) -> list[str]:
    page = await list_jobs(database, Filter(**wanted), tenant, limit)
    return [row.id for row in page.jobs]


async def test_a_job_is_read_by_its_own_tenant_only(database: Database) -> None:
    job_id = await put_one(database)
    assert (await get_job(database, job_id, TENANT)) is not None
    assert (await get_job(database, job_id, "acme")) is None
    assert (await get_job(database, "0" * 26, TENANT)) is None


async def test_lists_are_newest_first_and_stop_at_the_limit(database: Database) -> None:
    ids = [await put_one(database) for _ in range(5)]
    await put_one(database, tenant="acme")
    assert await listed(database) == ids[::-1]
    assert await listed(database, 2) == ids[:2:-1]
    assert await listed(database, 2, before=ids[3]) == ids[2:0:-1]


async def test_each_filter_filters_and_they_add_up(database: Database) -> None:
    a = await put_one(database, queue="q1", kind="report", model="m", metadata='{"user":"ann","team":"x"}')
    b = await put_one(database, queue="q1", kind="noop", metadata='{"user":"bob","team":"x"}')
    c = await put_one(database, queue="q2", kind="report", lane="c")
    await cancel(database, [c], TENANT, None)
    assert await listed(database, queue="q1") == [b, a]
    assert await listed(database, kind="report") == [c, a]
    assert await listed(database, model="m") == [a]
    assert await listed(database, states=["cancelled"]) == [c]
    assert await listed(database, states=["cancelled", "queued"]) == [c, b, a]
    assert await listed(database, metadata={"team": "x"}) == [b, a]
    assert await listed(database, metadata={"team": "x", "user": "ann"}) == [a]
    assert await listed(database, metadata={"user": "nobody"}) == []
    assert await listed(database, queue="q1", kind="noop", states=["queued"], metadata={"user": "bob"}) == [b]
    assert await listed(database, queue="q2", states=["queued"]) == []


async def test_since_and_until_cut_by_the_moment_of_submission(database: Database) -> None:
    moments = [datetime(2030, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    ids = [str(ULID.from_datetime(moment)) for moment in moments]
    await put(database, *(job(id=each) for each in ids))
    assert await listed(database, since=moments[1]) == [ids[2], ids[1]]
    assert await listed(database, until=moments[1]) == [ids[0]]
    assert await listed(database, since=moments[1], until=moments[2]) == [ids[1]]
    assert await listed(database, since=moments[2] + timedelta(milliseconds=1)) == []
    assert (
        await listed(database, since=datetime(1, 1, 1, tzinfo=UTC), until=datetime.max.replace(tzinfo=UTC))
        == ids[::-1]
    )


@pytest.mark.parametrize("evil", ["' OR 1=1 --", "$1", "%s", "{}", "\\'; DROP TABLE jobs"])
async def test_values_travel_as_parameters_only(database: Database, evil: str) -> None:
    job_id = await put_one(database, model=evil)
    wanted = Filter(model=evil, queue=evil, metadata={evil: evil})
    for statement, arguments in list_statements(wanted, TENANT, 5):
        assert evil not in statement.replace("${", "") or evil == "$1"
        assert evil in arguments
    assert await listed(database, model=evil) == [job_id]
    assert await listed(database, queue=evil, metadata={evil: evil}) == []


async def position(database: Database, job_id: str) -> int | None:
    job = await get_job(database, job_id, TENANT)
    assert job is not None
    return await queue_position(database, job)


async def test_the_position_counts_who_goes_first(database: Database) -> None:
    first, second, better, other_lane, _scheduled = [
        await put_one(database, **fields)
        for fields in ({}, {}, {"priority": 1}, {"lane": "b"}, {"delay_seconds": 60})
    ]
    ids = (better, first, second, other_lane)
    assert [await position(database, each) for each in ids] == [1, 2, 3, 1]


async def test_what_is_not_claimable_has_no_position(database: Database) -> None:
    scheduled = await put_one(database, delay_seconds=60)
    loading, _ = await running(database)
    for job_id in (scheduled, loading):
        assert await position(database, job_id) is None


async def test_a_position_far_back_is_counted_to_a_bound_only(database: Database) -> None:
    await write(
        database,
        "INSERT INTO jobs (id, tenant, queue, lane, kind, state, payload, ready_at, history) "
        "SELECT lpad(n::text, 26, '0'), 'default', 'default', 'noop', 'noop', 'queued', '{}', now(), '' "
        "FROM generate_series(1, $1::int) n",
        POSITION_LIMIT + 5,
    )
    last = await put_one(database)
    assert await position(database, last) == POSITION_LIMIT + 1


async def test_a_job_has_moved_past_what_was_seen_of_it_or_is_gone(database: Database) -> None:
    queued = await put_one(database, lane="b")
    claimed = await put_one(database)
    await claim_one(database, claimed)
    assert await moved_past(database, {queued: 1, claimed: 2}) == []
    seen = {queued: 0, claimed: 1, "0" * 26: 7}
    assert sorted(await moved_past(database, seen)) == sorted(seen)
    assert await moved_past(database, {queued: 1, claimed: 1}) == [claimed]


async def test_queues_are_remembered_once(database: Database) -> None:
    await know_queues(database, ["b", "a"])
    await know_queues(database, ["a", "c"])
    assert [row["name"] for row in await database.fetch("SELECT name FROM queues ORDER BY name")] == [
        "a",
        "b",
        "c",
    ]


async def pages(database: Database, wanted: Filter, limit: int, looked: int) -> list[list[str]]:
    """All pages of a list that looks at so many jobs at a time."""
    found = []
    while True:
        page = await list_jobs(database, wanted, TENANT, limit, looked=looked, seconds=0)
        found.append([row.id for row in page.jobs])
        if page.next_before is None:
            return found
        wanted = replace(wanted, before=page.next_before)


async def test_a_page_looks_at_a_bounded_number_of_jobs_and_says_where_to_go_on(database: Database) -> None:
    ids = [await put_one(database, kind="rare" if n in {1, 8} else "noop") for n in range(10)]
    assert await pages(database, Filter(kind="rare"), 5, 4) == [[ids[8]], [], [ids[1]]]
    assert await pages(database, Filter(kind="rare"), 1, 4) == [[ids[8]], [], [ids[1]]]
    assert await pages(database, Filter(kind="never-used"), 5, 4) == [[], [], []]
    assert await pages(database, Filter(kind="never-used"), 5, 100) == [[]]
    assert await pages(database, Filter(), 4, 4) == [ids[:5:-1], ids[5:1:-1], ids[1::-1]]
    assert await pages(database, Filter(kind="rare", since=datetime(2020, 1, 1, tzinfo=UTC)), 5, 100) == [
        [ids[8], ids[1]]
    ]


async def test_a_page_goes_on_looking_until_it_is_full_or_the_time_is_over(database: Database) -> None:
    ids = [await put_one(database, kind="rare" if n in {1, 4, 8} else "noop") for n in range(10)]

    async def look(limit: int) -> tuple[list[str], str | None]:
        page = await list_jobs(database, Filter(kind="rare"), TENANT, limit, looked=2, seconds=3600)
        return [row.id for row in page.jobs], page.next_before

    assert await look(5) == ([ids[8], ids[4], ids[1]], None)
    assert (await look(2))[0] == [ids[8], ids[4]]
    assert (await look(2))[1] is not None


async def test_a_page_over_several_states_goes_as_far_as_all_of_them_were_looked_at(
    database: Database,
) -> None:
    ids = [await put_one(database, kind="rare" if n % 3 == 0 else "noop") for n in range(12)]
    for job_id in ids[6:]:
        await cancel(database, [job_id], TENANT, None)
    found = await pages(database, Filter(states=["queued", "cancelled"], kind="rare"), 10, 2)
    assert [job_id for page in found for job_id in page] == ids[9::-3]
    assert await pages(database, Filter(states=["queued", "cancelled"]), 5, 100) == [
        ids[:6:-1],
        ids[6:1:-1],
        ids[1::-1],
    ]


async def test_of_several_ways_the_one_that_comes_to_its_end_has_the_answer(database: Database) -> None:
    [mine] = [await put_one(database, queue="small", model="m")]
    await put(database, *(job(queue="large", model="m") for _ in range(10)))
    await cancel(database, [mine], TENANT, None)
    for wanted in (
        Filter(queue="small", model="m"),
        Filter(queue="small", states=["cancelled", "queued"]),
        Filter(queue="large", states=["cancelled"]),
        Filter(model="m", states=["cancelled"]),
    ):
        assert await pages(database, wanted, 5, 3) == [[] if wanted.queue == "large" else [mine]]


async def test_few_that_share_their_metadata_are_found_wherever_they_lie(database: Database) -> None:
    old = [await put_one(database, metadata='{"customer":"acme"}', kind=kind) for kind in ("a", "b", "b")]
    await put(database, *(job(metadata='{"customer":"other"}') for _ in range(20)))
    await put_one(database, metadata='{"customer":"acme"}', tenant="stranger")
    acme = {"customer": "acme"}
    assert await pages(database, Filter(metadata=acme), 5, 4) == [old[::-1]]
    assert await pages(database, Filter(metadata=acme), 2, 4) == [old[:0:-1], old[:1]]
    assert await pages(database, Filter(metadata=acme, kind="b"), 5, 4) == [old[:0:-1]]
    assert await pages(database, Filter(metadata={"customer": "nobody"}), 5, 4) == [[]]
