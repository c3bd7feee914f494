"""Retention: what goes, what stays, and how little is walked over twice."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from ulid import ULID

from app.engine.pruner import Pruner
from app.events.hub import Hub
from app.jobs.queue_settings import usual_retention
from app.store import prune as pruning
from app.store.database import Database
from app.store.history import ALL_EVENTS
from app.store.low_water import THE_BEGINNING
from app.store.prune import ALL, forget_keys, plan_walks, prune
from app.store.queues import QueueBook, configure
from tests.live_tables import write
from tests.patience import until
from tests.store.making import job, put, states_of

USUAL = usual_retention(7, 30)
WEEK = USUAL["done"]
ENDED = "UPDATE jobs SET state = $2, completed_at = now() - $3::interval WHERE id = $1"
MAKE_DUE = "UPDATE retention_walks SET due_at = now()"


async def ended(
    database: Database, days: float, state: str = "done", *, made_days: float | None = None, **fields: Any
) -> str:
    """A job that ended so many days ago, and was made then or before."""
    made = datetime.now(UTC) - timedelta(days=days if made_days is None else made_days)
    [job_id] = await put(database, job(id=str(ULID.from_datetime(made)), **fields))
    await write(database, ENDED, job_id, state, timedelta(days=days))
    return job_id


async def planned(database: Database, usual: dict[str, float] = USUAL) -> QueueBook:
    """Walks as a process would plan them that has just started."""
    book = QueueBook(database)
    pruner = Pruner(database, Hub(database, None, 1), book, 5, usual)
    await book.refresh()
    await pruner._plan()
    return book


async def pruned(database: Database, usual: dict[str, float] = USUAL) -> int:
    """How many jobs go in all the walks that are due."""
    jobs = 0
    while (batch := await prune(database, usual, 5)) is not None:
        jobs += len(batch.changes.answers)
        await database.execute(MAKE_DUE + " WHERE due_at < now() + interval '1 second'")
    return jobs


async def test_a_queue_that_nobody_configured_keeps_its_jobs_for_a_week_and_dead_letters_for_a_month(
    database: Database,
) -> None:
    going = [
        await ended(database, days, state, queue=f"q{state}")
        for state, days in (
            ("done", 7.1),
            ("cancelled", 7.1),
            ("stale", 8),
            ("failed", 30.1),
            ("dismissed", 31),
        )
    ]
    staying = [
        await ended(database, days, state, queue=f"q{state}")
        for state, days in (("done", 6.9), ("skipped", 6.9), ("failed", 29.9), ("dismissed", 8))
    ]
    [live] = await put(database, job(id=str(ULID.from_datetime(datetime.now(UTC) - timedelta(days=99)))))
    await planned(database)
    assert await pruned(database) == len(going)
    assert await states_of(database, *going) == ["gone"] * len(going)
    assert await states_of(database, *staying) == ["done", "skipped", "failed", "dismissed"]
    assert await states_of(database, live) == ["queued"]
    assert (
        await database.fetchval(
            f"SELECT count(*) FROM {ALL_EVENTS} AS events WHERE job_id = ANY ($1::text[])", going
        )
        == 0
    )


async def test_zero_keeps_for_ever_and_a_queue_says_so_for_itself(database: Database) -> None:
    await configure(database, "archive", {"retention": {"done": 0, "failed": 100 * 86_400}})
    await configure(database, "brief", {"retention": {"done": 3600}})
    kept = [
        await ended(database, 900, queue="archive"),
        await ended(database, 99, "failed", queue="archive"),
        await ended(database, 0.01, queue="brief"),
    ]
    gone = [
        await ended(database, 101, "failed", queue="archive"),
        await ended(database, 8, "cancelled", queue="archive"),
        await ended(database, 0.1, queue="brief"),
    ]
    await planned(database)
    walks = await database.fetch("SELECT queue, horizon_seconds FROM retention_walks ORDER BY queue")
    # The walk through all jobs comes to those of the archive in time; only the brief one needs one of its own.
    assert [tuple(walk) for walk in walks] == [(ALL, WEEK), ("brief", 3600)]
    assert await pruned(database) == 3
    assert await states_of(database, *kept) == ["done", "failed", "done"]
    assert await states_of(database, *gone) == ["gone"] * 3


async def test_with_no_retention_at_all_only_queues_with_their_own_are_walked(database: Database) -> None:
    for_ever = usual_retention(0, 0)
    kept = await ended(database, 900)
    gone = await ended(database, 900, queue="brief")
    await configure(database, "brief", {"retention": {"done": 1e6}})
    await planned(database, for_ever)
    assert await pruned(database, for_ever) == 1
    assert await states_of(database, kept, gone) == ["done", "gone"]


async def test_settings_count_from_the_moment_they_are_written(database: Database) -> None:
    kept = await ended(database, 8, queue="precious")
    await planned(database)
    # No book knows it yet.
    await configure(database, "precious", {"retention": {"done": 0}})
    assert await pruned(database) == 0
    assert await states_of(database, kept) == ["done"]


async def test_a_walk_goes_on_with_what_has_grown_old_and_begins_anew_only_now_and_then(
    database: Database, monkeypatch: Any
) -> None:
    monkeypatch.setattr(pruning, "BATCH", 2)
    for days in (40, 39, 38, 37, 36):
        await ended(database, 8, "failed", made_days=days)
    # Came long ago and ended yesterday: behind the walk by the time it is over.
    late = await ended(database, 1, made_days=35)
    await planned(database)
    assert await pruned(database) == 0
    place = await database.fetchval("SELECT after_id FROM retention_walks")
    assert place >= late
    assert await prune(database, USUAL, 5) is None, "rests"
    fresh = await ended(database, 7.5)
    await database.execute("UPDATE jobs SET completed_at = now() - interval '8 days' WHERE id = $1", late)
    await database.execute(MAKE_DUE)
    assert await pruned(database) == 1
    assert await states_of(database, late, fresh) == ["done", "gone"]
    await database.execute(MAKE_DUE + ", began_at = now() - interval '1 day'")
    assert await pruned(database) == 0
    await database.execute(MAKE_DUE)
    assert await pruned(database) == 1
    assert await states_of(database, late) == ["gone"]


async def test_a_change_of_the_retention_begins_the_walk_anew_at_once(database: Database) -> None:
    job_id = await ended(database, 1, queue="q")
    book = QueueBook(database)
    pruner = Pruner(database, Hub(database, None, 1), book, 5, USUAL)
    await configure(database, "q", {"retention": {"done": 5 * 86_400}})
    await book.refresh()
    await pruner._plan()
    assert await pruned(database) == 0
    await configure(database, "q", {"retention": {"done": 3600}})
    await book.refresh()
    await pruner._plan()
    assert await pruned(database) == 1
    assert await states_of(database, job_id) == ["gone"]
    await configure(database, "q", {})
    await book.refresh()
    await pruner._plan()
    assert [row["queue"] for row in await database.fetch("SELECT queue FROM retention_walks")] == [ALL]


async def test_retention_books_the_usage_of_what_it_removes(database: Database) -> None:
    await ended(database, 8)
    await database.execute("""UPDATE jobs SET model = 'm', usage = '{"prompt_tokens":5}'""")
    await planned(database)
    assert await pruned(database) == 1
    assert await database.fetchval("SELECT prompt_tokens FROM usage_days") == 5


async def test_one_replica_at_a_time_prunes(database: Database) -> None:
    await ended(database, 8)
    await planned(database)
    async with database.transaction() as connection:
        assert await connection.fetchval(pruning.ONE_AT_A_TIME)
        assert await prune(database, USUAL, 5) is None
        assert await forget_keys(database, THE_BEGINNING) == (0, None)
    assert await pruned(database) == 1


async def test_idempotency_keys_are_kept_for_more_than_a_day_and_then_forgotten(database: Database) -> None:
    for key, hours in (("old", 49), ("yesterday", 25)):
        await database.execute(
            "INSERT INTO idempotency_keys VALUES ('default', $1, 'x', 'id', now() - $2 * interval '1 hour')",
            key,
            hours,
        )
    assert await forget_keys(database, THE_BEGINNING) == (1, None)
    assert [row["key"] for row in await database.fetch("SELECT key FROM idempotency_keys")] == ["yesterday"]


KEYS = """
INSERT INTO idempotency_keys (tenant, key, fingerprint, job_ids, created_at)
SELECT 'default', $2 || n, '', '', now() - $3::interval - n * interval '1 ms' FROM generate_series(1, $1::int) n
"""
OLD_JOBS = """
INSERT INTO jobs (id, tenant, queue, lane, kind, state, payload, completed_at, history)
SELECT lpad(n::text, 26, '0'), 'default', 'q' || n % 7, 'noop', 'noop', 'done', '{}', now() - interval '8 days', ''
FROM generate_series(1, $1::int) n
"""


async def test_the_pruner_goes_on_until_all_old_keys_and_jobs_are_gone(database: Database) -> None:
    """And not with one batch a sweep, which is less than what a busy server makes in that time."""
    await database.execute(KEYS, 1_800, "old", timedelta(hours=48))
    await database.execute(KEYS, 10, "young", timedelta(hours=47))
    await database.execute(OLD_JOBS, 1_300)
    pruner = Pruner(database, Hub(database, None, 1), QueueBook(database), 3600, USUAL)
    await pruner.start()
    try:
        pruned = "SELECT (SELECT count(*) FROM idempotency_keys) <= 10 AND NOT EXISTS (SELECT 1 FROM jobs)"
        await until(lambda: database.fetchval(pruned))
    finally:
        await pruner.stop()
    left = await database.fetch("SELECT key FROM idempotency_keys")
    assert len(left) == 10
    assert all(row["key"].startswith("young") for row in left)


async def test_plans_of_ten_thousand_queues_are_one_statement(database: Database) -> None:
    await plan_walks(database, {f"q{n}": float(n) for n in range(1, 10_001)})
    assert await database.fetchval("SELECT count(*) FROM retention_walks") == 10_000
    await plan_walks(database, {f"q{n}": None for n in range(1, 10_001)})
    assert await database.fetchval("SELECT count(*) FROM retention_walks") == 0


def test_the_usual_retention_names_every_state_that_ends_a_job() -> None:
    assert json.loads(json.dumps(USUAL)) == {
        "cancelled": WEEK,
        "dismissed": 2_592_000,
        "done": WEEK,
        "expired": WEEK,
        "failed": 2_592_000,
        "skipped": WEEK,
        "stale": WEEK,
    }
