"""Output in rows: on one beat for all, few while nobody reads them, the last with the settlement."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import pytest

from app.engine import event_writer
from app.engine.event_writer import EventWriter, Transcript
from app.errors import Unavailable
from app.events.hub import Hub
from app.events.live_output import LiveOutputs
from app.store.changes import Changes
from app.store.database import Database
from app.store.events import NewEvent
from tests.patience import turn_of_the_loop, until
from tests.store.making import claim, put_one


class Store:
    """Notes what is appended, in place of the statement; `gate` holds it up."""

    def __init__(self) -> None:
        self.batches: list[list[NewEvent]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.problem: Exception | None = None

    async def append(self, _database: Any, events: Sequence[NewEvent]) -> Changes[Any]:
        self.batches.append(list(events))
        await self.gate.wait()
        if self.problem is not None:
            raise self.problem
        return Changes([None] * len(events))

    @property
    def texts(self) -> list[str]:
        return [orjson.loads(event.data or "")["text"] for batch in self.batches for event in batch]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(event_writer, "append", store.append)
    monkeypatch.setattr(event_writer, "FIRST_ROW_SECONDS", 0.0)
    return store


@pytest.fixture
async def writer(database: Database) -> AsyncIterator[EventWriter]:
    hub = Hub(database, None, 3600)
    writer = EventWriter(database, hub, LiveOutputs())
    yield writer
    await writer.drain()


async def transcripts(database: Database, writer: EventWriter, number: int, **more: Any) -> list[Transcript]:
    for _ in range(number):
        await put_one(database, **more)
    return [Transcript(writer, job) for job in await claim(database)]


async def test_all_jobs_write_on_the_same_beat(database: Database, writer: EventWriter, store: Store) -> None:
    spoken = await transcripts(database, writer, 3)
    for each in spoken:
        each.say("a")
        each.say("b")
    await until(lambda: store.batches)
    assert [len(batch) for batch in store.batches] == [3]
    assert store.texts == ["ab"] * 3


async def test_a_slow_database_gets_larger_rows_and_not_more(
    database: Database, writer: EventWriter, store: Store
) -> None:
    [one] = await transcripts(database, writer, 1)
    store.gate.clear()
    one.say("a")
    await until(lambda: store.batches)
    one.say("b")
    one.say("c")
    # However many beats go by.
    [other] = await transcripts(database, writer, 1)
    assert one._row is not None
    assert not one.is_due(float("inf"))
    store.gate.set()
    await until(lambda: len(store.texts) == 2)
    assert store.texts == ["a", "bc"]
    other.close()


async def test_what_is_left_at_the_end_is_for_the_settlement_and_follows_what_is_on_its_way(
    database: Database, writer: EventWriter, store: Store
) -> None:
    [one] = await transcripts(database, writer, 1)
    store.gate.clear()
    one.say("a")
    await until(lambda: store.batches)
    one.say("b")
    finishing = asyncio.ensure_future(one.finish(result_follows=True))
    await turn_of_the_loop()
    assert not finishing.done()
    store.gate.set()
    last = orjson.loads(await finishing or "")
    assert (last["offset"], last["text"]) == (1, "b")
    assert store.texts == ["a"]
    assert not writer._speaking


async def test_a_quick_run_leaves_no_row_if_its_result_says_it_all(
    database: Database, writer: EventWriter, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_writer, "FIRST_ROW_SECONDS", 3600.0)
    monkeypatch.setattr(event_writer, "QUICK_SECONDS", 3600.0)
    text, more, failed = await transcripts(database, writer, 3)
    text.say("all")
    more.say("all")
    more.say({"message": {"thinking": "hm"}})
    failed.say("all")
    assert await text.finish(result_follows=True) is None
    assert orjson.loads(await more.finish(result_follows=True) or "")["parts"][0] == "all"
    assert orjson.loads(await failed.finish(result_follows=False) or "")["text"] == "all"
    assert store.batches == []


async def test_a_run_that_took_its_time_leaves_what_it_said(
    database: Database, writer: EventWriter, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody read its log, and so no row was written before its end."""
    monkeypatch.setattr(event_writer, "FIRST_ROW_SECONDS", 3600.0)
    monkeypatch.setattr(event_writer, "QUICK_SECONDS", 0.0)
    [one] = await transcripts(database, writer, 1)
    one.say("all")
    await until(lambda: time.monotonic() > one._began)
    assert orjson.loads(await one.finish(result_follows=True) or "")["text"] == "all"
    assert store.batches == []


async def test_whoever_gets_webhooks_gets_one_of_the_last_row(
    database: Database, writer: EventWriter, store: Store
) -> None:
    [one] = await transcripts(database, writer, 1, webhook_url="https://example.org/")
    one.say("a")
    assert await one.finish(result_follows=False) is None
    assert store.texts == ["a"]


async def test_rows_that_cannot_be_written_keep_no_run_from_its_end(
    database: Database, writer: EventWriter, store: Store
) -> None:
    [one] = await transcripts(database, writer, 1)
    store.problem = Unavailable("away")
    one.say("a")
    await until(lambda: store.batches)
    one.say("b")
    assert orjson.loads(await one.finish(result_follows=True) or "")["text"] == "b"


class Readers:
    """Whether anybody reads."""

    def __init__(self) -> None:
        self.there = False

    def log_is_read(self, _job_id: str) -> bool:
        return self.there


async def test_rows_are_few_while_nobody_reads_them(
    database: Database, writer: EventWriter, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = Readers()
    monkeypatch.setattr(writer._hub, "log_is_read", readers.log_is_read)
    monkeypatch.setattr(writer, "_on_beat", lambda: None)
    [one] = await transcripts(database, writer, 1)
    before = time.monotonic()
    one.say("a")
    assert not one.is_due(before + 0.9)
    assert one.is_due(time.monotonic() + 1.0)
    readers.there = True
    one.write_row(before)
    await until(lambda: one._row is None)
    # At most one row per 100 ms, counted from beat to beat.
    one.say("b")
    assert not one.is_due(before + 0.04)
    assert one.is_due(before + 0.1)
    readers.there = False
    one.write_row(before)
    await until(lambda: one._row is None)
    one.say("c")
    assert not one.is_due(before + 0.9)
    assert one.is_due(before + 1.0)
    one.close()


async def test_rows_of_a_response_come_at_once_for_whoever_heard_it_may_come_back(
    database: Database, writer: EventWriter, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer._hub, "log_is_read", Readers().log_is_read)
    monkeypatch.setattr(writer, "_on_beat", lambda: None)
    [one] = await transcripts(database, writer, 1, dialect="responses")
    before = time.monotonic()
    one.say({"text": "a"})
    assert one.is_due(time.monotonic())
    one.write_row(before)
    await until(lambda: one._row is None)
    one.say({"text": "b"})
    assert one.is_due(before + 0.1)
    assert store.texts == ["a"]
    one.close()
