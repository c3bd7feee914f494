"""Jobs that end when they begin: what was claimed together is settled together, without a run for each.

There is nothing to cancel and nobody to follow; what they came to waits for its commit, under leases that are
renewed meanwhile: the database may be away for a while.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from app.engine.pools import Pool
from app.engine.settler import Settler, as_settlement
from app.errors import Unavailable
from app.executors.protocol import InstantExecutor
from app.store.database import Database
from app.store.job import ClaimedJob
from app.store.settle import Settlement, heartbeat

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Ended:
    """Jobs of one claim that have been executed and are not settled yet."""

    pool: Pool
    settlements: list[Settlement]
    claimed_at: float
    lease_seconds: float
    # Leases that turned out to be lost are not renewed any more; the settlement is told so, too.
    held: list[tuple[str, str]]


class InstantRuns:
    def __init__(self, settler: Settler, on_settled: Callable[[], None]) -> None:
        self._settler = settler
        self._on_settled = on_settled
        self._unsettled: dict[asyncio.Task[None], Ended] = {}

    def __len__(self) -> int:
        return sum(len(ended.settlements) for ended in self._unsettled.values())

    def begin(
        self, pool: Pool, executor: InstantExecutor, claimed: Sequence[ClaimedJob], claimed_at: float
    ) -> None:
        """Execute them all, and let them be settled in one commit."""
        settlements = [as_settlement(job.id, job.lease_token, executor.outcome(job)) for job in claimed]
        ended = Ended(
            pool,
            settlements,
            claimed_at,
            min(job.lease_seconds for job in claimed),
            [(job.id, job.lease_token) for job in claimed],
        )
        pool.settling += len(settlements)
        task = asyncio.create_task(self._settle(ended))
        self._unsettled[task] = ended
        task.add_done_callback(self._unsettled.pop)

    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._unsettled)

    def unsettled(self) -> list[Ended]:
        return list(self._unsettled.values())

    async def renew(self, database: Database, now: float) -> float:
        """Renew the leases of what has waited for long; the shortest of all of them, in seconds."""
        unsettled = self.unsettled()
        for ended in unsettled:
            if ended.held and now - ended.claimed_at > ended.lease_seconds / 4:
                leases = await heartbeat(database, ended.held)
                ended.held = [held for held in ended.held if held[0] in leases]
        return min((ended.lease_seconds for ended in unsettled), default=math.inf)

    async def _settle(self, ended: Ended) -> None:
        try:
            await self._settler.settle_many_surely(ended.settlements)
        except Unavailable:
            log.warning("worker.settlements_given_up", jobs=len(ended.settlements))
        finally:
            ended.pool.settling -= len(ended.settlements)
            ended.pool.on_settled()
            self._on_settled()
