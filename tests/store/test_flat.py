"""A transaction held open elsewhere keeps what ran before from being removed. Whoever looks for live work steps over it:
the hundredth look reads no more than the second."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from app.jobs.states import Verb
from app.store import fair, limits, low_water, promote, queues, repair, sweep
from app.store.claims import Claimant, Claims
from app.store.database import Database
from app.store.queues import QueueBook
from app.store.settle import Settlement, settle
from tests.store import invariants
from tests.store.making import job, put

SIZE = 200
ROUNDS = 10


@pytest.fixture
async def held_open(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Somebody's transaction, which sees everything as it was before. No slack, or a test would last for minutes."""
    for module, name in ((low_water, "SLACK"), (fair, "SLACK"), (limits, "SLACK"), (promote, "SLACK")):
        monkeypatch.setattr(module, name, timedelta(0))
    monkeypatch.setattr(sweep, "CLAIM_SLACK", timedelta(0))
    async with database.connection() as other, other.transaction(isolation="repeatable_read"):
        await other.fetchval("SELECT count(*) FROM jobs")
        yield


async def entries_read(database: Database, *indexes: str) -> int:
    """Entries of these indexes that were looked at so far, also those of rows that are gone."""
    async with database.connection() as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        read = "SELECT sum(idx_tup_read)::int FROM pg_stat_user_indexes WHERE indexrelname = ANY ($1)"
        return int(await connection.fetchval(read, list(indexes)))


async def is_flat(database: Database, look: Callable[[], Awaitable[None]], *indexes: str) -> None:
    """What a look reads of these indexes, round after round of jobs that come and go."""
    read = []
    for _ in range(ROUNDS):
        before = await entries_read(database, *indexes)
        await look()
        read.append(await entries_read(database, *indexes) - before)
    assert max(read[2:]) <= read[1] + SIZE, read


async def run_all(database: Database, claims: Claims, queue: str) -> None:
    claimed = (await claims.claim(queue, ["noop"], [Claimant("w", SIZE, 30)])).answers
    assert len(claimed) == SIZE
    done = [Settlement(each.id, each.lease_token, Verb.COMPLETE, result="null") for each in claimed]
    await settle(database, done)


async def claims_of(database: Database, **settings: object) -> Claims:
    await queues.configure(database, "ruled", settings)
    book = QueueBook(database)
    await book.refresh()
    return Claims(database, book)


@pytest.mark.usefixtures("held_open")
async def test_claims_of_a_fair_queue(database: Database) -> None:
    claims = await claims_of(database, fair_by="user")

    async def look() -> None:
        users = [f"u{n % 20}" for n in range(SIZE)]
        await put(database, *(job(queue="ruled", fair_value=each) for each in users))
        await run_all(database, claims, "ruled")

    # The search for new values is what would wade; what is claimed is found from its mark on.
    await is_flat(database, look, "queued_fair")


@pytest.mark.usefixtures("held_open")
async def test_claims_of_a_queue_with_max_running(database: Database) -> None:
    claims = await claims_of(database, max_running=SIZE)

    async def look() -> None:
        await put(database, *(job(queue="ruled") for _ in range(SIZE)))
        await run_all(database, claims, "ruled")
        claims.place_freed("ruled")

    await is_flat(database, look, "running_pkey", "queued_claimable")


@pytest.mark.usefixtures("held_open")
async def test_promotion(database: Database) -> None:
    marks = promote.DueMark()

    async def look() -> None:
        await put(database, *(job(delay_seconds=0.001) for _ in range(SIZE)))
        while not (await promote.promote(database, SIZE, marks)).work:
            pass

    await is_flat(database, look, "queued_due")


@pytest.mark.usefixtures("held_open")
async def test_the_heads_of_a_queue(database: Database) -> None:
    claims = Claims(database)

    async def look() -> None:
        await put(database, *(job() for _ in range(SIZE)))
        [head] = await claims.heads(["default"])
        assert (head.queue, head.lane) == ("default", "noop")
        await run_all(database, claims, "default")

    await is_flat(database, look, "queued_claimable")


@pytest.mark.usefixtures("held_open")
async def test_a_sweep(database: Database) -> None:
    claims = Claims(database)
    watchfulness = sweep.Watchfulness(5, 0)

    async def look() -> None:
        await put(database, *(job() for _ in range(SIZE)))
        await run_all(database, claims, "default")
        assert await sweep.sweep(database, cancel_grace_seconds=10, watchfulness=watchfulness)

    await is_flat(database, look, "running_pkey")


async def test_heads_are_found_in_known_lanes_and_between_them(database: Database) -> None:
    claims = Claims(database)
    await put(database, *(job(lane=lane) for lane in ("b", "b", "d", "d")))
    await claims.claim("default", ["b", "d"], [Claimant("w", 2, 30)])
    await put(
        database, job(lane="a"), job(lane="c"), job(lane="é"), job(lane="b", priority=9), job(queue="other")
    )
    found = sorted((head.lane, head.rank) for head in await claims.heads(["default"]))
    assert found == [("a", 0), ("b", 18), ("c", 0), ("d", 0), ("é", 0)]
    assert [head.lane for head in await claims.heads(["other", "none"])] == ["noop"]
    assert await claims.heads([]) == []


async def test_what_jobs_that_were_removed_by_hand_left_behind_is_swept_up(database: Database) -> None:
    kept = await put(database, *(job(lane="kept") for _ in range(3)))
    gone = await put(database, *(job(lane="gone") for _ in range(3)))
    await database.execute("DELETE FROM jobs WHERE id = ANY ($1::text[])", gone)
    undone = await repair.find_undone(database, repair.Place())
    assert undone is not None
    assert [row["id"] for row in await database.fetch("SELECT id FROM queued ORDER BY id")] == sorted(kept)
    await invariants.check_all(database)


def test_a_look_begins_at_the_beginning_where_nothing_is_known() -> None:
    assert promote.DueMark().current() is low_water.THE_BEGINNING
    watchfulness = sweep.Watchfulness(5, 0)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert watchfulness.oldest_run(now) is low_water.THE_BEGINNING


async def test_a_fair_queue_with_more_values_than_are_remembered_serves_each_in_its_turn(
    database: Database,
) -> None:
    values = [f"u{n:04}" for n in range(1_300)]
    claims = await claims_of(database, fair_by="user")
    for _ in range(2):
        await put(database, *(job(queue="ruled", fair_value=each) for each in values))
    served: list[str] = []
    while claimed := (await claims.claim("ruled", ["noop"], [Claimant("w", 64, 30)])).answers:
        served += [each.fair_value or "" for each in claimed]
    assert sorted(served) == sorted(2 * values)
    # Nobody has had both turns while many others had none.
    assert len(set(served[: len(values)])) > 0.95 * len(values)
