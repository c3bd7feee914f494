"""WorkerReport is written now and then, in one statement for everybody, not with every claim."""

import asyncpg
import pytest

from app.engine.worker_directory import WorkerDirectory
from app.store.database import Database
from app.store.workers import WorkerReport, list_workers, seen


def worker(
    name: str, queues: tuple[str, ...] = ("default",), kinds: tuple[str, ...] = ("a", "b")
) -> WorkerReport:
    return WorkerReport("default", name, queues, kinds, concurrency=3, version="v1")


async def row_of(database: Database, name: str) -> asyncpg.Record:
    row = await database.fetchrow("SELECT *, xmin::text AS written_by FROM workers WHERE name = $1", name)
    assert row is not None
    return row


async def test_who_is_new_is_written_at_once_and_who_comes_again_is_not(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = WorkerDirectory(database)
    woken: list[str] = []
    monkeypatch.setattr(book, "wake", lambda: woken.append("woken"))
    for _ in range(3):
        for _ in range(50):
            book.saw(worker("w1"))
            book.saw(worker("w2"))
        await book._write()
    assert len(woken) == 2
    first = await row_of(database, "w1")
    book.saw(worker("w1"))
    await book._write()
    # Written just now, by whomever: nothing changes, and no dead row is left behind.
    assert await row_of(database, "w1") == first


async def test_workers_with_lists_of_all_lengths_are_one_statement(database: Database) -> None:
    await seen(
        database,
        [worker("w2", ("a", "b", "c"), ()), worker("w1", ('it\'s "quoted", {really}',), ("ü",))],
        2.5,
    )
    found = {row.name: (row.queues, row.kinds) for row in await list_workers(database, "default")}
    assert found == {"w2": (["a", "b", "c"], []), "w1": (['it\'s "quoted", {really}'], ["ü"])}


async def test_what_changed_or_is_old_is_written_again(database: Database) -> None:
    await seen(database, [worker("w1"), worker("w2")], 2.5)
    await database.execute("UPDATE workers SET last_seen_at = now() - interval '1 minute' WHERE name = 'w2'")
    before = [await row_of(database, name) for name in ("w1", "w2")]
    await seen(database, [worker("w1", ("other",)), worker("w2")], 2.5)
    after = [await row_of(database, name) for name in ("w1", "w2")]
    assert after[0]["queues"] == ["other"]
    assert [new["last_seen_at"] > old["last_seen_at"] for new, old in zip(after, before, strict=True)] == [
        True,
        True,
    ]
