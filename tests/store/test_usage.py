"""The ledger of usage: each job is booked once, whether it stays or is deleted, and no row stops the others."""

from datetime import UTC, datetime, timedelta

from app.store.control import delete
from app.store.database import Database
from app.store.usage import book, sums, sums_by_key
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


async def by_key(database: Database, tenant: str = TENANT) -> dict[str | None, tuple[int, int, float]]:
    """(jobs, prompt tokens, load seconds) of each key over all days."""
    rows = await sums_by_key(database, tenant, LONG_AGO, datetime.now(UTC).date() + timedelta(days=1), None)
    assert len({row.key_id for row in rows}) == len(rows)
    return {row.key_id: (row.jobs, row.prompt_tokens, row.load_seconds) for row in rows}


async def test_what_each_key_used_adds_up_to_what_was_used_before_and_after_it_is_booked(
    database: Database,
) -> None:
    used = '{"prompt_tokens":5,"load_seconds":0.1}'
    for key_id, number in (("k1", 3), ("k2", 1), (None, 2)):
        for job_id in await put(database, *(job(key_id=key_id) for _ in range(number))):
            await write(database, END, job_id, used)
    expected = {"k1": (3, 15, 0.3), "k2": (1, 5, 0.1), None: (2, 10, 0.2)}
    assert await by_key(database) == expected
    assert await book(database, 4) == 4
    assert await by_key(database) == expected
    assert await book(database, 4) == 2
    assert await by_key(database) == expected
    assert await tokens(database) == (6, 30)


async def test_a_deleted_job_is_booked_on_its_key_as_well(database: Database) -> None:
    [job_id] = await put(database, job(key_id="k1"))
    await write(database, END, job_id, '{"prompt_tokens":5}')
    assert (await delete(database, [job_id], TENANT)).answers
    assert await by_key(database) == {"k1": (1, 5, 0.0)}


async def test_what_was_booked_before_keys_were_known_of_is_nobodys(database: Database) -> None:
    await database.execute(
        "INSERT INTO usage_days (tenant, model, day, jobs, prompt_tokens) VALUES ($1, '', current_date, 7, 70)",
        TENANT,
    )
    [job_id] = await put(database, job(key_id="k1"))
    await write(database, END, job_id, '{"prompt_tokens":5}')
    assert await book(database, 1) == 1
    assert await by_key(database) == {"k1": (1, 5, 0.0), None: (7, 70, 0.0)}


async def test_no_sum_of_a_key_is_below_nothing_where_the_sums_met_their_limit(database: Database) -> None:
    for job_id in await put(database, job(key_id="k1"), job()):
        await write(database, END, job_id, '{"prompt_tokens":5}')
    assert await book(database, 2) == 2
    await database.execute("UPDATE key_usage_days SET prompt_tokens = 9223372036854775807")
    assert (await by_key(database))["k1"][1] == 9223372036854775807
    assert (await by_key(database))[None][1] == 0
