"""Jobs that are held back while their target is asleep."""

import asyncio

import pytest

from app.store import targets
from app.store.database import Database
from tests.patience import until
from tests.store.making import job, put

WAITS_FOR_A_LOCK = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def parked(database: Database, number: int) -> list[str]:
    """So many jobs, in two lanes of two queues, all of them held back."""
    ids = await put(
        database, *(job(queue=f"q{n % 2}", kind="chat", lane=f"llm|||m{n % 2}") for n in range(number))
    )
    for queue in ("q0", "q1"):
        await targets.park(database, queue, ["llm|||m0", "llm|||m1"])
    return ids


async def test_those_who_waited_are_let_go_in_batches_each_of_them_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "UNPARK_BATCH", 10)
    await parked(database, 25)
    told = []
    async for changes in targets.unpark(database):
        told.append(changes.work)
        # Their target is asleep again, or it was another's: not taken up a second time.
        for queue, lane in changes.work:
            await targets.park(database, queue, [lane])
    assert told == [{("q0", "llm|||m0"), ("q1", "llm|||m1")}] * 3
    assert await database.fetchval("SELECT count(*) FROM jobs WHERE reason = 'target_asleep'") == 25
    async for _ in targets.unpark(database):
        pass
    assert await database.fetchval("SELECT count(ready_at) FROM jobs") == 25


async def test_one_whose_row_is_held_meanwhile_is_not_left_asleep(database: Database) -> None:
    [held, *_] = await parked(database, 3)

    async def unpark() -> None:
        async for _ in targets.unpark(database):
            pass

    async with database.transaction() as connection:
        await connection.execute("UPDATE jobs SET seq = seq WHERE id = $1", held)
        unparking = asyncio.create_task(unpark())
        await until(lambda: unparking.done() or database.fetchval(WAITS_FOR_A_LOCK))
    await unparking
    assert await database.fetchval("SELECT count(ready_at) FROM jobs") == 3


async def test_the_lanes_that_are_waited_for_are_told_once_each(database: Database) -> None:
    assert await targets.parked_lanes(database) == []
    await parked(database, 9)
    assert await targets.parked_lanes(database) == ["llm|||m0", "llm|||m1"]
