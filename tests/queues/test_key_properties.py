"""Whatever happens on keyed queues (random submits, claims, crashes, lost leases): the promises hold."""

import asyncio
import contextlib
import json
import random
import uuid
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from app.engine.unblocker import Unblocker
from app.events.hub import Hub
from app.jobs.ids import new_id
from app.jobs.queue_settings import QueueRules, load_settings
from app.jobs.states import TERMINAL, State, Verb
from app.jobs.submission import NewJob
from app.store import queues
from app.store.changes import Changes
from app.store.claims import Claimant, Claims
from app.store.control import cancel
from app.store.database import Database
from app.store.history import ALL_EVENTS
from app.store.idempotency import Receipt, Submission
from app.store.job import LeasedJob
from app.store.key_memory import KeyMemory
from app.store.managed import ManagedEnqueue
from app.store.promote import promote
from app.store.queues import QueueBook
from app.store.settle import Settlement, settle
from app.store.sweep import sweep
from tests.patience import pace, pretend_to_work, until

KEYS = 50
WORKERS = 4
SUBMISSIONS = 150
LEASE_SECONDS = 0.15

RUNNING_OF_KEY = """
SELECT count(*) FROM jobs WHERE queue = $1 AND concurrency_key = $2
  AND state IN ('loading', 'working') AND lease_expires_at > now()
"""
BUSY_KEYS = """
SELECT concurrency_key, count(*) FROM jobs
WHERE queue = $1 AND state IN ('loading', 'working') AND lease_expires_at > now()
GROUP BY concurrency_key HAVING count(*) > $2
"""
UNFINISHED = "SELECT count(*) FROM jobs WHERE queue = $1 AND completed_at IS NULL"


class ForgetfulUnblocker(Unblocker):
    """A unblocker whose process now and then dies between a commit and what was to follow from it."""

    dice: random.Random

    def _heard(self, changes: Changes[Any]) -> None:
        if self.dice.random() < 0.7:
            super()._heard(changes)


@dataclass
class World:
    """One queue, its workers, and what they saw."""

    database: Database
    queue: str
    rules: QueueRules
    dice: random.Random
    hub: Hub
    # One for each process: each with a memory of its own, and the last one's is hardly ever of today.
    admissions: list[ManagedEnqueue]
    accepted: set[str] = field(default_factory=set)
    coalesced: list[tuple[str, str]] = field(default_factory=list)
    replaced: int = 0
    refused: int = 0
    late: int = 0
    violations: list[str] = field(default_factory=list)
    over: bool = False

    def job(self) -> NewJob:
        key = f"k/{self.dice.randrange(KEYS)}"
        delay = self.dice.choice([None, None, None, 0.03])
        return NewJob(
            new_id(),
            "default",
            self.queue,
            "work",
            "work",
            "{}",
            priority=self.dice.randrange(3),
            delay_seconds=delay,
            concurrency_key=key,
            max_attempts=3,
        )

    async def submit(self) -> None:
        """Submissions from several callers at once, some of them batches."""
        left = SUBMISSIONS
        while left > 0:
            several = [
                Submission([self.job() for _ in range(self.dice.choice([1, 1, 1, 2]))])
                for _ in range(self.dice.randrange(1, 12))
            ]
            left -= len(several)
            [admission] = self.dice.choices(self.admissions, [10, 10, 1])
            admitted = await admission.enqueue(several)
            for submission, receipt in zip(several, admitted.answers, strict=True):
                if not isinstance(receipt, Receipt):
                    self.refused += 1
                    continue
                for job, answer in zip(submission.jobs, receipt.each(), strict=True):
                    if answer.outcome == "coalesced":
                        self.coalesced.append((job.id, answer.job_id))
                    else:
                        self.accepted.add(job.id)
                        self.replaced += answer.outcome == "replaced"
            if self.accepted and self.dice.random() < 0.3:
                chosen = self.dice.choice(sorted(self.accepted))
                self.hub.announce(await cancel(self.database, [chosen], "default", None))
            await pace(self.dice.random() * 0.02)

    async def work(self, number: int) -> None:
        claims = Claims(self.database, QueueBook(self.database))
        while not self.over:
            claimant = Claimant(f"w{number}", self.dice.randrange(1, 6), LEASE_SECONDS)
            claimed = (await claims.claim_whole(self.queue, ["work"], [claimant])).answers
            for job in claimed:
                # Whoever is the last to hold too many of a key sees it here.
                running = await self.database.fetchval(RUNNING_OF_KEY, self.queue, job.concurrency_key)
                if running > self.rules.max_active:
                    self.violations.append(f"{running} leases of {job.concurrency_key}")
            await asyncio.gather(*(self.run(job) for job in claimed))
            if not claimed:
                await pace(0.005)

    async def run(self, job: LeasedJob) -> None:
        fate = self.dice.random()
        if fate < 0.1:
            return  # It crashed: nobody will ever settle this.
        overslept = fate < 0.15
        await pretend_to_work(LEASE_SECONDS * 3 if overslept else self.dice.random() * 0.03)
        endings: list[tuple[Verb, dict[str, Any]]] = [
            (Verb.COMPLETE, {"result": "null"}),
            (Verb.COMPLETE, {"result": "null"}),
            (Verb.COMPLETE, {"result": "null"}),
            (Verb.FAIL, {}),
            (Verb.RETRY, {"delay_seconds": 0.02}),
            (Verb.RETRY, {"delay_seconds": 0.0}),
            (Verb.RELEASE, {}),
        ]
        verb, more = self.dice.choice(endings)
        settled = await settle(self.database, [Settlement(job.id, job.lease_token, verb, **more)])
        self.hub.announce(settled)
        self.late += not settled.answers[0].ok

    async def look(self) -> None:
        while not self.over:
            for row in await self.database.fetch(BUSY_KEYS, self.queue, self.rules.max_active):
                self.violations.append(f"{row['count']} leases of {row['concurrency_key']} at a look")
            await pace(0.01)

    async def tidy(self) -> None:
        """What the sweeper and the promoter of a replica do."""
        while not self.over:
            swept = await sweep(self.database, cancel_grace_seconds=0.05)
            if swept is not None:
                self.hub.announce(swept.changes)
            self.hub.announce(await promote(self.database))
            await pace(0.02)

    async def until_all_have_ended(self) -> None:
        async def all_have_ended() -> bool:
            return not await self.database.fetchval(UNFINISHED, self.queue)

        await until(all_have_ended, 45)


async def play(url: str, seed: int, chosen: dict[str, Any]) -> World:
    database = Database(url, size=12)
    await database.open()
    queue = f"q-{uuid.uuid4().hex}"
    rules = QueueRules(queue, load_settings(json.dumps({"key": ["k", "/k"], **chosen})))
    await queues.configure(database, queue, {"key": ["k", "/k"], **chosen})
    book = QueueBook(database)
    await book.refresh()
    hub = Hub(database, None, 1)
    memories = [KeyMemory(), KeyMemory(), KeyMemory()]
    unblockers = [ForgetfulUnblocker(database, hub, book, 0.1, memory) for memory in memories[:2]]
    admissions = [ManagedEnqueue(database, book, memory) for memory in memories]
    world = World(database, queue, rules, random.Random(seed), hub, admissions)
    for number, unblocker in enumerate(unblockers, start=1):
        unblocker.dice = random.Random(seed + number)
        await unblocker.start()
    others = [
        asyncio.create_task(each)
        for each in (world.look(), world.tidy(), *(world.work(number) for number in range(WORKERS)))
    ]
    try:
        await world.submit()
        await world.until_all_have_ended()
        world.over = True
        await asyncio.gather(*others)
        await check(world)
    finally:
        world.over = True
        for task in others:
            task.cancel()
        with contextlib.suppress(BaseException):
            await asyncio.gather(*others)
        for unblocker in unblockers:
            await unblocker.stop()
        await database.close()
    return world


async def check(world: World) -> None:
    assert not world.violations
    rows = await world.database.fetch("SELECT id, state, seq FROM jobs WHERE queue = $1", world.queue)
    states = {row["id"]: row["state"] for row in rows}
    # Every accepted job is there and has ended; a coalesced one made no row.
    assert set(states) == world.accepted
    assert set(states.values()) <= TERMINAL
    for own_id, existing in world.coalesced:
        assert own_id not in states
        assert existing in states
    events = await world.database.fetch(
        f"SELECT job_id, seq, type, reason FROM {ALL_EVENTS} AS events WHERE job_id = ANY ($1::text[]) ORDER BY job_id, seq",
        list(states),
    )
    logs: dict[str, list[Any]] = {}
    for event in events:
        logs.setdefault(event["job_id"], []).append(event)
    skipped = [job_id for job_id, state in states.items() if state == "skipped"]
    assert len(skipped) == world.replaced
    for job_id, log in logs.items():
        assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
        moves = [event["type"] for event in log if event["type"] in set(State)]
        if states[job_id] == "skipped":
            # Replaced while it waited, never while it ran.
            assert moves[-2:] == ["queued", "skipped"]
        if states[job_id] == "stale":
            assert moves[-2] in {"loading", "working"}


chosen_settings = st.fixed_dictionaries(
    {
        "when_full": st.sampled_from(["reject", "coalesce", "replace-oldest"]),
        "max_active": st.integers(1, 3),
        "max_queued": st.integers(0, 3),
    }
)


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    # What is random about it cannot be made smaller.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32), chosen=chosen_settings)
def test_keys_keep_their_promises_whatever_happens(
    database_url: str, seed: int, chosen: dict[str, Any]
) -> None:
    world = asyncio.run(play(database_url, seed, chosen))
    assert world.accepted


def test_the_play_is_worth_watching(database_url: str) -> None:
    """The property means something only if all that can happen does happen."""
    for when_full, wanted in (
        ("replace-oldest", "replaced"),
        ("coalesce", "coalesced"),
        ("reject", "refused"),
    ):
        chosen = {"when_full": when_full, "max_active": 1, "max_queued": 1}
        world = asyncio.run(play(database_url, 7, chosen))
        assert getattr(world, wanted)
        assert world.late
