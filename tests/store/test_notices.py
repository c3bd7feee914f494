"""NOTIFY as a coalesced hint: few notices, each small enough for Postgres."""

import asyncio
from typing import Any

import asyncpg
import orjson

from app.jobs.ids import new_id
from app.store.changes import Changes
from app.store.database import Database
from app.store.notices import CHANNEL, MAX_BYTES, send


async def heard(
    database: Database, database_url: str, *, many: bool = False, **notice: Any
) -> list[dict[str, Any]]:
    """What a listener hears of one send; ends with a notice of our own."""
    got: asyncio.Queue[str] = asyncio.Queue()
    listener = await asyncpg.connect(database_url)
    try:
        await listener.add_listener(CHANNEL, lambda *message: got.put_nowait(message[-1]))
        assert await send(database, "me", Changes(**notice), many=many)
        await database.execute("SELECT pg_notify($1, 'end')", CHANNEL)
        texts = []
        async with asyncio.timeout(5):
            while (text := await got.get()) != "end":
                assert len(text.encode()) <= MAX_BYTES
                texts.append(text)
        return [orjson.loads(text) for text in texts]
    finally:
        await listener.close()


async def test_a_small_notice_is_one_notice(database: Database, database_url: str) -> None:
    told: dict[str, Any] = {"work": {("q", "noop")}, "cancels": {"c"}, "room": {"r"}, "settings": {"s"}}
    rest = {"from": "me", "work": [["q", "noop"]], "cancels": ["c"], "room": ["r"], "settings": ["s"]}
    [notice] = await heard(database, database_url, jobs={"a"}, **told)
    assert notice == {**rest, "jobs": ["a"]}
    [notice] = await heard(database, database_url, jobs={"a"}, many=True, **told)
    assert notice == {**rest, "jobs": ["a"], "many": True}, "these, and more than these"


async def test_a_large_notice_is_split_and_nothing_is_lost(database: Database, database_url: str) -> None:
    jobs = {new_id() for _ in range(900)}
    cancels = {new_id() for _ in range(700)}
    work = {(f"queue-{n}", "llm|||" + "é" * 100) for n in range(60)}
    notices = await heard(database, database_url, jobs=jobs, cancels=cancels, work=work)
    assert {each for notice in notices for each in notice.get("jobs", ())} == jobs
    assert {each for notice in notices for each in notice.get("cancels", ())} == cancels
    assert {tuple(each) for notice in notices for each in notice.get("work", ())} == work
    [notice, *_] = await heard(database, database_url, jobs=jobs, cancels=cancels, work=work, many=True)
    assert notice["many"]
    assert all(notice["from"] == "me" for notice in notices)
    assert 2 < len(notices) < 40


async def test_a_hint_that_cannot_fit_is_dropped_and_its_neighbours_are_not(
    database: Database, database_url: str
) -> None:
    notices = await heard(database, database_url, jobs={"a", "b"}, work={("q", "x" * 9000), ("q", "small")})
    assert {each for notice in notices for each in notice.get("jobs", ())} == {"a", "b"}
    assert ["q", "small"] in [each for notice in notices for each in notice.get("work", ())]
