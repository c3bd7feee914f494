"""A transaction held open elsewhere keeps what ran before from being removed. Whoever looks for live work steps over it:
the hundredth look reads no more than the second."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from app.jobs.states import Verb
from app.store import fair, key_memory, keys, limits, low_water, promote, queues, repair, sweep
from app.store.claims import Claimant, Claims
from app.store.control import cancel
from app.store.database import Database
from app.store.idempotency import Receipt, Submission
from app.store.key_memory import KeyMemory
from app.store.managed import ManagedEnqueue
from app.store.queues import QueueBook
from app.store.settle import Settlement, settle
from tests.patience import until
from tests.store import invariants
from tests.store.making import TENANT, job, put, put_one

SIZE = 200
ROUNDS = 10


@pytest.fixture
async def held_open(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Somebody's transaction, which sees everything as it was before. No slack, or a test would last for minutes."""
    for module, name in ((low_water, "SLACK"), (fair, "SLACK"), (limits, "SLACK"), (promote, "SLACK")):
        monkeypatch.setattr(module, name, timedelta(0))
    monkeypatch.setattr(sweep, "CLAIM_SLACK", timedelta(0))
    # Nor does a look from the beginning come in between, which would take place all the time as long as it is short.
    monkeypatch.setattr(key_memory, "SLACK", timedelta(0))
    monkeypatch.setattr(low_water, "RESCAN_SHARE", 1e9)
    monkeypatch.setattr(low_water, "LONGEST_TRUST_SECONDS", 1e9)
    monkeypatch.setattr(key_memory, "LONGEST_TRUST_SECONDS", 1e9)
    monkeypatch.setattr(key_memory, "WORTH_IT", 0)
    monkeypatch.setattr(sweep, "LATE_SLACK", timedelta(0))
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
async def test_claims_of_a_fair_queue_that_find_less_than_they_ask_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then jobs without a value are looked for, too; in the lanes, where all that had one lies in the way."""
    monkeypatch.setattr("app.store.claims.VALUED_SECONDS", 600.0)
    claims = await claims_of(database, fair_by="user")

    async def look() -> None:
        await put(database, *(job(queue="ruled", fair_value=f"u{n % 20}") for n in range(SIZE)))
        claimed = (await claims.claim("ruled", ["noop"], [Claimant("w", 2 * SIZE, 30)])).answers
        assert len(claimed) == SIZE
        done = [Settlement(each.id, each.lease_token, Verb.COMPLETE, result="null") for each in claimed]
        await settle(database, done)

    await is_flat(database, look, "queued_fair", "queued_in_lanes")


@pytest.mark.usefixtures("held_open")
async def test_claims_of_a_queue_with_max_running(database: Database) -> None:
    claims = await claims_of(database, max_running=SIZE)

    async def look() -> None:
        await put(database, *(job(queue="ruled") for _ in range(SIZE)))
        await run_all(database, claims, "ruled")
        claims.place_freed("ruled")

    await is_flat(database, look, "running_by_age", "running_pkey", "queued_in_lanes")


@pytest.mark.usefixtures("held_open")
async def test_promotion(database: Database) -> None:
    marks = promote.due_mark()

    async def look() -> None:
        await put(database, *(job(delay_seconds=0.001) for _ in range(SIZE)))
        while not (await promote.promote(database, SIZE, marks)).work:
            pass
        assert await promote.seconds_until_next_due(database, marks) is None

    await is_flat(database, look, "queued_due")


@pytest.mark.usefixtures("held_open")
async def test_the_heads_of_a_queue(database: Database) -> None:
    claims = Claims(database)

    async def look() -> None:
        await put(database, *(job() for _ in range(SIZE)))
        [head] = await claims.heads(["default"])
        assert (head.queue, head.lane) == ("default", "noop")
        await run_all(database, claims, "default")

    await is_flat(database, look, "queued_in_lanes")


@pytest.mark.usefixtures("held_open")
async def test_a_sweep(database: Database) -> None:
    claims = Claims(database)
    watchfulness = sweep.Watchfulness(5, 0)

    async def look() -> None:
        await put(database, *(job() for _ in range(SIZE)))
        await run_all(database, claims, "default")
        assert await sweep.sweep(database, cancel_grace_seconds=10, watchfulness=watchfulness)

    await is_flat(database, look, "running_by_age", "running_pkey")


OF_DEADLINES = ("queued_late", "queued_deadlines", "running_late", "running_deadlines")


@pytest.mark.usefixtures("held_open")
@pytest.mark.parametrize("table", ["queued", "running"])
async def test_deadlines(database: Database, table: str) -> None:
    claims = Claims(database)
    watchfulness = sweep.Watchfulness(5, 0)

    async def look() -> None:
        await put(database, *(job(deadline_seconds=3600) for _ in range(SIZE)))
        if table == "running":
            await claims.claim("default", ["noop"], [Claimant("w", SIZE, 30)])
        # Their moment comes for half of them; the others have been run by then.
        late = f"SELECT id FROM {table} ORDER BY id LIMIT {SIZE // 2}"
        ids = [row["id"] for row in await database.fetch(late)]
        for each in ("jobs", table):
            await database.execute(
                f"UPDATE {each} SET deadline = clock_timestamp() WHERE id = ANY ($1::text[])", ids
            )
        swept = await sweep.sweep(database, cancel_grace_seconds=10, watchfulness=watchfulness)
        assert swept is not None
        assert swept.moved["expire"] == SIZE // 2
        for _ in range(3):
            swept = await sweep.sweep(database, cancel_grace_seconds=10, watchfulness=watchfulness)
            assert swept is not None
            assert not swept.moved
        await cancel(
            database, [row["id"] for row in await database.fetch(f"SELECT id FROM {table}")], TENANT, None
        )
        await database.execute(
            "UPDATE jobs SET cancel_requested_at = now() - interval '1 h' WHERE cancel_requested_at > '-infinity'"
        )
        assert await sweep.sweep(database, cancel_grace_seconds=10, watchfulness=watchfulness)

    await is_flat(database, look, *OF_DEADLINES)


async def test_a_deadline_that_had_passed_before_its_job_came_is_found_by_the_next_look(
    database: Database,
) -> None:
    watchfulness = sweep.Watchfulness(5, 0)
    for _ in range(2):
        await put(database, job(deadline=datetime(2020, 1, 1, tzinfo=UTC)))

        async def is_expired() -> bool:
            swept = await sweep.sweep(database, cancel_grace_seconds=10, watchfulness=watchfulness)
            return swept is not None and swept.moved["expire"] == 1

        await until(is_expired)


async def test_what_is_late_and_held_by_somebody_is_expired_once_he_lets_go(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_water, "RESCAN_SHARE", 1e9)
    monkeypatch.setattr(sweep, "LATE_SLACK", timedelta(0))
    watchfulness = sweep.Watchfulness(5, 0)
    job_id = await put_one(database, deadline=datetime(2020, 1, 1, tzinfo=UTC))
    async with database.transaction() as other:
        await other.fetch("SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE", job_id)
        for _ in range(2):
            swept = await sweep.sweep(database, cancel_grace_seconds=10, watchfulness=watchfulness)
            assert swept is not None
            assert not swept.moved
    swept = await sweep.sweep(database, cancel_grace_seconds=10, watchfulness=watchfulness)
    assert swept is not None
    assert swept.moved["expire"] == 1


# Whatever is read of a key, in whichever way.
OF_KEYS = (
    "queued_gated",
    "queued_key_places",
    "queued_key_waiting",
    "queued_pkey",
    "running_key_places",
    "running_pkey",
)
HOT = ("keyed", "hot")
PLACED = "SELECT id FROM jobs WHERE queue = 'keyed' AND state = 'queued' AND ready_at IS NOT NULL LIMIT 1"


class HotKey:
    """Jobs of one key, which come and go; as one process sees them."""

    def __init__(self, database: Database, book: QueueBook) -> None:
        self.database = database
        self.memory = KeyMemory()
        self.claims = Claims(database, book)
        self.way_in = ManagedEnqueue(database, book, self.memory)

    async def submit(self, number: int = 1) -> list[str]:
        """How each submission was answered."""
        jobs = [Submission([job(queue="keyed", concurrency_key="hot")]) for _ in range(number)]
        outcomes = []
        for receipt in (await self.way_in.enqueue(jobs)).answers:
            assert isinstance(receipt, Receipt)
            outcomes += [answer.outcome for answer in receipt.each()]
        return outcomes

    async def run(self) -> int:
        """Run what may run, and let the next one in; how many there were."""
        claimed = (await self.claims.claim("keyed", ["noop"], [Claimant("w", SIZE, 30)])).answers
        done = [Settlement(each.id, each.lease_token, Verb.COMPLETE, result="null") for each in claimed]
        await settle(self.database, done)
        awaited = await keys.with_waiting(self.database, [HOT], self.memory)
        await keys.ready_next(self.database, awaited, self.memory)
        return len(claimed)


async def hot_key(database: Database, **settings: object) -> HotKey:
    await queues.configure(database, "keyed", {"key": ["k"], **settings})
    book = QueueBook(database)
    await book.refresh()
    return HotKey(database, book)


@pytest.mark.usefixtures("held_open")
@pytest.mark.parametrize(("max_active", "stays"), [(1, 0), (3, 0), (3, 1), (60, 0)])
async def test_a_hot_key(database: Database, max_active: int, stays: int) -> None:
    key = await hot_key(database, max_active=max_active, max_queued=1000)
    if stays:
        await key.submit(stays)
        assert len((await key.claims.claim("keyed", ["noop"], [Claimant("w", stays, 3600)])).answers) == stays

    async def look() -> None:
        for _ in range(max(1, 10 // max_active)):
            await key.submit(3 * max_active)
            ran = 0
            while ran < 3 * max_active:
                ran += await key.run()

    await is_flat(database, look, *OF_KEYS)


@pytest.mark.usefixtures("held_open")
async def test_a_hot_key_for_which_many_wait(database: Database) -> None:
    key = await hot_key(database, max_active=1, max_queued=1000)
    await key.submit(SIZE)

    async def look() -> None:
        for _ in range(10):
            await key.submit()
            assert await key.run() == 1

    # Those who wait are counted by everyone who joins them.
    await is_flat(database, look, *OF_KEYS)


@pytest.mark.usefixtures("held_open")
@pytest.mark.parametrize("when_full", ["coalesce", "replace-oldest"])
async def test_a_hot_key_that_is_full(database: Database, when_full: str) -> None:
    key = await hot_key(database, max_active=1, max_queued=1, when_full=when_full)
    expected = "coalesced" if when_full == "coalesce" else "replaced"

    async def look() -> None:
        for _ in range(15):
            assert (await key.submit(4))[-1] == expected
            assert await key.run() == 1
            assert await key.run() == 1

    await is_flat(database, look, *OF_KEYS)


@pytest.mark.usefixtures("held_open")
async def test_the_repair_of_a_hot_key(database: Database) -> None:
    key = await hot_key(database, max_active=2, max_queued=1000)
    await key.submit(5)

    async def look() -> None:
        for _ in range(40):
            await key.submit(2)
            assert await key.run() == 2
        await key.submit()
        assert await keys.find_wrong(database, ("", ""), 10, key.memory) == ([], None)
        # Somebody has died who had only just made room.
        await cancel(database, [row["id"] for row in await database.fetch(PLACED)], TENANT, None)
        assert await keys.find_wrong(database, ("", ""), 10, key.memory) == ([HOT], None)
        await keys.ready_next(database, [HOT], key.memory)

    await is_flat(database, look, *OF_KEYS)


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
    assert promote.due_mark().current() is low_water.THE_BEGINNING
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
