"""The ledger of usage: each job is booked once, whether it stays or is deleted, and no row stops the others."""

from datetime import UTC, datetime, timedelta

from app.store.control import delete
from app.store.database import Database
from app.store.usage import book, sums
from tests.api.test_usage import OLD_ROWS
from tests.live_tables import write
from tests.store.making import TENANT, job, put

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC).date()
END = "UPDATE jobs SET state = 'done', completed_at = now(), ready_at = NULL, usage = $2 WHERE id = $1"


async def done_jobs(database: Database, usages: list[str]) -> list[str]:
    ids = await put(database, *(job() for _ in usages))
    for job_id, usage in zip(ids, usages, strict=True):
        await write(database, END, job_id, usage)
    return ids


async def tokens(database: Database) -> tuple[int, int]:
    """(jobs, prompt tokens) over all days."""
    rows = await sums(database, TENANT, LONG_AGO, datetime.now(UTC).date() + timedelta(days=1), None)
    return sum(row.jobs for row in rows), sum(row.prompt_tokens for row in rows)


async def test_each_job_is_booked_once(database: Database) -> None:
    await done_jobs(database, ['{"prompt_tokens":5}'] * 4)
    assert await tokens(database) == (4, 20)
    assert await book(database, 3) == 3
    assert await tokens(database) == (4, 20)
    assert await book(database, 3) == 1
    assert await book(database, 3) == 0
    assert await tokens(database) == (4, 20)


async def test_a_deleted_job_is_booked_with_its_end(database: Database) -> None:
    ids = await done_jobs(database, ['{"prompt_tokens":5}'] * 3)
    assert await book(database, 1) == 1
    for job_id in ids:
        assert (await delete(database, [job_id], TENANT)).answers
    assert await tokens(database) == (3, 15)
    assert await book(database, 10) == 0


async def test_one_unreadable_row_does_not_keep_the_others_from_being_booked(database: Database) -> None:
    await done_jobs(database, [*OLD_ROWS, '{"prompt_tokens":7}', '{"prompt_tokens":2e-1}'])
    assert await tokens(database) == (len(OLD_ROWS) + 2, 1 + 7)
    assert await book(database, 100) == len(OLD_ROWS) + 2
    assert await tokens(database) == (len(OLD_ROWS) + 2, 1 + 7)


async def test_sums_stop_at_the_largest_number_there_is(database: Database) -> None:
    await done_jobs(database, ['{"prompt_tokens":1000000000000}'] * 2)
    assert await book(database, 1) == 1
    await database.execute("UPDATE usage_days SET prompt_tokens = 9223372036854775807")
    assert (await tokens(database))[1] == 9223372036854775807
    assert await book(database, 1) == 1
    assert (await tokens(database))[1] == 9223372036854775807
