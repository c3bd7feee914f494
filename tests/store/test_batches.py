"""Files and batches in the store: what is in use stays, and a batch is ended by one commit."""

from app.jobs.ids import new_id
from app.store import artifacts, batches, control, files
from app.store.database import Database
from app.store.files import NewFile
from app.store.prune import prune
from tests.store.making import TENANT, job, put, put_one
from tests.store.test_prune import USUAL, ended, planned, pruned

LINE = '{"custom_id": "a"}'


async def a_file(database: Database, keep_seconds: float | None = None) -> NewFile:
    file = NewFile(new_id(), TENANT, "lines.jsonl", "batch", 3, f"postgres:{new_id()}", keep_seconds)
    await artifacts.begin_upload(database, file.location)
    await files.add(database, file)
    return file


def an_output() -> NewFile:
    return NewFile(new_id(), TENANT, "output.jsonl", "batch_output", 3, f"postgres:{new_id()}", None)


async def a_batch(database: Database, input_id: str, job_id: str | None = None) -> str:
    batch = job_id or await put_one(database, kind="batch")
    await batches.add(database, batch, TENANT, input_id, "/v1/chat/completions", "24h")
    return batch


async def trash(database: Database) -> set[str]:
    return {row["location"] for row in await database.fetch("SELECT location FROM artifact_trash")}


async def test_the_bytes_of_a_file_are_in_the_trash_before_and_after_it(database: Database) -> None:
    file = await a_file(database)
    assert await trash(database) == set()
    assert await files.delete(database, file.id, "another") is None
    assert await files.delete(database, file.id, TENANT) is True
    assert await files.delete(database, file.id, TENANT) is None
    assert await trash(database) == {file.location}


async def test_a_file_that_a_batch_reads_stays_whatever_its_time(database: Database) -> None:
    file = await a_file(database, keep_seconds=-1)
    batch = await a_batch(database, file.id)
    assert await files.get(database, file.id, TENANT) is None
    assert await batches.input_file(database, file.id) is not None
    assert await files.delete(database, file.id, TENANT) is False
    assert await files.delete_expired(database, 10) == 0
    assert await batches.finalize(database, batch, None, None, 0, 0)
    assert await files.delete_expired(database, 10) == 1
    assert await trash(database) == {file.location}


async def test_of_two_who_end_a_batch_one_does(database: Database) -> None:
    batch = await a_batch(database, (await a_file(database)).id)
    first, second = an_output(), an_output()
    for file in (first, second):
        await artifacts.begin_upload(database, file.location)
    assert await batches.finalizing(database, batch, unless_since=60)
    assert not await batches.finalizing(database, batch, unless_since=60)
    assert await batches.finalize(database, batch, first, None, 1, 0)
    assert not await batches.finalize(database, batch, second, None, 1, 0)
    assert not await batches.finalizing(database, batch)
    found = await batches.of_job(database, batch)
    assert found is not None
    assert (found.output_file_id, found.completed, found.failed) == (first.id, 1, 0)
    assert await files.get(database, second.id, TENANT) is None
    assert await trash(database) == {second.location}


async def test_retention_waits_for_the_files_of_a_batch(database: Database) -> None:
    await planned(database)
    batch = await ended(database, days=9, kind="batch")
    line = await ended(database, days=9)
    await database.execute("UPDATE jobs SET parent_id = $2 WHERE id = $1", line, batch)
    await a_batch(database, (await a_file(database)).id, batch)
    assert await pruned(database) == 0
    assert await batches.finalize(database, batch, None, None, 0, 0)
    await database.execute("UPDATE retention_walks SET due_at = now(), after_id = ''")
    assert await pruned(database) == 2
    assert await batches.of_job(database, batch) is None
    assert await prune(database, USUAL, 5) is None


async def test_a_batch_goes_with_its_job_and_leaves_its_files(database: Database) -> None:
    file = await a_file(database)
    batch = await a_batch(database, file.id)
    await control.cancel(database, [batch], TENANT, None)
    assert [each.job_id for each in await batches.ended(database, 10)] == [batch]
    await control.delete(database, [batch], TENANT)
    assert await batches.ended(database, 10) == []
    assert not await batches.finalize(database, batch, None, None, 0, 0)
    assert await files.get(database, file.id, TENANT) is not None
    assert await files.delete(database, file.id, TENANT) is True


async def test_lines_are_the_children_with_a_name(database: Database) -> None:
    batch = await put_one(database)
    named, *_ = await put(
        database, job(parent_id=batch, metadata=LINE), job(parent_id=batch), job(metadata=LINE)
    )
    assert [line.id for line in await batches.lines(database, batch)] == [named]
    counts = await batches.count(database, batch)
    assert (counts.lines, counts.completed, counts.failed, counts.live) == (1, 0, 0, 1)
