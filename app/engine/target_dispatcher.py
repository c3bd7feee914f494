"""Gives LLM jobs to targets.

A target with free slots looks at the head of every lane it can serve and chooses (targets/affinity.py). Slots
are exact over all replicas (engine/slots.py). Jobs that only sleeping targets could serve are
held back until one answers; jobs for models that nobody has are failed, once everybody was asked.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from app.config import Settings
from app.engine.pools import Pool, Seat, is_llm_lane
from app.engine.slots import SlotKeeper
from app.engine.worker import Worker
from app.errors import Unavailable
from app.events.hub import Hub
from app.executors.llm import LlmExecutor, UnservedExecutor
from app.jobs.lanes import LLM_LANES
from app.jobs.submission import NewJob
from app.loops.loop import Loop
from app.store.changes import Changes
from app.store.claims import Claimant
from app.store.database import Database
from app.store.heads import Head, HeadsWalk
from app.store.job import ClaimedJob
from app.store.low_water import LowWater
from app.store.targets import park, record_resident
from app.targets.affinity import affinity_of, choose
from app.targets.registry import Registry
from app.targets.target import Target
from app.telemetry import SWAPS, SWAPS_AVOIDED, TARGET_SLOTS_USED, Names

log = structlog.get_logger()

UNSERVED_SLOTS = 64
PARK_BATCH = 1000


class TargetDispatcher(Loop):
    """One per worker process."""

    def __init__(
        self, database: Database, hub: Hub, registry: Registry, worker: Worker, settings: Settings
    ) -> None:
        self._database = database
        self._hub = hub
        self._registry = registry
        self._worker = worker
        self._patience = settings.affinity_patience_seconds
        self._pools: dict[str, tuple[Target, Pool]] = {}
        # Pools of targets as they were configured before, while they still run jobs.
        self._retired: list[Pool] = []
        self._unserved = self._pool("unserved", UNSERVED_SLOTS, None)
        self.slots = SlotKeeper(database, worker.name, self._running_on)
        self._poll_seconds = settings.poll_seconds
        # Where work was announced since the last look, where that look saw some, whether it left any behind.
        self._hinted: set[tuple[str, str]] = set()
        self._queues: set[str] = set()
        self._walk = HeadsWalk(database)
        self._backlog = True
        self._looked = 0.0
        # A look is under way: it may be giving away what is free.
        self._looking = False
        super().__init__("dispatcher", self._round, interval=settings.poll_seconds)
        hub.subscribe(self._heard)
        registry.on_ready(self._targets_ready)
        registry.on_change(self._look_anew)

    def _heard(self, changes: Changes[Any]) -> None:
        ours = [place for place in changes.work if is_llm_lane(place[1])]
        if ours:
            self._hinted.update(ours)
            self.wake()

    def _running_on(self, target: str) -> int:
        pools = [pool for _, pool in self._pools.values()] + self._retired
        return sum(pool.used for pool in pools if pool.name == target)

    async def measure(self) -> None:
        """How many slots of each target this process uses, for whoever reads the metrics."""
        TARGET_SLOTS_USED.clear()
        names = Names()
        for target in self._registry.targets:
            TARGET_SLOTS_USED.labels(*names.known(target.name)).set(self._running_on(target.name))

    def _targets_ready(self, changes: Changes[None]) -> None:
        self._hub.announce(changes)
        self._look_anew()

    def _look_anew(self) -> None:
        """What could not be served before may be served now."""
        self._backlog = True
        self.wake()

    def _slot_freed(self) -> None:
        if self._backlog:
            self.wake()

    def _pool(self, name: str, slots: int, target: Target | None) -> Pool:
        executor = UnservedExecutor() if target is None else LlmExecutor(target)
        pool = Pool(name, executor, slots, lambda _: False, live=True)
        pool.on_settled = self._slot_freed
        return pool

    def _pool_of(self, target: Target) -> Pool:
        known = self._pools.get(target.name)
        if known is not None and known[0] is target:
            return known[1]
        pool = self._pool(target.name, target.config.slots, target)
        self.slots.forget(target.name)
        self._retired = [each for each in self._retired if each.used]
        if known is not None:
            self._retired.append(known[1])
        self._pools[target.name] = (target, pool)
        return pool

    # -- one look ------------------------------------------------------------------------------------

    async def _round(self) -> float | None:
        self._looking = True
        try:
            return await self._look()
        finally:
            self._looking = False

    async def _look(self) -> float | None:
        hinted, self._hinted = self._hinted, set()
        if self._stopping or self._registry.is_empty:
            return None
        now = time.monotonic()
        self._queues.update(queue for queue, _ in hinted)
        polling = now - self._looked >= self._poll_seconds
        if not (polling or self._backlog) and (not hinted or await self._serve_at_once(hinted)):
            return None
        if polling:
            self._looked = now
            self._queues.update(head.queue for head in await self._walk.next_page() if is_llm_lane(head.lane))
        waiting = await self._waiting() if self._queues else []
        self._queues = {head.queue for head in waiting}
        self._backlog = bool(waiting)
        if not waiting:
            return None
        again = False
        for target, mine in self._turns(waiting):
            again |= await self._serve(target, mine)
        again |= await self._care_for_the_rest(waiting)
        if again:
            return 0
        pauses = [target.breaker.seconds_left(now) for target, _ in self._pools.values()]
        return min((pause for pause in pauses if pause > 0), default=None)

    async def _waiting(self) -> list[Head]:
        waiting = await self._worker.claims.heads(self._queues, LLM_LANES)
        return [head for head in waiting if is_llm_lane(head.lane)]

    async def _serve_at_once(self, hinted: set[tuple[str, str]]) -> bool:
        """Nobody was waiting, and what came has room: there is nothing to choose between.

        False when it is not that simple.
        """
        if len(hinted) > 1:
            return False
        [(queue, lane)] = hinted
        serving = self._registry.serving_lane(lane)
        if len(serving.ready) != 1:
            return False
        [target] = serving.ready
        pool = self._pool_of(target)
        limit = await self._room(target, pool)
        if limit <= 0:
            return False
        claimed = await self._claim(target, pool, queue, lane, limit, affinity_of(lane))
        if len(claimed) < limit:
            return True
        # There may be more. With every slot taken there is nothing to look for until a run ends.
        self._backlog = True
        return await self._room(target, pool) <= 0

    # -- those who come in while there is room --------------------------------------------------------

    @property
    def low_water(self) -> LowWater:
        return self._worker.claims.low_water

    def claimant(self, queue: str) -> Claimant:
        return self._worker.claimant(queue, 1)

    def seat_for(self, job: NewJob) -> Seat | None:
        """A slot for a job that is about to come in, if there is nothing to choose between: nobody waits, one
        target serves its lane, and that is ready for it. None where it has to get in line."""
        if self._stopping or self._looking or self._backlog or self._hinted:
            return None
        serving = self._registry.serving_lane(job.lane)
        if len(serving.ready) != 1 or self._worker.claims.closed_seconds(job.queue) is not None:
            return None
        [target] = serving.ready
        resident = affinity_of(job.lane)
        if target.resident != resident or not target.is_resident(resident) or not target.breaker.is_closed:
            return None
        pool = self._pool_of(target)
        if self.slots.free(target.name) <= 0:
            return None
        pool.arriving += 1
        return Seat(target, pool)

    async def begin(self, seats: Mapping[str, Seat], jobs: Sequence[ClaimedJob]) -> None:
        """Run those that have come in, each in its seat."""
        for job in jobs:
            seat = seats[job.id]
            seat.leave()
            try:
                if self._stopping:
                    await self._worker.give_back([job])
                else:
                    await self._begin(seat.target, seat.pool, [job])
            except Unavailable:
                # It is in the database, with a lease that runs out.
                log.warning("dispatcher.not_begun", job_id=job.id)

    def _turns(self, waiting: Sequence[Head]) -> list[tuple[Target, list[Head]]]:
        """Each target with the lanes it can serve: first those that need not swap, then the least busy."""
        mine: dict[str, list[Head]] = {}
        for head in waiting:
            for target in self._registry.serving_lane(head.lane).ready:
                mine.setdefault(target.name, []).append(head)

        def order(turn: tuple[Target, list[Head]]) -> tuple[bool, float]:
            target, heads_of_it = turn
            choice = choose(heads_of_it, target.resident, self._patience)
            pool = self._pool_of(target)
            return choice is None or choice.swaps, pool.running / pool.slots

        return sorted(((t, mine[t.name]) for t in self._registry.targets if t.name in mine), key=order)

    async def _serve(self, target: Target, mine: list[Head]) -> bool:
        """Claim what goes next on this target; True when another look is due at once."""
        pool = self._pool_of(target)
        while mine and not self._stopping:
            room = await self._room(target, pool)
            choice = choose(mine, target.resident, self._patience)
            if room <= 0 or choice is None:
                return False
            # One at a time where lanes or targets compete, so that each turn is decided anew.
            contested = len(mine) > 1 or len(self._registry.serving_lane(mine[0].lane).ready) > 1
            limit = 1 if contested else room
            head = choice.head
            jobs = await self._claim(target, pool, head.queue, head.lane, limit, choice.resident)
            if jobs and choice.avoided:
                SWAPS_AVOIDED.labels(target.name).inc()
            if jobs and contested:
                # The lane's next job may rank lower than another's, or be another target's turn: look again.
                return True
            if len(jobs) < limit:
                mine.remove(head)
        return False

    async def _room(self, target: Target, pool: Pool) -> int:
        """How many jobs the target can be given now."""
        passing = target.breaker.room(time.monotonic())
        if passing == 0:
            return 0
        free = self.slots.free(target.name) or await self.slots.more(target.name, pool.slots)
        return free if passing is None else min(free, passing)

    async def _claim(
        self, target: Target, pool: Pool, queue: str, lane: str, limit: int, resident: str
    ) -> list[ClaimedJob]:
        claimant = self._worker.claimant(queue, limit)
        # Where the model is resident there is nothing to load. Should it be gone by now, the target loads it
        # while the job is working; its usage still tells how long that took.
        starts = target.is_resident(resident)
        jobs = await self._claim_from(queue, [lane], claimant, runs_on=target.name, starts=starts)
        jobs = await self._begin(target, pool, jobs)
        if jobs and target.resident != resident:
            SWAPS.labels(target.name).inc()
            target.resident = resident
            await record_resident(self._database, target.name, resident)
        return jobs

    async def _begin(self, target: Target, pool: Pool, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
        """Run what was claimed just now; those that do."""
        if not jobs:
            return jobs
        # The claim may have outlasted the hold on the slots; what has none left goes back.
        room = await self.slots.confirm(target.name, pool.slots, len(jobs))
        await self._worker.give_back(jobs[room:])
        jobs = jobs[:room]
        if jobs:
            target.breaker.passes()
            self._worker.begin(pool, jobs)
        return jobs

    async def _claim_from(
        self,
        queue: str,
        lanes: Sequence[str],
        claimant: Claimant,
        *,
        runs_on: str | None = None,
        starts: bool = False,
    ) -> list[ClaimedJob]:
        """One queue's trouble is not the others'; when it is asked again is up to `Claims`."""
        try:
            changes = await self._worker.claims.claim(
                queue, lanes, [claimant], runs_on=runs_on, starts=starts
            )
        except Unavailable:
            raise
        except Exception:
            log.exception("dispatcher.claim_failed", queue=queue)
            return []
        self._hub.announce(changes)
        return changes.answers

    async def _care_for_the_rest(self, waiting: Sequence[Head]) -> bool:
        """Those whom no target that is awake can serve."""
        asleep: dict[str, list[str]] = {}
        unserved: dict[str, list[str]] = {}
        for head in waiting:
            serving = self._registry.serving_lane(head.lane)
            if serving.ready or serving.unasked:
                continue
            (asleep if serving.asleep else unserved).setdefault(head.queue, []).append(head.lane)
        again = False
        for queue, lanes in asleep.items():
            parked = await self._park(queue, lanes)
            self._hub.announce(parked)
            again |= len(parked.answers) == PARK_BATCH
        if unserved:
            again |= await self._fail_unserved(unserved)
        return again

    async def _park(self, queue: str, lanes: Sequence[str]) -> Changes[str]:
        try:
            return await park(self._database, queue, lanes, PARK_BATCH)
        except Unavailable:
            raise
        except Exception:
            log.exception("dispatcher.park_failed", queue=queue)
            return Changes()

    async def _fail_unserved(self, unserved: dict[str, list[str]]) -> bool:
        await self._registry.refresh()
        for queue, lanes in unserved.items():
            still = [lane for lane in lanes if self._registry.serving_lane(lane).is_unknown]
            free = self._unserved.free
            if len(still) < len(lanes):
                return True
            if not free:
                return False
            jobs = await self._claim_from(queue, still, self._worker.claimant(queue, free))
            self._worker.begin(self._unserved, jobs)
        return False
