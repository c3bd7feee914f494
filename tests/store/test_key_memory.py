"""Whatever one process remembers of a key, and however old that is, it counts all that hold a place of it."""

import random

import pytest

from app.jobs.states import Verb
from app.store import keys, queues
from app.store.claims import Claimant, Claims
from app.store.control import cancel, revive
from app.store.database import Database
from app.store.idempotency import Submission
from app.store.key_memory import KeyMemory
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
