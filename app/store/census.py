"""How many jobs each queue has in which state, how old and how fast: one look at all queues, kept for a moment.

Live jobs are counted from small partial indexes, ended ones are read from tallies, so finished millions cost
nothing. With a million waiting jobs a look takes its time, and is kept for a while.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from ulid import ULID

from app.jobs.queue_settings import QueueSettings, Rate
from app.jobs.states import RUNNING, State
from app.store import limits
from app.store.database import Database
from app.store.kept import Kept
from app.store.tables.live import IN_LANES
from app.store.tallies import ENQUEUED, RATE_SECONDS

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


class Census(Kept[dict[str, QueueCount]]):
    """By queue; one that has never had a job is missing."""

    def __init__(self, database: Database) -> None:
        async def look() -> dict[str, QueueCount]:
            return _read(await database.fetch(LOOK))

        super().__init__(look)


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
