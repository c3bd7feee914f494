"""What a queued job waits for: the gates in its way, who would take it, and who goes first."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import UNSET

from app.engine.claimers import Claimers
from app.engine.explain_run import (
    MAX_COUNTED,
    attempt_of,
    cancel_reasons,
    deadline_reasons,
    other_jobs,
)
from app.engine.explain_targets import TargetsOfJob
from app.jobs.explanation import (
    Code,
    OtherJob,
    Reason,
    clock,
    error_of,
    lasting,
    named,
    number,
    quoted,
    sentence,
    soon,
)
from app.jobs.lanes import TARGET_ASLEEP, worker_tenant
from app.jobs.queue_settings import QueueSettings
from app.jobs.states import RUNNING, Verb
from app.jobs.tenants import owned, unscoped
from app.store import dependencies, keys
from app.store import explain as store
from app.store.database import Database
from app.store.explain import ExplainedJob, StandingQueue
from app.store.limits import refill_seconds


@dataclass(slots=True)
class WaitingJob:
    """A queued job, and where to look for what it waits for."""

    database: Database
    claimers: Claimers
    targets: TargetsOfJob
    job: ExplainedJob
    rules: QueueSettings

    async def reasons(
        self, queue: StandingQueue | None, position: int | None, *, sees_all: bool
    ) -> list[Reason]:
        """In the order in which they decide. What is not due yet is not asked who would take it."""
        job = self.job
        paused = [] if queue is None else self._paused(queue, sees_all=sees_all)
        if job.ready_at is None:
            found = await self._held_back() + paused
        else:
            found = paused + await self._nobody() + await self.targets.reasons() + await self._limits(queue)
            found += await self._in_line(position, alone=not found)
        if job.attempt and not any(each.code is Code.BACKING_OFF for each in found):
            found += self._failed_before()
        return found + cancel_reasons(job, 0.0) + deadline_reasons(job)

    # -- the queue -----------------------------------------------------------------------------------

    def _paused(self, queue: StandingQueue, *, sees_all: bool) -> list[Reason]:
        since = queue.paused_at
        if since is None or since.tzinfo is None:
            return []
        by = None
        if queue.paused_by is not None:
            tenant, name = owned(queue.paused_by)
            by = name if sees_all or tenant == self.job.tenant else None
        words = f"the queue {self.job.queue} was paused at {clock(since, self.job.now)}"
        return [
            Reason(
                code=Code.PAUSED,
                message=sentence(words, f"by {by}" if by else ""),
                since=since,
                queue=self.job.queue,
                by=by or UNSET,
            )
        ]

    async def _limits(self, queue: StandingQueue | None) -> list[Reason]:
        name, most, found = self.job.queue, self.rules.max_running, []
        if most is not None:
            running = await store.count_running(self.database, name, most)
            if running >= most:
                words = f"the queue {name} runs {number(running, 'job')}, as many as it may at once"
                found.append(
                    Reason(
                        code=Code.MAX_RUNNING,
                        message=sentence(words),
                        queue=name,
                        limit=most,
                        running=running,
                    )
                )
        return found + ([] if queue is None else self._out_of_tokens(queue))

    def _out_of_tokens(self, queue: StandingQueue) -> list[Reason]:
        rate, now = self.rules.rate, self.job.now
        if rate is None or queue.tokens is None or queue.refilled_at is None:
            return []
        waited = max(0.0, (now - queue.refilled_at).total_seconds())
        seconds = refill_seconds(rate, queue.tokens + waited * rate.per_second)
        if seconds <= 0:
            return []
        until = now + timedelta(seconds=seconds)
        pace = f"{rate.limit:g} per {'second' if rate.per_seconds == 1 else lasting(rate.per_seconds)}"
        words = f"the queue {self.job.queue} has used up its rate of {pace}: the next goes {soon(until, now)}"
        return [
            Reason(
                code=Code.RATE,
                message=sentence(words),
                queue=self.job.queue,
                limit=rate.limit,
                per_seconds=rate.per_seconds,
                until=until,
            )
        ]

    async def _in_line(self, position: int | None, *, alone: bool) -> list[Reason]:
        job = self.job
        if self.rules.fair_by is not None and job.fair_value is not None:
            ahead = await store.count_fair_ahead(self.database, job)
            jobs = f"{number(ahead, 'job')} of its turn {_is(ahead)}" if ahead else "none of its turn is"
            words = f"the queue {job.queue} takes turns by {self.rules.fair_by}: {jobs} ahead of it"
            return [Reason(code=Code.FAIR_BY, message=sentence(words), queue=job.queue, ahead=ahead)]
        ahead = (position or 1) - 1
        if ahead:
            of = "for its model" if job.model else "of its kind"
            words = f"{number(ahead, 'job')} {of} {_is(ahead)} ahead of it in the queue {job.queue}"
            return [Reason(code=Code.JOBS_AHEAD, message=sentence(words), queue=job.queue, ahead=ahead)]
        words = "it is next in line, and goes as soon as somebody is free to take it"
        return [Reason(code=Code.NEXT, message=sentence(words), queue=job.queue, ahead=0)] if alone else []

    async def _nobody(self) -> list[Reason]:
        """Nobody has lately asked for its kind."""
        job = self.job
        since = (await self.claimers.missing([job])).get(job.id)
        if since is None or since.tzinfo is None:
            return []
        if worker_tenant(job.lane) is None:
            code = Code.NO_WORKER_PROCESS
            words = (
                f"no process of Foreman that runs jobs has been about since {clock(since, job.now)}:"
                " start one with --role all or --role worker"
            )
        else:
            code = Code.NO_WORKER
            words = f"no worker has asked for jobs of kind {job.kind} in the queue {job.queue}"
            words += f" since {clock(since, job.now)}"
        return [Reason(code=code, message=sentence(words), since=since, kind=job.kind, queue=job.queue)]

    # -- gates ---------------------------------------------------------------------------------------

    async def _held_back(self) -> list[Reason]:
        """It could not be claimed: other jobs, time, its target or its key are in the way."""
        job = self.job
        if job.gate == dependencies.GATE:
            scheduled = [self._scheduled(job.due_at)] if job.due_at and job.due_at > job.now else []
            return [await self._waiting_for(), *scheduled]
        if job.gate == keys.GATE and job.concurrency_key is not None:
            return await self._in_line_for_key(job.concurrency_key)
        return await self._not_due()

    async def _waiting_for(self) -> Reason:
        job = self.job
        ids = await store.dependencies_of(self.database, job.id, MAX_COUNTED)
        found = await store.related_jobs(self.database, ids, job.tenant)
        names = named((f"{each.id} ({each.state})" for each in found), len(ids) - len(found))
        must = f"{number(len(ids), 'job')} {'has' if len(ids) == 1 else 'have'}"
        words = f"{must} to {'end' if job.on_dependency_failure == 'run' else 'be done'} first"
        words += f": {names}" if names else ""
        named_jobs = other_jobs(found)
        return Reason(
            code=Code.WAITING_FOR,
            message=sentence(words),
            since=job.entered_at,
            jobs=named_jobs,
            others=len(ids) - len(named_jobs),
        )

    async def _in_line_for_key(self, kept: str) -> list[Reason]:
        job, key = self.job, unscoped(self.job.tenant, kept)
        ids = await store.holders_of_key(self.database, job.queue, kept, MAX_COUNTED)
        ahead = await store.count_key_ahead(self.database, job)
        found = await store.related_jobs(self.database, ids, job.tenant)
        holders = other_jobs(found)
        reasons = self._blocked(key, holders)
        behind = f"; {number(ahead, 'job')} {_is(ahead)} ahead of it" if ahead else ""
        if ids:
            names = named(
                (_holder(each.job_id, each.state, each.worker) for each in holders), len(ids) - len(holders)
            )
            words, code = f"its key {key} is held by {names}{behind}", Code.KEY_BUSY
        else:
            words, code = f"its key {key} is free and about to be given to the next{behind}", Code.DUE
        reasons.append(
            Reason(
                code=code,
                message=sentence(words),
                key=key,
                queue=job.queue,
                ahead=ahead,
                limit=self.rules.max_active or 1,
                running=len(ids),
                jobs=holders,
                others=len(ids) - len(holders),
            )
        )
        return reasons

    def _blocked(self, key: str, holders: Sequence[OtherJob]) -> list[Reason]:
        """Who holds the key has lost its lease, and the queue waits for somebody to look after it."""
        lost = [
            each
            for each in holders
            if each.state in RUNNING and each.lease_expires_at and each.lease_expires_at <= self.job.now
        ]
        if not lost or self.rules.stale_policy != "block":
            return []
        words = (
            f"{named(each.job_id for each in lost)} keeps the key {key} although its lease has run out:"
            " with the stale_policy block its worker has to come back, or it has to be cancelled"
        )
        return [
            Reason(code=Code.KEY_BLOCKED, message=sentence(words), key=key, queue=self.job.queue, jobs=lost)
        ]

    async def _not_due(self) -> list[Reason]:
        job, verb = self.job, await self._verb()
        if job.reason == TARGET_ASLEEP:
            asleep = await self.targets.held_back()
            return [*asleep, self._deferred()] if verb == Verb.DEFER else asleep
        if job.due_at is None or job.due_at <= job.now:
            return [Reason(code=Code.DUE, message="Its time has come, and it is about to be claimable.")]
        match verb:
            case Verb.RETRY:
                return [self._backing_off(job.due_at)]
            case Verb.DEFER:
                return [self._deferred()]
            case Verb.RELEASE:
                return [self._released(job.due_at)]
            case _:
                return [self._scheduled(job.due_at)]

    async def _verb(self) -> str | None:
        """By which it came to wait; one that was never claimed came in so."""
        if self.job.started_at is None:
            return Verb.ENQUEUE
        event = await store.last_state_event(self.database, self.job.id)
        return self.job.reason if event is None else event.verb

    def _scheduled(self, at: datetime) -> Reason:
        words = f"it is not to run before {clock(at, self.job.now)}, {soon(at, self.job.now)}"
        return Reason(code=Code.SCHEDULED, message=sentence(words), until=at)

    def _backing_off(self, at: datetime) -> Reason:
        job, error = self.job, error_of(self.job.error)
        said = f": {error.message.rstrip('.')}" if error else ""
        return Reason(
            code=Code.BACKING_OFF,
            message=sentence(f"{attempt_of(job)} failed{said}; it is tried again {soon(at, job.now)}"),
            since=job.entered_at,
            until=at,
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            error=error or UNSET,
        )

    def _deferred(self) -> Reason:
        job, error, at = self.job, error_of(self.job.error), self.job.due_at
        why = (error.message if error else quoted(job.reason or "")).rstrip(".")
        times = "once" if job.deferrals == 1 else f"{job.deferrals} times"
        again = f"; it is tried again {soon(at, job.now)}" if at is not None and at > job.now else ""
        return Reason(
            code=Code.DEFERRED,
            message=sentence(
                f"it was put off {times}, which costs no attempt" + (f": {why}" if why else "") + again
            ),
            since=job.entered_at,
            until=at if at is not None else UNSET,
            deferrals=job.deferrals,
            reason=job.reason or UNSET,
            error=error or UNSET,
        )

    def _released(self, at: datetime) -> Reason:
        job = self.job
        said = f" ({quoted(job.reason)})" if job.reason and job.reason != Verb.RELEASE else ""
        words = f"its worker gave it back{said}; it can be claimed again {soon(at, job.now)}"
        return Reason(
            code=Code.RELEASED,
            message=sentence(words),
            since=job.entered_at,
            until=at,
            reason=job.reason or UNSET,
        )

    def _failed_before(self) -> list[Reason]:
        job, error = self.job, error_of(self.job.error)
        if error is None:
            return []
        return [
            Reason(
                code=Code.FAILED_BEFORE,
                message=sentence(f"{attempt_of(job)} failed: {error.message}"),
                attempt=job.attempt,
                max_attempts=job.max_attempts,
                error=error,
            )
        ]


def _holder(job_id: str, state: str, worker: str | None) -> str:
    return f"{job_id} ({state}{f' on {worker}' if worker else ''})"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
