"""Claims by workers over HTTP.

Claims for the same queue and lanes that come in together are one statement (natural batching), and its
jobs are dealt out in the order of asking. A claimer that goes away empty-handed may wait: it is woken
when work is announced, and looks again by itself in case the announcement was lost.

What was claimed for somebody who is gone when the answer comes goes back to its queue at once.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from app.config import Settings
from app.engine.settler import Settler, as_settlement
from app.errors import Unavailable
from app.events.hub import Hub
from app.jobs.lanes import lanes_of, worker_tenant
from app.jobs.outcomes import Released
from app.loops.alarm import Alarm
from app.loops.batcher import Batcher
from app.store.changes import Changes
from app.store.claims import Claimant, Claims
from app.store.job import BriefJob, LeasedJob
from app.store.remembered import Remembered

log = structlog.get_logger()

MAX_CLAIMED = 1000
# Batchers of queues and lanes that nobody has asked for in a while are forgotten.
MAX_COUNTERS = 1000
DRAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class AnyLane:
    """In the place of lanes: whatever workers of this tenant may run, kinds never seen before included."""

    tenant: str


Lanes = tuple[str, ...] | AnyLane
# Claims that may be one statement: where, and whether briefly.
Asked = tuple[str, Lanes, bool]
# Whole, or as much of each as it takes to run it.
Leased = LeasedJob | BriefJob
Jobs = Sequence[Leased]


@dataclass(slots=True, eq=False)
class Claimer:
    """Somebody who asks. `leave` when nobody will hear the answer."""

    queues: Sequence[str]
    lanes: Lanes
    claimant: Claimant
    # Only what it takes to run the jobs is wanted of them.
    brief: bool = False
    gone: bool = False
    alarm: Alarm = field(default_factory=Alarm)

    def leave(self) -> None:
        self.gone = True
        self.alarm.ring()


class RemoteClaims:
    def __init__(self, hub: Hub, claims: Claims, settler: Settler, settings: Settings) -> None:
        self._hub = hub
        self._claims = claims
        self._settler = settler
        self._settings = settings
        self._counters: Remembered[Asked, Batcher[Claimant, Jobs]] = Remembered(MAX_COUNTERS)
        # By queue, then by what they wait for there.
        self._waiting: dict[str, dict[str | AnyLane, set[Claimer]]] = {}
        # The loop keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        hub.subscribe(self._heard)

    async def claim(self, claimer: Claimer, wait_seconds: float) -> Jobs:
        """Up to `claimant.limit` jobs; waits for the first one if there is none."""
        if wait_seconds <= 0:
            return await self._look(claimer)
        ends = time.monotonic() + wait_seconds
        self._register(claimer)
        try:
            while True:
                # Cleared before the look: what is announced from here on is not missed.
                claimer.alarm.clear()
                if claimer.gone:
                    return []
                claimed = await self._look(claimer)
                left = ends - time.monotonic()
                if claimed or left <= 0 or self._hub.closing:
                    return claimed
                await claimer.alarm.wait(min(left, self._rest(claimer.queues)))
        finally:
            claimer.alarm.put_away()
            self._unregister(claimer)

    async def drain(self) -> None:
        """Until what was claimed for those who are gone has gone back, if the database answers."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN_SECONDS)

    def give_back(self, jobs: Jobs) -> None:
        """Return to the queue what nobody waits for any more; by way of the settler, which keeps trying."""
        for job in jobs:
            task = asyncio.create_task(self._release(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # -- waiting -------------------------------------------------------------------------------------

    def _register(self, claimer: Claimer) -> None:
        for queue in claimer.queues:
            places = self._waiting.setdefault(queue, {})
            for lane in _lanes_of(claimer):
                places.setdefault(lane, set()).add(claimer)

    def _unregister(self, claimer: Claimer) -> None:
        for queue in claimer.queues:
            places = self._waiting[queue]
            for lane in _lanes_of(claimer):
                places[lane].discard(claimer)
                if not places[lane]:
                    del places[lane]
            if not places:
                del self._waiting[queue]

    def _heard(self, changes: Changes[Any]) -> None:
        for queue in changes.room:
            self._claims.place_freed(queue)
        if not self._waiting:
            return
        for queue in changes.room | changes.settings:
            for waiting in self._waiting.get(queue, {}).values():
                _wake(waiting)
        for queue, lane in changes.work:
            places = self._waiting.get(queue)
            # New work in a queue that is held back: nobody has to be woken for that.
            if places and self._claims.closed_seconds(queue) is None:
                _wake(places.get(lane, ()))
                tenant = worker_tenant(lane)
                if tenant is not None:
                    _wake(places.get(AnyLane(tenant), ()))

    def _rest(self, queues: Sequence[str]) -> float:
        """Until the next look, when nobody says that there is something."""
        closed = [self._claims.closed_seconds(queue) for queue in queues]
        return min([self._settings.poll_seconds, *(seconds for seconds in closed if seconds is not None)])

    # -- looking -------------------------------------------------------------------------------------

    async def _look(self, claimer: Claimer) -> Jobs:
        """Ask each queue in turn. One that fails is left out, unless all of them do."""
        claimed: list[Leased] = []
        problem: Exception | None = None
        answered = False
        for queue in claimer.queues:
            room = claimer.claimant.limit - len(claimed)
            if room <= 0 or claimer.gone:
                break
            try:
                claimed += await self._ask(queue, claimer, self._claimant(claimer, queue, room))
                answered = True
            except asyncio.CancelledError:
                self.give_back(claimed)
                raise
            except Exception as error:
                problem = error
                if not isinstance(error, Unavailable):
                    log.exception("claim.queue_failed", queue=queue)
        if claimer.gone:
            self.give_back(claimed)
            return []
        if problem is not None and not answered:
            raise problem
        return claimed

    def _claimant(self, claimer: Claimer, queue: str, room: int) -> Claimant:
        lease_seconds = claimer.claimant.lease_seconds or self._claims.lease_seconds(
            queue, self._settings.lease_seconds
        )
        return replace(claimer.claimant, limit=room, lease_seconds=lease_seconds)

    async def _ask(self, queue: str, claimer: Claimer, claimant: Claimant) -> Jobs:
        answer = self._counter(queue, claimer.lanes, claimer.brief).submit(claimant)
        try:
            # The statement is not this claimer's alone and goes on without it; so does what it brings.
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(self._unheard)
            raise

    def _unheard(self, answer: "asyncio.Future[Jobs]") -> None:
        if not answer.cancelled() and answer.exception() is None:
            self.give_back(answer.result())

    async def _release(self, job: Leased) -> None:
        try:
            await self._settler.settle_surely(
                as_settlement(job.id, job.lease_token, Released("claimer_gone"))
            )
        except Unavailable:
            # The lease decides.
            log.warning("claim.not_given_back", job_id=job.id)

    def _counter(self, queue: str, lanes: Lanes, brief: bool) -> Batcher[Claimant, Jobs]:
        counter = self._counters.get((queue, lanes, brief))
        if counter is None:

            async def flush(claimants: Sequence[Claimant]) -> Sequence[Jobs | Exception]:
                return await self._claim(queue, lanes, claimants, brief)

            counter = Batcher("claims", flush, max_weight=MAX_CLAIMED, weight=lambda claimant: claimant.limit)
            self._counters.put((queue, lanes, brief), counter)
        return counter

    async def _claim(
        self, queue: str, lanes: Lanes, claimants: Sequence[Claimant], brief: bool
    ) -> list[Jobs | Exception]:
        if isinstance(lanes, AnyLane):
            # Looked up each time: what there is to run is not known in advance.
            found = await self._claims.heads([queue], lanes_of(lanes.tenant))
            names = [head.lane for head in found if worker_tenant(head.lane) == lanes.tenant]
        else:
            names = list(lanes)
        claimed: Jobs = []
        if names and brief:
            briefly = await self._claims.claim_brief(queue, names, claimants)
            self._hub.announce(briefly)
            claimed = briefly.answers
        elif names:
            changes = await self._claims.claim_whole(queue, names, claimants)
            self._hub.announce(changes)
            claimed = changes.answers
        if len(claimants) == 1:
            return [claimed]
        # The statement assigned its rows in an order of its own; the worker's name on each tells whose it is.
        by_worker: dict[tuple[str, float], list[Leased]] = {}
        for job in claimed:
            by_worker.setdefault((job.worker, job.lease_seconds), []).append(job)
        dealt: list[Jobs | Exception] = []
        for claimant in claimants:
            pile = by_worker.get((claimant.worker, claimant.lease_seconds), [])
            dealt.append(pile[: claimant.limit])
            del pile[: claimant.limit]
        return dealt


def _lanes_of(claimer: Claimer) -> Sequence[str | AnyLane]:
    return [claimer.lanes] if isinstance(claimer.lanes, AnyLane) else claimer.lanes


def _wake(waiting: "set[Claimer] | tuple[()]") -> None:
    for claimer in waiting:
        claimer.alarm.ring()
