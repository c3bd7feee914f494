"""The last ticks of each schedule, and no more of them."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from app.store import schedules
from app.store.database import Database
from app.store.schedules import KEPT_TICKS, Ticked
from tests.patience import until

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
WAITS = (
    "SELECT true FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'DELETE FROM schedules%'"
)


def ticks(*minutes: int, outcome: str = "accepted") -> list[Ticked]:
    return [Ticked(NOON + timedelta(minutes=minute), outcome, f"job-{minute}") for minute in minutes]


async def schedule(database: Database, name: str, tenant: str = "default") -> None:
    await schedules.put(database, name, tenant, "* * * * *", "UTC", "{}")


async def minutes(database: Database, name: str) -> list[int]:
    """Which are remembered, newest first."""
    found = (await schedules.last_ticks(database, [name]))[name]
    return [int((tick.at - NOON).total_seconds() // 60) for tick in found]


async def test_the_last_ten_are_kept_of_each(database: Database) -> None:
    for name in ("a", "b"):
        await schedule(database, name)
    for minute in range(13):
        await schedules.move_on(database, "a", NOON, ticks(minute))
    await schedules.move_on(database, "b", NOON, ticks(7))
    assert await minutes(database, "a") == list(range(12, 2, -1))
    assert await minutes(database, "b") == [7]
    assert await database.fetchval("SELECT count(*) FROM schedule_ticks") == KEPT_TICKS + 1
    found = await schedules.last_ticks(database, ["b", "a", "never heard of"])
    assert found["b"] == ticks(7)
    assert found["never heard of"] == []


@pytest.mark.parametrize("number", [1, 9, 10, 11, 25])
async def test_many_at_once_make_room_as_well(database: Database, number: int) -> None:
    await schedule(database, "a")
    await schedules.move_on(database, "a", NOON, ticks(*range(6)))
    await schedules.move_on(database, "a", NOON, ticks(*range(100, 100 + number)))
    newest_first = [*range(99 + number, 99, -1), *range(5, -1, -1)]
    assert await minutes(database, "a") == newest_first[:KEPT_TICKS]


async def test_a_moment_that_comes_twice_is_told_once_as_it_was_last(database: Database) -> None:
    await schedule(database, "a")
    await schedules.move_on(database, "a", NOON, ticks(*range(10)))
    await schedules.move_on(database, "a", NOON, ticks(0, outcome="queue_full"))
    [found] = (await schedules.last_ticks(database, ["a"])).values()
    assert len(found) == KEPT_TICKS
    assert found[-1] == ticks(0, outcome="queue_full")[0]


async def test_they_go_with_their_schedule(database: Database) -> None:
    for name in ("a", "b"):
        await schedule(database, name)
        await schedules.move_on(database, name, NOON, ticks(1))
    assert await schedules.delete(database, "default", "a")
    assert not await schedules.delete(database, "default", "a")
    await schedule(database, "a")
    assert await minutes(database, "a") == []
    assert await minutes(database, "b") == [1]


async def test_a_tick_that_is_just_being_written_goes_with_its_schedule_too(database: Database) -> None:
    await schedule(database, "a")
    async with database.transaction() as connection:
        await schedules.move_on(connection, "a", NOON, ticks(1))
        deleting = asyncio.create_task(schedules.delete(database, "default", "a"))
        await until(lambda: database.fetchval(WAITS))
    assert await deleting
    assert await minutes(database, "a") == []


async def test_a_schedule_of_the_same_name_of_another_tenant_has_its_own(database: Database) -> None:
    for tenant in ("default", "acme"):
        await schedule(database, "a", tenant)
    [mine], [theirs] = [
        await schedules.list_schedules(database, tenant, "a") for tenant in ("default", "acme")
    ]
    await schedules.move_on(database, theirs.name, NOON, ticks(1))
    found = await schedules.last_ticks(database, [mine.name, theirs.name])
    assert (found[mine.name], found[theirs.name]) == ([], ticks(1))
    assert await schedules.delete(database, "default", "a")
    assert await schedules.last_ticks(database, [theirs.name]) == {theirs.name: ticks(1)}
