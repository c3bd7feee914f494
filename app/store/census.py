"""How many jobs each queue has in which state, how old and how fast: one look at all queues, kept for a moment.

Live jobs are counted from small partial indexes, ended ones are read from tallies, so finished millions cost
nothing. With a million waiting jobs a look takes its time; then it is repeated only after ten times as long as it
took, a minute at most, and everybody who asks meanwhile gets the last one.
"""

import asyncio
import math
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from ulid import ULID

from app.jobs.queue_settings import QueueSettings, Rate
from app.jobs.states import RUNNING, State
from app.store import limits
from app.store.database import Database
from app.store.tables.live import IN_LANES
from app.store.tallies import ENQUEUED, RATE_SECONDS

# A look that takes no longer than this is taken anew each time.
CHEAP_SECONDS = 0.1
KEEP_SHARE = 10
LONGEST_KEPT_SECONDS = 60.0
# What is looked at though nobody asked: before it is too old for those who do, and no more than this share of the time.
WARM_SECONDS = 45.0
WARM_SHARE = 0.02
NEVER = datetime.min.replace(tzinfo=UTC)

LOOK = f"""
SELECT queue, 'ready' AS part, count(*)::bigint AS jobs, min(ready_at) AS since, NULL::text AS oldest
FROM queued WHERE {IN_LANES} GROUP BY queue
UNION ALL
SELECT queue, gate, count(*), NULL, min(id)
FROM queued WHERE gate IS NOT NULL GROUP BY queue, gate
UNION ALL
SELECT queue, 'scheduled', count(*), NULL, NULL
FROM queued WHERE ready_at IS NULL AND gate IS NULL GROUP BY queue
UNION ALL
SELECT j.queue, j.state, count(*), min(j.started_at), NULL
FROM running r CROSS JOIN LATERAL (
    SELECT queue, state, started_at FROM jobs WHERE id = r.id AND state IN ('loading', 'working') LIMIT 1
) AS j GROUP BY j.queue, j.state
UNION ALL
SELECT queue, state, sum(jobs)::bigint, NULL, NULL FROM (
    SELECT queue, state, jobs FROM queue_totals UNION ALL SELECT queue, state, jobs FROM queue_deltas
) AS ended GROUP BY queue, state
UNION ALL
SELECT queue, 'rate:' || state, sum(jobs)::bigint, NULL, NULL
FROM queue_deltas WHERE at > now() - interval '{RATE_SECONDS} seconds' AND jobs > 0 GROUP BY queue, state
UNION ALL
SELECT queue, 'tokens', floor(tokens * 1000)::bigint, refilled_at, NULL FROM queue_limits
UNION ALL
SELECT '', 'now', 0, now(), NULL
"""


# What can keep the claimable jobs of a queue from being claimed.
Gate = Literal["paused", "max_running", "rate", "key"]


@dataclass(slots=True)
class QueueCount:
    """One queue as it was at the moment of the look."""

    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, State), 0))
    # Why queued jobs are not claimable.
    held: dict[str, int] = field(default_factory=lambda: {"scheduled": 0, "key": 0, "waiting_for": 0})
    ready: int = 0
    oldest_queued_seconds: float | None = None
    oldest_running_seconds: float | None = None
    per_second: dict[str, float] = field(default_factory=dict)
    tokens: float | None = None
    refilled_at: datetime | None = None
    counted_at: datetime = NEVER

    @property
    def running(self) -> int:
        return sum(self.states[state] for state in RUNNING)

    @property
    def live(self) -> int:
        """Those that have not ended."""
        return self.states[State.QUEUED] + self.running

    def gated_by(self, settings: QueueSettings, *, paused: bool) -> Gate | None:
        """What keeps this queue's claimable jobs from being claimed; None when nothing does."""
        if paused:
            return "paused"
        if self.ready:
            if settings.max_running is not None and self.running >= settings.max_running:
                return limits.MAX_RUNNING
            if settings.rate is not None and self._is_out_of_tokens(settings.rate):
                return limits.RATE
            return None
        return "key" if self.held["key"] else None

    def _is_out_of_tokens(self, rate: Rate) -> bool:
        if self.tokens is None or self.refilled_at is None:
            return False
        waited = (self.counted_at - self.refilled_at).total_seconds()
        return limits.refill_seconds(rate, self.tokens + waited * rate.per_second) > 0


class Census:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = asyncio.Lock()
        self._counts: dict[str, QueueCount] = {}
        # When the last look that succeeded began; and the last one at all, with how long it took.
        self._looked_at = -math.inf
        self._tried_at = -math.inf
        self._took = 0.0
        self._good_until = 0.0
        self._renewal: asyncio.Task[dict[str, QueueCount]] | None = None

    async def take(self) -> dict[str, QueueCount]:
        """By queue; one that has never had a job is missing."""
        async with self._lock:
            if time.monotonic() >= self._good_until:
                self._tried_at = time.monotonic()
                try:
                    self._counts = _read(await self._database.fetch(LOOK))
                finally:
                    self._took = time.monotonic() - self._tried_at
                self._looked_at = self._tried_at
                kept = min(KEEP_SHARE * self._took, LONGEST_KEPT_SECONDS) if self._took > CHEAP_SECONDS else 0
                self._good_until = time.monotonic() + kept
            return self._counts

    async def latest(self) -> dict[str, QueueCount]:
        """The same for those who would rather have it at once: while a look is taken that takes its time, what the last
        one saw, up to a minute old. Only the first one of a process, or after a long while, is waited for."""
        now = time.monotonic()
        if now < self._good_until:
            return self._counts
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self.take(), name="census")
        renewal = self._renewal
        if now - self._looked_at > LONGEST_KEPT_SECONDS:
            return await asyncio.shield(renewal)
        renewal.add_done_callback(_retrieve)
        await asyncio.wait([renewal], timeout=CHEAP_SECONDS if self._took <= CHEAP_SECONDS else 0)
        return self._counts

    async def keep_warm(self) -> None:
        """Look again before the last look is too old for `latest`, where that costs little."""
        if time.monotonic() - self._tried_at > WARM_SECONDS >= self._took / WARM_SHARE:
            await self.take()

    def may_look(self, seconds: float) -> bool:
        """Whether the fleet, of which somebody has looked so long ago, may look again without having been asked."""
        return min(seconds, time.monotonic() - self._tried_at) >= self._took / WARM_SHARE


def _retrieve(renewal: "asyncio.Task[Any]") -> None:
    """Nobody waits for it any more: what went wrong with it, the next one will meet, too."""
    if not renewal.cancelled():
        renewal.exception()


def _read(rows: list[Any]) -> dict[str, QueueCount]:
    counts: dict[str, QueueCount] = {}
    now = next(row["since"] for row in rows if row["part"] == "now")
    for row in rows:
        part, jobs = row["part"], row["jobs"]
        if part == "now":
            continue
        count = counts.setdefault(row["queue"], QueueCount(counted_at=now))
        if part == "tokens":
            count.tokens, count.refilled_at = jobs / 1000, row["since"]
        elif part.startswith("rate:"):
            count.per_second[part.removeprefix("rate:")] = round(jobs / RATE_SECONDS, 3)
        elif part in count.held:
            count.held[part] = jobs
            count.states[State.QUEUED] += jobs
        elif part == "ready":
            count.ready = jobs
            count.states[State.QUEUED] += jobs
        elif part in count.states:
            count.states[part] = max(0, jobs)
        _age(count, part, row, now)
    return counts


def _age(count: QueueCount, part: str, row: Any, now: datetime) -> None:
    if part in RUNNING:
        seconds = _seconds(now, row["since"])
        count.oldest_running_seconds = max(seconds, count.oldest_running_seconds or 0)
    elif part == "ready" or row["oldest"] is not None:
        since = row["since"] or ULID.from_str(row["oldest"]).datetime
        count.oldest_queued_seconds = max(_seconds(now, since), count.oldest_queued_seconds or 0)


def _seconds(now: datetime, since: datetime) -> float:
    return round(max(0.0, (now - since).total_seconds()), 3)


RATES = {"enqueued": ENQUEUED, "done": State.DONE, "failed": State.FAILED}
