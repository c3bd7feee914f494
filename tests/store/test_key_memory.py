"""Whatever one process remembers of a key, and however old that is, it counts all that hold a place of it."""

import random
import time
from datetime import UTC, datetime

import pytest

from app.jobs.states import Verb
from app.store import keys, queues
from app.store.claims import Claimant, Claims
from app.store.control import cancel, revive
from app.store.database import Database
from app.store.idempotency import Submission
from app.store.key_memory import KNOWN, WORTH_IT, KeyMemory, Known, Lines
from app.store.keys import KeyState, key_lock
from app.store.locks import lock
from app.store.managed import ManagedEnqueue
from app.store.promote import promote
from app.store.queues import QueueBook
from app.store.settle import Settlement, settle
from app.store.sweep import sweep
from app.store.targets import park, unpark
from tests.live_tables import write
from tests.store import invariants
from tests.store.making import TENANT, job

KEY = ("keyed", "k")
MAX_ACTIVE, MAX_QUEUED = 3, 6

HOLDERS = """
SELECT count(*) FROM jobs WHERE queue = $1 AND concurrency_key = $2
  AND (state IN ('loading', 'working') OR (state = 'queued' AND ready_at IS NOT NULL))
"""
LIVE = """
SELECT count(*) FROM jobs WHERE queue = $1 AND concurrency_key = $2 AND state IN ('queued', 'loading', 'working')
"""
NUMBERS = "SELECT last_value FROM key_numbers"


class TakenBack(Exception):
    """What makes a transaction end with nothing done."""


class Process:
    """One of several, each with a memory of its own."""

    def __init__(self, database: Database, book: QueueBook) -> None:
        self.database = database
        self.memory = KeyMemory()
        self.way_in = ManagedEnqueue(database, book, self.memory)

    async def count(self) -> KeyState:
        """As an enqueue would, by what it remembers; and it learns nothing new by it."""
        async with self.database.transaction() as connection:
            await lock(connection, {key_lock(KEY): True})
            states = await keys.read_states(connection, {KEY: 10_000}, {KEY: 1000}, self.memory)
        return states[KEY]

    async def submit(self, number: int, delay: float | None = None) -> None:
        jobs = [
            Submission([job(queue="keyed", concurrency_key="k", delay_seconds=delay, max_attempts=2)])
            for _ in range(number)
        ]
        await self.way_in.enqueue(jobs)

    async def submit_in_vain(self, number: int) -> None:
        """In a transaction of somebody else, which is then taken back."""
        jobs = [Submission([job(queue="keyed", concurrency_key="k")]) for _ in range(number)]
        try:
            async with self.database.transaction() as connection:
                for each in jobs:
                    await self.way_in.enqueue_in(connection, [each])
                raise TakenBack
        except TakenBack:
            pass


class Play:
    """Random things happen to one key, by processes of which some have not looked at it for long."""

    def __init__(self, database: Database, book: QueueBook, dice: random.Random) -> None:
        self.database = database
        self.dice = dice
        self.processes = [Process(database, book) for _ in range(3)]
        self.claims = Claims(database, QueueBook(database))
        self.running: list[tuple[str, str]] = []
        self.happened: set[str] = set()

    def process(self) -> Process:
        """The last one hardly ever has its turn."""
        return self.dice.choices(self.processes, [10, 10, 1])[0]

    async def step(self) -> None:
        verb = self.dice.choice(
            ["submit"] * 4
            + ["claim"] * 4
            + ["settle"] * 4
            + ["ready_next"] * 5
            + ["later", "promote", "in_vain", "cancel", "revive", "rescue", "park", "number_lost"]
        )
        self.happened.add(verb)
        await getattr(self, verb)()

    async def submit(self) -> None:
        await self.process().submit(self.dice.randrange(1, 4))

    async def later(self) -> None:
        await self.process().submit(1, 0.001)

    async def in_vain(self) -> None:
        await self.process().submit_in_vain(self.dice.randrange(1, 3))

    async def claim(self) -> None:
        limit = self.dice.randrange(1, 4)
        claimed = (await self.claims.claim("keyed", ["noop"], [Claimant("w", limit, 3600)])).answers
        self.running += [(each.id, each.lease_token) for each in claimed]

    async def settle(self) -> None:
        if not self.running:
            return
        job_id, token = self.running.pop(self.dice.randrange(len(self.running)))
        verb, delay = self.dice.choice(
            [
                (Verb.COMPLETE, None),
                (Verb.FAIL, None),
                (Verb.RETRY, 0.0),
                (Verb.RETRY, 0.001),
                (Verb.RELEASE, 0.0),
                (Verb.DEFER, 0.001),
            ]
        )
        result = "null" if verb is Verb.COMPLETE else None
        error = '{"code":"x","message":"x","retryable":true}' if verb in {Verb.FAIL, Verb.RETRY} else None
        await settle(
            self.database, [Settlement(job_id, token, verb, result=result, error=error, delay_seconds=delay)]
        )

    async def ready_next(self) -> None:
        process = self.process()
        if await keys.with_waiting(self.database, [KEY], process.memory):
            await keys.ready_next(self.database, [KEY], process.memory)

    async def promote(self) -> None:
        await promote(self.database)

    async def cancel(self) -> None:
        ids = [row["id"] for row in await self.database.fetch("SELECT id FROM queued")]
        if ids:
            await cancel(self.database, [self.dice.choice(ids)], TENANT, None)

    async def revive(self) -> None:
        ids = [row["id"] for row in await self.database.fetch("SELECT id FROM jobs WHERE state = 'failed'")]
        if ids:
            await revive(self.database, [self.dice.choice(ids)], TENANT)

    async def rescue(self) -> None:
        """Somebody lost the lease of what it runs: without rules for keys it is queued again, with its place."""
        if not self.running:
            return
        job_id, _ = self.running.pop(self.dice.randrange(len(self.running)))
        await write(
            self.database, "UPDATE jobs SET lease_expires_at = now() - interval '1 h' WHERE id = $1", job_id
        )
        await sweep(self.database, cancel_grace_seconds=10)

    async def park(self) -> None:
        await park(self.database, "keyed", ["noop"], 1)
        async for _ in unpark(self.database):
            pass

    async def number_lost(self) -> None:
        """A number was drawn by somebody who then died."""
        await self.database.execute("SELECT nextval('key_numbers')")

    async def check(self) -> None:
        holders = await self.database.fetchval(HOLDERS, *KEY)
        live = await self.database.fetchval(LIVE, *KEY)
        assert holders <= MAX_ACTIVE
        for process in self.processes:
            found = await process.count()
            assert (found.holders, found.live) == (holders, live)
            assert sum(holds for _, holds in found.replaceable) + len(self.running) == holders


@pytest.fixture
async def book(database: Database) -> QueueBook:
    rules = {"key": ["k"], "max_active": MAX_ACTIVE, "max_queued": MAX_QUEUED, "when_full": "replace-oldest"}
    await queues.configure(database, "keyed", rules)
    book = QueueBook(database)
    await book.refresh()
    return book


@pytest.mark.parametrize("seed", range(4))
async def test_every_process_counts_the_same_whatever_it_remembers(
    database: Database, book: QueueBook, seed: int
) -> None:
    play = Play(database, book, random.Random(seed))
    for _ in range(150):
        await play.step()
        await play.check()
    await invariants.check_all(database)
    assert len(play.happened) == 12


async def test_a_memory_of_another_server_counts_for_nothing(database: Database, book: QueueBook) -> None:
    """Commits may have been lost with that one: what it said never happened here."""
    process = Process(database, book)
    await process.submit(2)
    [here] = await database.fetch("SELECT pg_postmaster_start_time() AS started")
    nobody = {KEY: Known((), 1 << 40)}
    for counted in (process.memory.places, process.memory.waiting):
        counted.learn(datetime(2026, 1, 1, tzinfo=UTC), nobody)
    assert (await process.count()).holders == 2
    # It would be believed if it were of this one.
    process.memory.places.learn(here["started"], nobody)
    assert (await process.count()).holders == 0
    process.memory.places.learn(datetime(2026, 1, 1, tzinfo=UTC), {})
    assert process.memory.places.sent([KEY]) == ([-1], ["{}"])


async def test_a_revived_job_is_counted_by_who_counted_while_it_was_gone(
    database: Database, book: QueueBook
) -> None:
    process = Process(database, book)
    await process.submit(1)
    [job_to_fail] = (await Claims(database, book).claim("keyed", ["noop"], [Claimant("w", 1, 3600)])).answers
    error = '{"code":"x","message":"x","retryable":true}'
    await settle(database, [Settlement(job_to_fail.id, job_to_fail.lease_token, Verb.FAIL, error=error)])
    await process.submit(1)
    await revive(database, [job_to_fail.id], TENANT)
    found = await process.count()
    assert (found.holders, found.live) == (1, 2)
    await invariants.check_all(database)


async def test_more_holders_than_are_remembered_by_their_ids_are_all_counted(database: Database) -> None:
    many = 2 * KNOWN
    await queues.configure(database, "keyed", {"key": ["k"], "max_active": many, "max_queued": many})
    book = QueueBook(database)
    await book.refresh()
    process, other = Process(database, book), Process(database, book)
    await process.submit(many + 5)
    await other.submit(5)
    claims = Claims(database, book)
    claimed = (await claims.claim("keyed", ["noop"], [Claimant("w", 10, 3600)])).answers
    for _ in range(3):
        for each in (process, other):
            await each.submit(1)
            found = await each.count()
            assert found.holders == await database.fetchval(HOLDERS, *KEY)
            assert found.live == await database.fetchval(LIVE, *KEY)
        done = [claimed.pop(), claimed.pop(0)]
        await settle(
            database, [Settlement(each.id, each.lease_token, Verb.COMPLETE, result="null") for each in done]
        )
        assert await keys.with_waiting(database, [KEY], process.memory)
        await keys.ready_next(database, [KEY], process.memory)


async def test_who_came_before_the_marks_is_found_by_a_look_from_the_beginning(
    database: Database, book: QueueBook
) -> None:
    """An old job that comes back to stand in line, while it is believed to be known where that begins."""
    process = Process(database, book)
    await process.submit(1)
    await process.submit(MAX_ACTIVE + 2)
    claims = Claims(database, book)
    [first, *others] = (await claims.claim("keyed", ["noop"], [Claimant("w", 10, 3600)])).answers
    retry = Settlement(first.id, first.lease_token, Verb.RETRY, error="{}", delay_seconds=0.0001)
    await settle(database, [retry])
    await keys.ready_next(database, [KEY], process.memory)
    lines = process.memory.lines
    line = lines._lines.peek(KEY)
    assert line is not None
    assert not line.is_trusted(time.monotonic())
    line.trusted_until, line.let_in = float("inf"), WORTH_IT
    ids = [row["id"] for row in await database.fetch("SELECT id FROM queued WHERE gate = 'key'")]
    await cancel(database, ids, TENANT, None)
    await write(database, "UPDATE jobs SET gate = 'key' WHERE id = $1", first.id)
    mark = dict(line.by_rank)
    line.by_rank = dict.fromkeys(mark, "7ZZZZZZZZZZZZZZZZZZZZZZZZZ")
    line.backlog = True
    assert await keys.with_waiting(database, [KEY], process.memory) == []
    # It is known that this is not certain, and when to look again.
    assert lines.doubts([KEY]) == {KEY: float("inf")}
    line.trusted_until = 0
    assert await keys.with_waiting(database, [KEY], process.memory) == [KEY]
    assert lines.doubts([KEY]) == {}
    assert len(others) == MAX_ACTIVE - 1


def test_all_ranks_are_looked_at_whatever_is_known_of_them() -> None:
    lines = Lines()
    look = lines.begin([KEY])
    assert look.spans == [['{"-32768"}'], ['{"32767"}'], ['{""}']]
    ids = ["01M7MK1HJF2JA89D3623TSMKW0", "01M7MK1HJF2JA89D3623TSMKW1"]
    lines.took(look, KEY, [(ids[1], 4), (ids[0], 4), (ids[1], 0)], full=True)
    lines.ended(look)
    line = lines._lines.peek(KEY)
    assert line is not None
    assert line.spans() == [(5, 32767, ""), (4, 4, ids[0]), (1, 3, ""), (0, 0, ids[1]), (-32768, -1, "")]
