"""The scheduler: enqueues the jobs of schedules at their ticks.

Every replica runs one. The tick's row is held while its job is enqueued in the same commit, so each tick
makes exactly one job over all replicas, whichever of them dies when. Ticks that nobody was there for are
made up for by one job.
"""

from datetime import datetime, timedelta
from typing import Any

import orjson
import structlog

from app.engine.intake import Intake
from app.errors import ForemanError, Unavailable
from app.events.hub import Hub
from app.jobs.cron import due_ticks, next_tick
from app.jobs.submission import MAX_METADATA_ENTRIES, NewJob, parse_job
from app.loops.loop import Loop
from app.loops.off_loop import off_loop
from app.store import schedules
from app.store.database import Database, translated
from app.store.enqueue import Enqueued
from app.store.idempotency import Receipt, Submission
from app.store.schedules import DueSchedule, Schedule, Ticked
from app.telemetry import TICKS

log = structlog.get_logger()

# Later than this a tick counts as missed. A hiccup of a replica is shorter, an outage is longer.
PATIENCE = timedelta(seconds=3)
# When an expression has no further tick, the schedule sleeps.
NEVER = datetime.fromisoformat("9999-01-01T00:00:00+00:00")
MAX_DEPTH = 500
# For how long a schedule whose next tick cannot be computed here is left alone.
PUT_OFF = timedelta(minutes=1)


class Scheduler(Loop):
    def __init__(self, database: Database, hub: Hub, intake: Intake, poll_seconds: float) -> None:
        self._database = database
        self._intake = intake
        self._poll_seconds = poll_seconds
        super().__init__("scheduler", self._run_once, interval=poll_seconds)
        hub.wakes(self, lambda changes: bool(changes.schedules))

    async def _run_once(self) -> float | None:
        seconds = await schedules.seconds_until_next(self._database)
        if seconds is not None and seconds <= 0:
            while await self._tick():
                pass
            seconds = await schedules.seconds_until_next(self._database)
        return None if seconds is None else min(max(seconds, 0.002), self._poll_seconds)

    async def _tick(self) -> bool:
        """Enqueue what one schedule is due for; False when none is."""
        enqueued: list[tuple[Submission, Enqueued]] = []
        async with self._database.transaction() as connection:
            schedule = await schedules.take_due(connection)
            if schedule is None:
                return False
            cron, zone, now = schedule.cron, schedule.timezone, schedule.now
            try:
                ticks = due_ticks(cron, zone, schedule.next_at, now, patience=PATIENCE)
                following = next_tick(cron, zone, max(ticks[-1], schedule.next_at)) or NEVER
            except Exception as problem:
                # Such as a time zone that is not known on this machine. It would come first again and again:
                # it is put off, for the others are behind it.
                log.exception("scheduler.no_next_tick", schedule=schedule.name)
                ticked = Ticked(now, "error", error=f"the next tick is not known: {type(problem).__name__}")
                await schedules.move_on(connection, schedule.name, now + PUT_OFF, [ticked])
                return True
            outcomes = [await self._enqueue(connection, schedule, tick, enqueued) for tick in ticks]
            await schedules.move_on(connection, schedule.name, following, outcomes)
        for ticked in outcomes:
            TICKS.labels(ticked.outcome).inc()
        for submission, changes in enqueued:
            self._intake.announce([submission], changes)
        return True

    async def _enqueue(
        self,
        connection: Any,
        schedule: DueSchedule,
        tick: datetime,
        enqueued: list[tuple[Submission, Enqueued]],
    ) -> Ticked:
        """One job; what is wrong with it is remembered, and the schedule goes on."""
        try:
            size = len(schedule.job)
            job = await off_loop(size, job_of, schedule)
            submission = Submission([job], job.tenant)
            self._intake.begin_trace(submission)
            await off_loop(size, self._intake.apply_rules, [job])
            # A savepoint: what goes wrong with one job does not take the schedule with it. A database that is
            # away or full is no fault of the job: then the tick stays due.
            with translated(self._database.outage):
                async with connection.transaction():
                    result = await self._intake.managed.enqueue_in(connection, [submission])
            receipt = result.answers[0]
            if not isinstance(receipt, Receipt):
                raise receipt
        except Unavailable:
            raise
        except ForemanError as refusal:
            return Ticked(tick, refusal.code, error=refusal.detail)
        except Exception as problem:
            log.exception("scheduler.tick_failed", schedule=schedule.name)
            return Ticked(tick, "error", error=type(problem).__name__)
        enqueued.append((submission, result))
        answer = receipt.each()[0]
        return Ticked(tick, answer.outcome, answer.job_id)


def job_of(schedule: Schedule) -> NewJob:
    """A job as this schedule makes them."""
    body = schedule.job.encode()
    job = parse_job(body, schedule.tenant, MAX_DEPTH)
    metadata = orjson.loads(job.metadata) if job.metadata else {}
    if len(metadata) < MAX_METADATA_ENTRIES:
        # Where it came from, for whoever looks for its jobs.
        job.metadata = orjson.dumps({"schedule": schedule.own_name, **metadata}).decode()
    job.request_id = job.id
    return job
