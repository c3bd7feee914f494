"""The hub wakes who waits, soon and together; readers of logs share their queries."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import pytest
from structlog.testing import capture_logs

from app.events import neighbours
from app.events.hub import MANY, Hub
from app.events.log import LogReader
from app.loops.alarm import Alarm
from app.store import events, notices
from app.store.changes import Changes
from app.store.database import Database
from app.store.events import NewEvent, Page, Want, append
from app.telemetry import NOTICES
from tests.live_tables import write
from tests.patience import PATIENCE, turn_of_the_loop, until
from tests.store.making import job, put, put_one

POLL = 0.1


@pytest.fixture
async def hubs(database: Database, database_url: str) -> AsyncIterator[tuple[Hub, Hub]]:
    """Two processes' worth of hubs."""
    pair = Hub(database, database_url, 60), Hub(database, database_url, 60)
    for hub in pair:
        await hub.start()
    await until(lambda: all(hub._connection for hub in pair))
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


async def test_a_change_wakes_who_watches_here_and_elsewhere(
    hubs: tuple[Hub, Hub], database: Database
) -> None:
    here, there = hubs
    # They exist, and no more is in their logs than was seen: a hub looks once it listens, and would find a job
    # that is gone.
    job_id, another = await put_one(database), await put_one(database)
    with here.watch(job_id) as mine, there.watch(job_id) as theirs, there.watch(another) as other:
        other.seen = 1
        here.announce(Changes(jobs={job_id}))
        assert await mine.changed(1, 5)
        assert await theirs.changed(1, 5)
        assert not await other.changed(1, 0.05)
    assert not here._watches
    assert not there._watches


class Relay:
    """A way to the database on which the connections of the moment can be made to hang: open, and dead silent."""

    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self._socket = f"{query['host']}/.s.PGSQL.{query['port']}"
        self._name = parts.path
        self._user = parts.username
        self._lines: list[asyncio.StreamWriter] = []
        self._pumps: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def url(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            yield f"postgresql://{self._user}@127.0.0.1:{port}{self._name}?sslmode=disable"
        finally:
            self.hang()
            for line in self._lines:
                line.close()
            server.close()
            await server.wait_closed()

    def hang(self) -> None:
        for pump in self._pumps:
            pump.cancel()

    @property
    def connections(self) -> int:
        return len(self._lines) // 2

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(self._socket)
        self._lines += [writer, inner_writer]
        self._pumps += [
            asyncio.create_task(_pump(reader, inner_writer)),
            asyncio.create_task(_pump(inner_reader, writer)),
        ]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)


async def test_a_connection_that_hangs_is_replaced_and_heard_on_again(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "ANSWER_SECONDS", 0.3)
    relay = Relay(database_url)
    # Its log does not move, so that no look at it finds anything: what wakes was heard.
    job_id = await put_one(database)
    async with relay.url() as url:
        here, there = Hub(database, None, 3600), Hub(database, url, 3600)
        await here.start()
        await there.start()
        try:
            await until(lambda: there._connection)
            async with asyncio.timeout(10 * PATIENCE):
                relay.hang()
                # The look that it takes by itself every few seconds.
                there._listener.wake()
                with there.watch(job_id) as watch:
                    while not await watch.changed(1, 0.2):
                        here.announce(Changes(jobs={job_id}))
            assert relay.connections >= 2
        finally:
            await here.stop()
            await there.stop()


async def test_many_changes_leave_as_one_notice_and_are_looked_up(
    hubs: tuple[Hub, Hub], database: Database
) -> None:
    here, there = hubs
    ids = await put(database, *(job() for _ in range(MANY + 50)))
    sent = NOTICES.labels("sent")._value.get()
    with there.watch(ids[0]) as moved, there.watch(ids[1]) as still:
        moved.seen, still.seen = 0, 1
        here.announce(Changes(jobs=set(ids)))
        assert await moved.changed(0, 5)
        assert not await still.changed(1, 0.1)
    assert NOTICES.labels("sent")._value.get() - sent <= 2


async def test_watched_jobs_are_found_by_polling_alone(database: Database) -> None:
    hub = Hub(database, None, POLL)
    await hub.start()
    try:
        job_id, gone = await put_one(database), await put_one(database)
        with hub.watch(job_id) as watch, hub.watch(gone) as lost:
            assert await watch.changed(0, 5), "the first event was not seen"
            assert await lost.changed(0, 5)
            assert not await watch.changed(1, 3 * POLL)
            await append(database, [NewEvent(job_id, "note")])
            assert await watch.changed(1, 5)
            await write(database, "DELETE FROM jobs WHERE id = $1", gone)
            assert await lost.changed(1, 5)
    finally:
        await hub.stop()


async def test_a_closing_hub_lets_nobody_wait(database: Database) -> None:
    hub = Hub(database, None, 60)
    with hub.watch("a") as watch:
        waiting = asyncio.create_task(watch.changed(0, 60))
        await turn_of_the_loop()
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


async def test_a_log_is_read_by_those_who_wait_for_its_rows_and_not_by_who_hears_the_run(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "ANSWERED_SECONDS", 0.0)
    hub = Hub(database, database_url, 3600)
    # Whoever hears nothing of the others cannot know whether they read.
    assert hub.log_is_read("a")
    await hub.start()
    try:
        await until(lambda: hub._connection and not hub.log_is_read("a"))
        with hub.watch("a") as watch:
            assert (hub.log_is_read("a"), hub.log_is_read("b")) == (True, False)
            with watch.hearing():
                assert not hub.log_is_read("a")
        with hub.any_change(lambda: None):
            assert hub.log_is_read("a")
        hub._heard('{"from":"another"}')
        assert hub.log_is_read("a")
    finally:
        await hub.stop()


async def test_that_it_listens_again_is_told_once_with_how_long_it_did_not(
    hubs: tuple[Hub, Hub], database: Database
) -> None:
    here, _ = hubs
    with capture_logs() as lines:
        connection = here._connection
        assert connection is not None
        connection._connection.terminate()
        await until(lambda: here._connection is not connection and here._lost_at is None)
    told = [line for line in lines if line["event"] == "hub.listens_again"]
    assert len(told) == 1
    assert told[0]["seconds"] >= 0
