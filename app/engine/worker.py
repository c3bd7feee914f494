"""The worker: claim → run → settle, with bounded slots.

What it knows of waiting work are hints: for each pool the queues, and in them the lanes, that may have jobs
for it; told by the hub at once and looked up in the database at each poll. A claim that comes back short
forgets its lanes again. What no pool runs is not remembered at all.
"""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from app.config import Settings
from app.engine.event_writer import EventWriter, Transcript
from app.engine.instant_runs import InstantRuns
from app.engine.pools import Asked, Pool
from app.engine.settler import Settler, as_settlement
from app.errors import Unavailable
from app.events.hub import Hub
from app.events.live_output import Part
from app.executors.protocol import Executor, InstantExecutor
from app.jobs.outcomes import Cancelled, JobError, Outcome, Released, Retry, Succeeded
from app.jobs.states import Verb
from app.loops.loop import Loop
from app.store.changes import Changes
from app.store.claims import Claimant, Claims
from app.store.database import Database
from app.store.heads import HeadsWalk
from app.store.job import ClaimedJob
from app.store.settle import Settlement, heartbeat
from app.telemetry import RUNNING

log = structlog.get_logger()

MAX_CLAIM = 1000
QUEUES_A_TURN = 50
RENEW_RETRY_SECONDS = 0.5


class LeaseLostError(Exception):
    """The lease is gone: stop, and settle nothing."""


@dataclass(slots=True, eq=False)
class Run:
    """One job on its way through this process; what its executor sees as its RunContext."""

    worker: "Worker"
    job: ClaimedJob
    pool: Pool
    executor: Executor
    claimed_at: float
    lease_seconds: float
    transcript: Transcript | None = None
    task: "asyncio.Task[None] | None" = None
    executing: bool = True
    cancel_requested: bool = False
    lease_lost: bool = False

    async def start(self) -> None:
        if not self.job.started:
            await self.worker.start_run(self)

    def output(self, part: Part) -> None:
        transcript = self.transcript
        if transcript is None:
            transcript = self._transcript()
        transcript.say(part)

    async def progress(self, **fields: Any) -> None:
        await self._note("progress", fields, progress=fields)

    async def log(self, level: str, message: str) -> None:
        await self._note("log", {"level": level, "message": message})

    async def _note(
        self, type_: str, data: dict[str, Any], *, progress: dict[str, Any] | None = None
    ) -> None:
        try:
            held = await self._transcript().note(type_, data, progress=progress)
        except Unavailable:
            # As with output: what could not be written down is no reason to run the job once more.
            log.warning("worker.note_not_written", job_id=self.job.id, type=type_)
            return
        if not held:
            self.lease_lost = True
            raise LeaseLostError

    def _transcript(self) -> Transcript:
        if self.transcript is None:
            self.transcript = Transcript(self.worker.event_writer, self.job)
        return self.transcript

    def open_feed(self) -> None:
        self._transcript().open()


class Worker:
    """Claims for its pools and runs what it claimed."""

    def __init__(
        self,
        database: Database,
        hub: Hub,
        settler: Settler,
        event_writer: EventWriter,
        claims: Claims,
        pools: list[Pool],
        settings: Settings,
    ) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._database = database
        self._hub = hub
        self._settler = settler
        self.event_writer = event_writer
        self._pools = pools
        self.claims = claims
        self._lease_seconds = settings.lease_seconds
        self._poll_seconds = settings.poll_seconds
        self._grace_seconds = settings.shutdown_grace_seconds
        self._walk = HeadsWalk(database)
        self._last_poll = 0.0
        self._runs: dict[str, Run] = {}
        self._stopping = False
        self._claimer = Loop("worker", self._claim_round, interval=settings.poll_seconds)
        self._instant_runs = InstantRuns(settler, self._claimer.wake)
        self._renew_seconds = min(settings.lease_seconds / 3, 5)
        # Running jobs that are to stop, as far as is known.
        self._in_doubt: set[str] = set()
        # Back soon after an outage: the sweepers wait for it, but not for long (store/sweep.py).
        self._keeper = Loop(
            "lease-keeper", self._renew, interval=self._renew_seconds, longest_retry=RENEW_RETRY_SECONDS
        )
        # Read when it is asked for: counting up and down would cost more than a noop does.
        RUNNING.set_function(lambda: float(len(self._runs) + len(self._instant_runs)))
        hub.subscribe(self._heard)

    async def start(self) -> None:
        await self._claimer.start()
        await self._keeper.start()

    def claimant(self, queue: str, limit: int) -> Claimant:
        """What this worker claims in a queue with: its name, and the queue's lease or the server's."""
        return Claimant(self.name, limit, self.claims.lease_seconds(queue, self._lease_seconds))

    async def stop(self) -> None:
        """Claim no more; let runs finish within the grace; give the rest back to the queue."""
        self._stopping = True
        await self._claimer.stop()
        await self._give_back_ahead()
        tasks = [run.task for run in self._runs.values() if run.task] + self._instant_runs.tasks()
        if tasks:
            _, unfinished = await asyncio.wait(tasks, timeout=self._grace_seconds)
            for run in list(self._runs.values()):
                self._interrupt(run)
            if unfinished:
                await asyncio.wait(unfinished, timeout=self._lease_seconds)
        await self._keeper.stop()
        await self._settler.drain()

    # -- claiming ------------------------------------------------------------------------------------

    def _heard(self, changes: Changes[Any]) -> None:
        for queue in changes.room:
            self.claims.place_freed(queue)
        learnt = [self._learn(queue, lane) for queue, lane in changes.work]
        if changes.room or changes.settings or any(learnt):
            self._claimer.wake()
        stopped = changes.cancels & self._runs.keys()
        if stopped:
            # Whether they are cancelled or not theirs any more is asked of the database, and at once.
            self._in_doubt |= stopped
            self._keeper.wake()

    def _learn(self, queue: str, lane: str) -> bool:
        """There may be work in this lane; whether it is for any of the pools."""
        ours = False
        for pool in self._pools:
            if pool.accepts(lane):
                pool.known.setdefault(queue, set()).add(lane)
                ours = True
        return ours

    async def _claim_round(self) -> float | None:
        now = time.monotonic()
        if now - self._last_poll >= self._poll_seconds:
            self._last_poll = now
            for head in await self._walk.next_page():
                self._learn(head.queue, head.lane)
        again = False
        for pool in self._pools:
            again |= await self._claim_for(pool)
        return 0 if again else min(self._poll_seconds, self.claims.seconds_until_open())

    async def _claim_for(self, pool: Pool) -> bool:
        """Ask the queues with work for this pool, each in turn; True when there may be more."""
        again = False
        for queue in list(pool.ahead):
            again |= await _by_itself(queue, self._take_up(pool, queue, pool.ahead.pop(queue)))
        asked = 0
        for queue in list(pool.known):
            if self._stopping or not pool.free:
                return False
            if queue in pool.ahead or self.claims.closed_seconds(queue) is not None:
                continue
            asked += 1
            if asked > QUEUES_A_TURN:
                # The other pools have their turn, too, and the next look.
                return True
            again |= await _by_itself(queue, self._claim(pool, queue))
        return again

    async def _claim(self, pool: Pool, queue: str) -> bool:
        """Claim up to the pool's free slots; True when there may be more."""
        asked = self._ask(pool, queue, pool.free)
        return asked is not None and await self._take_up(pool, queue, asked)

    def _ask(self, pool: Pool, queue: str, room: int) -> Asked | None:
        limit = min(room, MAX_CLAIM)
        if limit <= 0:
            return None
        # Forgotten before the look, not after: a hint that comes in meanwhile must not be lost. Remembered
        # behind the others, so that a queue that always has work does not keep the next one from its turn.
        lanes = pool.lanes(pool.known.pop(queue))
        if not lanes:
            return None
        return Asked(lanes, limit, self.claims.claim(queue, lanes, [self.claimant(queue, limit)]))

    async def _take_up(self, pool: Pool, queue: str, asked: Asked) -> bool:
        """Run what a claim brings; True when there may be more."""
        more = True
        try:
            changes = await asked.answer
            claimed = changes.answers
            more = len(claimed) == asked.limit or self.claims.closed_seconds(queue) is not None
        finally:
            if more:
                pool.known.setdefault(queue, set()).update(asked.lanes)
        if more:
            self._claim_ahead(pool, queue, pool.free - len(claimed))
        self._hub.announce(changes)
        if claimed:
            self.begin(pool, claimed)
        return more and self.claims.closed_seconds(queue) is None and pool.free > 0

    def _claim_ahead(self, pool: Pool, queue: str, room: int) -> None:
        """The next claim is under way while jobs that end at once do so: PostgreSQL does not wait for us."""
        if self._stopping or not isinstance(pool.executor, InstantExecutor):
            return
        if self.claims.closed_seconds(queue) is None and (asked := self._ask(pool, queue, room)) is not None:
            answer = asyncio.ensure_future(asked.answer)
            answer.add_done_callback(lambda _: self._claimer.wake())
            pool.ahead[queue] = replace(asked, answer=answer)

    async def _give_back_ahead(self) -> None:
        """We stop: what was claimed ahead and has not begun goes back to its queue."""
        for asked in [asked for pool in self._pools for asked in pool.ahead.values()]:
            try:
                changes = await asked.answer
                self._hub.announce(changes)
                await self.give_back(changes.answers)
            except Exception:
                # Whatever it brought is another's once its lease has run out.
                log.exception("worker.not_given_back")

    # -- running -------------------------------------------------------------------------------------

    def begin(self, pool: Pool, claimed: Sequence[ClaimedJob]) -> None:
        """Run what was claimed in this worker's name."""
        now = time.monotonic()
        executor = pool.executor
        if isinstance(executor, InstantExecutor):
            self._instant_runs.begin(pool, executor, claimed, now)
        else:
            for job in claimed:
                self._begin(Run(self, job, pool, executor, now, job.lease_seconds))
        if any(job.lease_seconds < self._lease_seconds for job in claimed):
            self._keeper.wake()

    async def give_back(self, claimed: Sequence[ClaimedJob]) -> None:
        """Return to the queue what was claimed in this worker's name and cannot be run after all."""
        if claimed:
            await self._settler.settle_many(
                [as_settlement(job.id, job.lease_token, Released()) for job in claimed]
            )

    def _begin(self, run: Run) -> None:
        run.pool.running += 1
        if former := self._runs.get(run.job.id):
            # The same job again: the lease of the run that is still here was given up on.
            self._lost(former)
        self._runs[run.job.id] = run
        if run.pool.live:
            run.open_feed()
        run.task = asyncio.create_task(self._run(run))

    async def _run(self, run: Run) -> None:
        result: str | None = None
        try:
            outcome = await self._execute(run)
            run.executing = False
            run.pool.running -= 1
            run.pool.settling += 1
            self._has_room(run.pool)
            output: str | None = None
            if run.transcript is not None:
                output = await run.transcript.finish(result_follows=isinstance(outcome, Succeeded))
            if outcome is not None:
                settlement = as_settlement(run.job.id, run.job.lease_token, outcome)
                settlement.output = output
                settled = await self._settler.settle_surely(settlement)
                if isinstance(outcome, Succeeded) and settled.ok and settled.state == "done":
                    result = outcome.result
        except Unavailable:
            log.warning("worker.settlement_given_up", job_id=run.job.id)
        except Exception:
            log.exception("worker.settlement_failed", job_id=run.job.id)
        finally:
            if run.transcript is not None:
                run.transcript.close(result)
            if run.executing:
                run.pool.running -= 1
            else:
                run.pool.settling -= 1
            if self._runs.get(run.job.id) is run:
                del self._runs[run.job.id]
            run.pool.on_settled()
            self._has_room(run.pool)

    def _has_room(self, pool: Pool) -> None:
        """Claims for the others are not made here."""
        if pool in self._pools:
            self._claimer.wake()

    async def _execute(self, run: Run) -> Outcome | None:
        """Run the job; None when the lease was lost and there is nothing to settle."""
        job = run.job
        try:
            if job.max_duration_seconds is None:
                return await run.executor.run(job, run)
            async with asyncio.timeout(job.max_duration_seconds):
                return await run.executor.run(job, run)
        except LeaseLostError:
            return None
        except asyncio.CancelledError:
            if run.lease_lost:
                return None
            return Cancelled() if run.cancel_requested else Released()
        except TimeoutError:
            return _again("attempt_timeout", "The attempt took longer than max_duration_seconds.")
        except Unavailable:
            # The database went away under the run. The lease decides what happens next.
            return _again("unavailable", "The database was not reachable during the run.")
        except Exception as problem:
            log.exception("worker.executor_crashed", job_id=job.id, kind=job.kind)
            return _again("executor_crashed", f"The executor crashed: {type(problem).__name__}.")

    async def start_run(self, run: Run) -> None:
        """loading → working."""
        settled = await self._settler.settle_surely(Settlement(run.job.id, run.job.lease_token, Verb.START))
        if not settled.ok:
            run.lease_lost = True
            raise LeaseLostError

    # -- leases and cancels --------------------------------------------------------------------------

    async def _renew(self) -> float | None:
        now = time.monotonic()
        in_doubt, self._in_doubt = self._in_doubt, set()
        await self._heartbeat(
            run
            for run in self._runs.values()
            if run.job.id in in_doubt or now - run.claimed_at > run.lease_seconds / 4
        )
        shortest = await self._instant_runs.renew(self._database, now)
        # A queue may have a shorter lease than the server.
        return min(self._renew_seconds, shortest / 3, *(run.lease_seconds / 3 for run in self._runs.values()))

    async def _heartbeat(self, runs: Iterable[Run]) -> None:
        runs = [run for run in runs if not run.lease_lost]
        if not runs:
            return
        leases = await heartbeat(self._database, [(run.job.id, run.job.lease_token) for run in runs])
        for run in runs:
            lease = leases.get(run.job.id)
            if lease is None:
                # Either lost, or settled in this very moment; then there is nothing left to interrupt.
                self._lost(run)
            elif lease.cancel_requested:
                self._cancel(run)

    def _lost(self, run: Run) -> None:
        run.lease_lost = True
        self._interrupt(run)

    def _cancel(self, run: Run) -> None:
        if not run.cancel_requested:
            run.cancel_requested = True
            self._interrupt(run)

    def _interrupt(self, run: Run) -> None:
        # Once executed, the settlement on its way must not be cut off.
        if run.task is not None and run.executing:
            run.task.cancel()


async def _by_itself(queue: str, claiming: Awaitable[bool]) -> bool:
    """One queue's trouble is not the others'; when it is asked again is up to `Claims`."""
    try:
        return await claiming
    except Unavailable:
        raise
    except Exception:
        log.exception("worker.claim_failed", queue=queue)
        return False


def _again(code: str, message: str) -> Retry:
    return Retry(JobError(code, message, retryable=True))
