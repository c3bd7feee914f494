"""The hub wakes who waits, soon and together; readers of logs share their queries."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.events.hub import MANY, Hub
from app.events.log import LogReader
from app.loops.alarm import Alarm
from app.store import events
from app.store.database import Database
from app.store.events import NewEvent, Page, Want, append
from app.telemetry import NOTICES
from tests.store.making import job, put, put_one

POLL = 0.1


@pytest.fixture
async def hubs(database: Database, database_url: str) -> AsyncIterator[tuple[Hub, Hub]]:
    """Two processes' worth of hubs."""
    pair = Hub(database, database_url, 60), Hub(database, database_url, 60)
    for hub in pair:
        hub.start()
    for hub in pair:
        async with asyncio.timeout(10):
            while hub._connection is None:
                await asyncio.sleep(0.01)
    yield pair
    for hub in pair:
        await hub.stop()


async def test_an_alarm_that_rang_before_the_wait_is_not_lost() -> None:
    alarm = Alarm()
    alarm.ring()
    assert await alarm.wait(0) is True
    assert await alarm.wait(0.01) is False
    asyncio.get_running_loop().call_later(0.01, alarm.ring)
    assert await alarm.wait(5) is True


async def test_a_change_wakes_who_watches_here_and_elsewhere(hubs: tuple[Hub, Hub]) -> None:
    here, there = hubs
    with here.watch("a") as mine, there.watch("a") as theirs, there.watch("b") as other:
        here.jobs_changed(["a"])
        assert await mine.changed(0, 5)
        assert await theirs.changed(0, 5)
        assert not await other.changed(0, 0.05)
    assert not here._watches
    assert not there._watches


async def test_many_changes_leave_as_one_notice_and_are_looked_up(
    hubs: tuple[Hub, Hub], database: Database
) -> None:
    here, there = hubs
    ids = await put(database, *(job() for _ in range(MANY + 50)))
    sent = NOTICES.labels("sent")._value.get()
    with there.watch(ids[0]) as moved, there.watch(ids[1]) as still:
        moved.seen, still.seen = 0, 1
        here.jobs_changed(ids)
        assert await moved.changed(0, 5)
        assert not await still.changed(1, 0.1)
    assert NOTICES.labels("sent")._value.get() - sent <= 2


async def test_watched_jobs_are_found_by_polling_alone(database: Database) -> None:
    hub = Hub(database, None, POLL)
    hub.start()
    try:
        job_id, gone = await put_one(database), await put_one(database)
        with hub.watch(job_id) as watch, hub.watch(gone) as lost:
            assert await watch.changed(0, 5), "the first event was not seen"
            assert await lost.changed(0, 5)
            assert not await watch.changed(1, 3 * POLL)
            await append(database, [NewEvent(job_id, "note")])
            assert await watch.changed(1, 5)
            await database.execute("DELETE FROM jobs WHERE id = $1", gone)
            assert await lost.changed(1, 5)
    finally:
        await hub.stop()


async def test_a_closing_hub_lets_nobody_wait(database: Database) -> None:
    hub = Hub(database, None, 60)
    with hub.watch("a") as watch:
        waiting = asyncio.create_task(watch.changed(0, 60))
        await asyncio.sleep(0)
        hub.close_watches()
        assert await asyncio.wait_for(waiting, 5)
    with hub.watch("b") as late:
        assert await late.changed(0, 60)


async def test_readers_who_come_together_are_answered_by_one_query(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await put(database, *(job() for _ in range(300)))
    asked: list[int] = []

    async def counting(where: Database, wants: list[Want]) -> list[Page | None]:
        asked.append(len(wants))
        return await events.read_pages(where, wants)

    monkeypatch.setattr("app.events.log.read_pages", counting)
    reader = LogReader(database)
    wants = [Want(each) for each in ids] + [Want(ids[0])] * 200
    pages = await asyncio.gather(*(reader.read(want) for want in wants))
    assert all(page is not None and len(page.events) == 1 for page in pages)
    # 500 readers of 300 logs.
    assert sum(asked) <= 310
    assert len(asked) <= 12
    assert len({id(page) for page in pages[300:]}) <= 4, "equal wishes were not answered alike"
