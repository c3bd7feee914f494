"""Everything at once on the same few rows: no deadlock, no lost update, all invariants hold."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from app.jobs.states import Verb
from app.store.claims import Claims
from app.store.control import cancel, delete, revive
from app.store.database import Database
from app.store.enqueue import enqueue
from app.store.history import ALL_EVENTS
from app.store.idempotency import Submission
from app.store.promote import promote
from app.store.settle import Settlement, heartbeat, settle
from app.store.sweep import sweep
from tests.patience import turn_of_the_loop
from tests.store import invariants
from tests.store.making import TENANT, claim, job

SECONDS = 3.0
ERROR = '{"code":"broken","message":"It broke.","retryable":true}'


class Crowd:
    """Many connections that all work on the same jobs, in random orders."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.done = Counter[str]()
        self.held: list[tuple[str, str]] = []
        self.known: list[str] = []

    def some(self, most: int = 12) -> list[str]:
        return random.sample(self.known, min(len(self.known), random.randint(1, most)))

    async def submit(self) -> None:
        parent = random.choice(self.known) if self.known and random.random() < 0.5 else None
        wanted = [
            Submission([job(max_attempts=3, parent_id=parent, deadline_seconds=300)], TENANT, key, b"")
            for key in random.sample([None, None, None, *(f"k{n}" for n in range(20))], 12)
        ]
        await enqueue(self.database, wanted)
        self.known = [
            row["id"] for row in await self.database.fetch("SELECT id FROM jobs ORDER BY random() LIMIT 60")
        ]

    async def claim(self) -> None:
        claimed = await claim(self.database, limit=10, claims=Claims(self.database))
        self.held += [(record.id, record.lease_token) for record in claimed]
        random.shuffle(self.held)
        del self.held[:-60]

    async def settle(self) -> None:
        chosen = dict(random.sample(self.held, min(len(self.held), 10)))
        verbs = [Verb.START, Verb.COMPLETE, Verb.FAIL, Verb.RETRY, Verb.DEFER, Verb.RELEASE, Verb.CANCEL]
        batch = []
        for job_id, token in chosen.items():
            verb = random.choice(verbs)
            error = ERROR if verb in {Verb.FAIL, Verb.RETRY} else None
            result = "1" if verb is Verb.COMPLETE else None
            batch.append(Settlement(job_id, token, verb, result=result, error=error, delay_seconds=0))
        random.shuffle(batch)
        if batch:
            await settle(self.database, batch)

    async def heartbeat(self) -> None:
        chosen = dict(random.sample(self.held, min(len(self.held), 20)))
        await heartbeat(self.database, list(chosen.items()), [30] * len(chosen))

    async def cancel(self) -> None:
        for job_id in self.some(2):
            await cancel(self.database, [job_id], TENANT, None)

    async def control(self) -> None:
        for job_id in self.some(6):
            if not (await revive(self.database, [job_id], TENANT)).answers and random.random() < 0.2:
                await delete(self.database, [job_id], TENANT)

    async def pass_time(self) -> None:
        # One row at a time and by id: the crowd's own locks are what is under test, not this one's.
        for job_id in self.some(4):
            column = random.choice(["lease_expires_at", "cancel_requested_at", "deadline"])
            async with self.database.transaction() as connection:
                await connection.execute(
                    f"UPDATE jobs SET {column} = now() - interval '1 hour' WHERE id = $1 AND {column} IS NOT NULL",
                    job_id,
                )
                for table in ("queued", "running"):
                    await connection.execute(
                        f"UPDATE {table} AS t SET deadline = j.deadline FROM jobs j WHERE t.id = $1 AND j.id = $1",
                        job_id,
                    )
        await sweep(self.database, cancel_grace_seconds=1)
        await promote(self.database)

    async def keep_on(self, name: str, work: Callable[[], Awaitable[None]], ends: float) -> None:
        while time.monotonic() < ends:
            await work()
            self.done[name] += 1
            await turn_of_the_loop()


VERBS = {"claim", "complete", "fail", "retry", "rescue", "cancel", "expire", "late_settlement"}


async def was_a_real_crowd(crowd: Crowd) -> bool:
    """Every verb of the core was walked, some of them late, each part had its turns, and enough is there to
    check. How long that takes is up to chance and to how busy the machine is."""
    walked = {
        row["reason"]
        for row in await crowd.database.fetch(f"SELECT DISTINCT reason FROM {ALL_EVENTS} AS events")
    }
    jobs: int = await crowd.database.fetchval("SELECT count(*) FROM jobs")
    return walked >= VERBS and min(crowd.done.values(), default=0) >= 5 and jobs > 50


async def test_all_verbs_at_once_on_the_same_rows_do_not_deadlock(database_url: str) -> None:
    database = Database(database_url, size=16)
    await database.open()
    crowd = Crowd(database)
    try:
        await crowd.submit()
        # A deadlock is an error in one of the two, and ends the group.
        async with asyncio.timeout(180):
            while not await was_a_real_crowd(crowd):
                ends = time.monotonic() + SECONDS
                async with asyncio.TaskGroup() as group:
                    for name in ("submit", "claim", "settle", "heartbeat", "cancel", "control", "pass_time"):
                        for _ in range(2):
                            group.create_task(crowd.keep_on(name, getattr(crowd, name), ends))
        assert await invariants.check_all(database) > 50
    finally:
        await database.close()
