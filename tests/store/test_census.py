"""The last counts at once, for those who would rather not wait for a look that takes its time."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.errors import DatabaseUnavailable
from app.store.census import Census
from app.store.database import Database
from app.store.kept import CHEAP_SECONDS, LONGEST_KEPT_SECONDS, WARM_SECONDS, WARM_SHARE
from tests.patience import until
from tests.store.making import job, put

WAITS = (
    "SELECT true FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%''ready'' AS part%'"
)


@asynccontextmanager
async def looks_hang(database: Database) -> AsyncIterator[None]:
    """Every look is held up, as by a million waiting jobs."""
    async with database.transaction() as connection:
        await connection.execute("LOCK TABLE queue_limits IN ACCESS EXCLUSIVE MODE")
        yield


async def queued(census: Census) -> int:
    return sum(count.states["queued"] for count in (await census.latest()).values())


async def test_while_a_look_takes_its_time_the_last_one_is_told(database: Database) -> None:
    census = Census(database)
    await put(database, job())
    assert await queued(census) == 1
    await put(database, job())
    assert await queued(census) == 2, "a cheap look is taken anew"
    await put(database, job())
    async with looks_hang(database):
        assert [await queued(census) for _ in range(3)] == [2, 2, 2]
        assert await database.fetchval(f"SELECT count(*) FROM ({WAITS}) AS looks") == 1, "one look for all"

    async def shows_all() -> bool:
        return await queued(census) == 3

    await until(shows_all)


async def test_the_first_look_is_waited_for_and_so_is_one_after_a_long_while(database: Database) -> None:
    census = Census(database)
    await put(database, job())
    for _ in range(2):
        async with looks_hang(database):
            asked = [asyncio.create_task(queued(census)) for _ in range(3)]
            await until(lambda: database.fetchval(WAITS))
            assert not any(each.done() for each in asked)
        assert await asyncio.gather(*asked) == [1, 1, 1]
        census._looked_at -= LONGEST_KEPT_SECONDS + 1
        census._good_until = 0


async def test_who_hangs_up_does_not_end_the_look_of_the_others(database: Database) -> None:
    census = Census(database)
    await put(database, job())
    async with looks_hang(database):
        one, other = (asyncio.create_task(queued(census)) for _ in range(2))
        await until(lambda: database.fetchval(WAITS))
        one.cancel()
        await asyncio.wait([one])
    assert await other == 1


async def test_a_look_that_took_long_is_kept_for_a_while(database: Database) -> None:
    census = Census(database)
    await put(database, job())
    assert await queued(census) == 1
    census._took, census._good_until = 1.0, census._looked_at + LONGEST_KEPT_SECONDS
    await put(database, job())
    assert await queued(census) == 1
    assert (await census.take())["default"].states["queued"] == 1


async def test_a_database_that_is_away_is_told_only_when_there_is_nothing_else_to_tell(
    database: Database,
) -> None:
    census, other = Census(database), Census(database)
    await put(database, job())
    assert await queued(census) == 1
    await database.close()
    assert await queued(census) == 1
    with pytest.raises(DatabaseUnavailable):
        await queued(other)


async def test_it_is_kept_warm_where_that_is_cheap(database: Database) -> None:
    census = Census(database)
    await census.keep_warm()
    first = census._looked_at
    await census.keep_warm()
    assert census._looked_at == first, "it is warm"
    census._tried_at -= WARM_SECONDS + 1
    census._took = WARM_SHARE * WARM_SECONDS * 2
    await census.keep_warm()
    assert census._looked_at == first, "it would cost too much"
    census._took = CHEAP_SECONDS
    await census.keep_warm()
    assert census._looked_at > first


def test_the_fleet_looks_by_itself_for_no_more_than_its_share_of_the_time(database: Database) -> None:
    census = Census(database)
    assert census.may_look(float("inf"))
    census._took = 1.0
    assert census.may_look(1 / WARM_SHARE + 1)
    assert not census.may_look(1 / WARM_SHARE - 1), "another process has looked"
    census._tried_at = time.monotonic()
    assert not census.may_look(float("inf")), "its own look may have failed"
