"""max_running and rate: how many jobs of a queue may be claimed now, over the whole fleet.

Asked in the claim's own transaction, under the queue's advisory lock: so two claimers never spend the same room.
The token bucket is a row of its own, written only for queues that have a rate.
"""

import time
from datetime import datetime, timedelta
from typing import Final

from app.jobs.queue_settings import QueueRules, Rate
from app.store.database import Runner
from app.store.locks import lock, lock_number
from app.store.low_water import THE_BEGINNING, trusted_seconds
from app.store.remembered import Remembered

MAX_RUNNING: Final = "max_running"
RATE: Final = "rate"
# A claimer that finds the bucket empty comes back when this share of it is full, not for every single token.
WORTHWHILE_SHARE = 0.25
# And after an hour at the latest, however slow the rate: no moment lies too far away to be computed with.
MAX_REFILL_SECONDS = 3600.0

# From the oldest that runs on: what ran before is stepped over, also where a transaction held open elsewhere keeps it
# from being removed. A queue with limits is claimed by one at a time, so none appears behind another's mark.
RUNNING = """
SELECT count(*), min(claimed_at) AS oldest, statement_timestamp() AS now FROM (
    SELECT queue, claimed_at FROM running WHERE claimed_at >= $2::timestamptz ORDER BY claimed_at, id OFFSET 0
) AS runs
WHERE queue = $1
"""
# Clocks may differ after a failover; and how long a mark is trusted.
SLACK = timedelta(seconds=2)
MARK_SECONDS = 30.0
# clock_timestamp, not now(): the transaction may have begun before it got the lock.
REFILL = """
INSERT INTO queue_limits AS l (queue, tokens, refilled_at) VALUES ($1, $2, clock_timestamp())
ON CONFLICT (queue) DO UPDATE SET
    tokens = least($2, l.tokens + greatest(extract(epoch FROM clock_timestamp() - l.refilled_at), 0) * $3::float8),
    refilled_at = greatest(l.refilled_at, clock_timestamp())
RETURNING tokens
"""
SPEND = "UPDATE queue_limits SET tokens = tokens - $2 WHERE queue = $1"


class Allowance:
    """What a claim may take: `jobs`; and when it is nothing, or used up, what holds the queue back."""

    def __init__(self, rules: QueueRules, room: int | None, tokens: float | None) -> None:
        self._rate = rules.settings.rate
        self._room = room
        self._tokens = tokens

    @property
    def jobs(self) -> int:
        room = 1 << 30 if self._room is None else max(0, self._room)
        return room if self._tokens is None else min(room, int(self._tokens))

    def spend(self, jobs: int) -> None:
        if self._room is not None:
            self._room -= jobs
        if self._tokens is not None:
            self._tokens -= jobs

    @property
    def gate(self) -> tuple[str, float | None] | None:
        """(what holds the queue back, for how many seconds), None while there is something left."""
        if self._room is not None and self._room <= 0:
            return MAX_RUNNING, None
        if self._tokens is not None and self._rate is not None and self._tokens < 1:
            return RATE, refill_seconds(self._rate, self._tokens)
        return None


def refill_seconds(rate: Rate, tokens: float) -> float:
    """Until it is worthwhile to ask again."""
    wanted = max(1.0, rate.capacity * WORTHWHILE_SHARE)
    return min(MAX_REFILL_SECONDS, max(0.0, wanted - tokens) / rate.per_second)


class OldestRuns:
    """Since when the oldest job of a queue runs, as far as one process knows: a hint, from which on they are counted."""

    def __init__(self) -> None:
        self._marks: Remembered[str, tuple[datetime, float]] = Remembered()

    async def count(self, connection: Runner, queue: str) -> int:
        mark, trusted_until = self._marks.get(queue) or (THE_BEGINNING, 0.0)
        began = time.monotonic()
        if began > trusted_until:
            mark = THE_BEGINNING
        [found] = await connection.fetch(RUNNING, queue, mark)
        ended = time.monotonic()
        if mark is THE_BEGINNING:
            trusted_until = ended + trusted_seconds(ended - began, MARK_SECONDS)
        self._marks.put(queue, ((found["oldest"] or found["now"]) - SLACK, trusted_until))
        return int(found["count"])

    def forget(self, queue: str) -> None:
        self._marks.forget(queue)


async def allowance(connection: Runner, rules: QueueRules, oldest_runs: OldestRuns) -> Allowance:
    """Ask for room, in a transaction that ends with the claim."""
    await lock(connection, {lock_number("claim", rules.name): True})
    room: int | None = None
    tokens: float | None = None
    if rules.settings.max_running is not None:
        room = rules.settings.max_running - await oldest_runs.count(connection, rules.name)
    rate = rules.settings.rate
    if rate is not None:
        refilled = await connection.fetch(REFILL, rules.name, float(rate.capacity), rate.per_second)
        tokens = refilled[0]["tokens"]
    return Allowance(rules, room, tokens)


async def spend(connection: Runner, rules: QueueRules, jobs: int) -> None:
    if rules.settings.rate is not None and jobs:
        await connection.execute(SPEND, rules.name, float(jobs))
