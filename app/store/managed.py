"""enqueue for queues that have rules: keys, a depth, fairness; and for jobs that wait for others.

→ queued, or → skipped for the one that is replaced. Many submissions, one transaction; each is answered on its
own, and the jobs of one submission come in together or not at all. What is decided here is decided under the
advisory locks of the keys and queues concerned, so it is exact over the fleet.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import asyncpg

from app.errors import ForemanError, InvalidRequest, KeyBusy, QueueFull
from app.jobs.queue_settings import QueueRules
from app.jobs.states import TERMINAL, State
from app.jobs.submission import NewJob
from app.jobs.tenants import unscoped
from app.store import dependencies, keys
from app.store.changes import Key
from app.store.database import Database, Runner, in_transaction
from app.store.depth import Demand, Depths, RevokedError
from app.store.effects import moved
from app.store.enqueue import (
    RELATED,
    Enqueued,
    Rows,
    accept,
    indexed,
    insert,
    lock_named,
    lock_parents,
    parent_problem,
)
from app.store.idempotency import Answer, IdempotencyKeys, Receipt, Submission
from app.store.key_memory import KeyMemory
from app.store.keys import KeyState
from app.store.live import end, leave_queue
from app.store.locks import lock
from app.store.queues import QueueBook
from app.store.tallies import tally
from app.telemetry import ENDED, REFUSED, SKIPPED

RETRY_AFTER_SECONDS = 1.0


@dataclass(slots=True)
class _Plan:
    """What is going to be written, and the room that is left."""

    keys: dict[Key, KeyState]
    room: dict[str, int]
    rows: list[tuple[NewJob, str | None]] = field(default_factory=list)
    skips: list[tuple[str, str]] = field(default_factory=list)
    waits: list[tuple[str, str]] = field(default_factory=list)
    # Keys whose free places are handed out at the end, when all rows are there.
    unsettled: set[Key] = field(default_factory=set)


class _Mark:
    """Where the plan stood before a submission, so that it can be taken back as a whole."""

    def __init__(self, plan: _Plan, submission: Submission) -> None:
        self._plan = plan
        self._room = dict(plan.room)
        self._lengths = len(plan.rows), len(plan.skips), len(plan.waits)
        self._keys = {}
        for job in submission.jobs:
            key = _key(job)
            if key is not None:
                place = plan.keys[key]
                self._keys[key] = replace(place, replaceable=list(place.replaceable))

    def take_back(self) -> None:
        rows, skips, waits = self._lengths
        del self._plan.rows[rows:]
        del self._plan.skips[skips:]
        del self._plan.waits[waits:]
        self._plan.room = self._room
        self._plan.keys.update(self._keys)

    @property
    def new_skips(self) -> list[str]:
        return [old for old, _ in self._plan.skips[self._lengths[1] :]]


def _jobs(submissions: Sequence[Submission]) -> list[NewJob]:
    return [job for submission in submissions for job in submission.jobs]


def _key(job: NewJob) -> Key | None:
    return None if job.concurrency_key is None else (job.queue, job.concurrency_key)


class ManagedEnqueue:
    """Enqueues into managed queues, and what waits for other jobs."""

    def __init__(self, database: Database, book: QueueBook, memory: KeyMemory | None = None) -> None:
        self._database = database
        self._book = book
        self._depths = Depths(book)
        self._memory = memory or KeyMemory()

    async def enqueue(self, submissions: Sequence[Submission]) -> Enqueued:
        """Enqueue all of them in one commit; each is answered on its own."""
        while True:
            demand = self._depths.demand(_jobs(submissions), reserve=True)
            steps = partial(self._enqueue, submissions=submissions, demand=demand, learn=True)
            try:
                enqueued = await in_transaction(self._database, steps)
            except RevokedError as revoked:
                self._depths.forget(revoked.queues)
            else:
                self._depths.committed(demand)
                return enqueued

    async def enqueue_in(self, connection: Runner, submissions: Sequence[Submission]) -> Enqueued:
        """The same, in the caller's transaction."""
        demand = self._depths.demand(_jobs(submissions), reserve=False)
        return await self._enqueue(connection, submissions, demand)

    async def _enqueue(
        self, connection: Runner, submissions: Sequence[Submission], demand: Demand, *, learn: bool = False
    ) -> Enqueued:
        jobs = _jobs(submissions)
        held = sorted({key for job in jobs if (key := _key(job)) is not None})
        await lock(connection, dict.fromkeys(map(keys.key_lock, held), True) | demand.locks())
        receipts: list[Receipt | Exception | None] = [None] * len(submissions)
        room = await self._depths.room(connection, demand)
        idempotency = IdempotencyKeys(submissions)
        fresh = await idempotency.take(connection, receipts)
        related = await _lock_related(connection, jobs)
        plan = _Plan(await self._key_states(connection, held, jobs, learn=learn), room)
        enqueued = Enqueued()
        for n in fresh:
            receipts[n] = self._decide(submissions[n], plan, related, enqueued)
        for skipped in await _write(connection, plan, related):
            enqueued.left.append((skipped["id"], skipped["seq"]))
            enqueued.count(ENDED, skipped["queue"], skipped["kind"], State.SKIPPED.value)
        await idempotency.settle(connection, receipts)
        enqueued.work = {(job.queue, job.lane) for job, gate in plan.rows if gate is None}
        # To be looked at once more after the commit: a place may have become free meanwhile.
        enqueued.keys = {
            key for job, gate in plan.rows if gate == keys.GATE and (key := _key(job)) is not None
        }
        if plan.unsettled:
            enqueued.add(await keys.ready_next_locked(connection, sorted(plan.unsettled), self._memory))
        enqueued.answers = [each or RuntimeError("an enqueue was not answered") for each in receipts]
        for refusal in enqueued.answers:
            if isinstance(refusal, ForemanError):
                enqueued.count(REFUSED, refusal.code)
        return enqueued

    async def _key_states(
        self, connection: Runner, held: Sequence[Key], jobs: Sequence[NewJob], *, learn: bool
    ) -> dict[Key, KeyState]:
        limits, replaceable = {}, {}
        newcomers = Counter(map(_key, jobs))
        for key in held:
            rules = self._book.rules(key[0])
            limits[key] = rules.max_active + rules.max_queued if rules else 1
            if rules and rules.when_full == "replace-oldest":
                replaceable[key] = newcomers[key]
        return await keys.read_states(connection, limits, replaceable, self._memory, learn=learn)

    # -- deciding ----------------------------------------------------------------------------------

    def _decide(
        self, submission: Submission, plan: _Plan, related: dict[str, asyncpg.Record], enqueued: Enqueued
    ) -> Receipt | Exception:
        """The answer; a submission that is refused leaves no trace in the plan."""
        mark = _Mark(plan, submission)
        answers: list[Answer] = []
        problem = parent_problem(submission, related)
        if problem is not None:
            return problem
        for index, job in enumerate(submission.jobs):
            try:
                answers.append(self._decide_one(job, plan, related))
            except ForemanError as refusal:
                mark.take_back()
                return indexed(refusal, index) if submission.batch else refusal
        for job, answer in zip(submission.jobs, answers, strict=True):
            if answer.job_id == job.id:
                accept(enqueued, [job])
                # Their verdict is known already.
                enqueued.ended |= {name for name in _unmet(job, related) if related[name]["state"] in _FAILED}
        if mark.new_skips:
            enqueued.jobs.update(mark.new_skips)
            enqueued.count(SKIPPED, by=len(mark.new_skips))
        return Receipt([answer.job_id for answer in answers], answers=answers)

    def _decide_one(self, job: NewJob, plan: _Plan, related: dict[str, asyncpg.Record]) -> Answer:
        for name in job.depends_on or ():
            if name not in related or related[name]["tenant"] != job.tenant:
                raise InvalidRequest(
                    f"depends_on: there is no job {name}.",
                    errors=[{"field": "depends_on", "message": f"there is no job {name}"}],
                )
        unmet = _unmet(job, related)
        gate = dependencies.GATE if unmet else None
        outcome = "accepted"
        rules = self._book.rules(job.queue)
        key = _key(job)
        if key is not None and rules is not None:
            place = plan.keys[key]
            if place.live >= rules.max_active + rules.max_queued:
                coalesced = _when_full(job, rules, place)
                if coalesced is not None:
                    return coalesced
                outcome = "replaced"
        if outcome == "accepted":
            self._take_room(job, rules, plan)
        if key is not None and rules is not None:
            if outcome == "replaced":
                plan.skips.append((_make_way(plan.keys[key]), job.id))
                plan.unsettled.add(key)
            gate = _stand_in_line(job, gate, rules.max_active, plan)
        plan.rows.append((job, gate))
        plan.waits += [(job.id, name) for name in unmet]
        return Answer(job.id, outcome=outcome)

    def _take_room(self, job: NewJob, rules: QueueRules | None, plan: _Plan) -> None:
        if job.queue not in plan.room:
            return
        if plan.room[job.queue] <= 0:
            raise QueueFull(
                f"The queue {job.queue} has {rules.settings.max_depth if rules else 0} jobs waiting, as many as it may.",
                retry_after=RETRY_AFTER_SECONDS,
                queue=job.queue,
            )
        plan.room[job.queue] -= 1


async def _write(connection: Runner, plan: _Plan, related: dict[str, asyncpg.Record]) -> list[asyncpg.Record]:
    """Those that made way."""
    if not plan.rows:
        return []
    rows = Rows()
    for job, gate in plan.rows:
        rows.add(job, Submission([job], job.tenant), related, gate)
    await insert(connection, rows, numbered=True)
    if plan.waits:
        await dependencies.add(connection, plan.waits)
    if not plan.skips:
        return []
    return await connection.fetch(SKIP, [old for old, _ in plan.skips], [new for _, new in plan.skips])


_FAILED = TERMINAL - {State.DONE}


def _when_full(job: NewJob, rules: QueueRules, place: KeyState) -> Answer | None:
    """What the queue's policy makes of one job too many; None when the oldest one has to make way for it."""
    if rules.when_full == "replace-oldest" and place.replaceable:
        return None
    if rules.when_full == "coalesce":
        # Into one that has yet to begin, if there is one: it will find things as they are by then.
        if place.queued_id is not None:
            return Answer(place.queued_id, outcome="coalesced")
        if place.active is not None:
            return Answer(*place.active, outcome="coalesced")
    key = unscoped(job.tenant, job.concurrency_key or "")
    raise KeyBusy(
        f"The key {key} has all the jobs that it may have.",
        existing_job_id=place.active[0] if place.active else place.queued_id,
        key=key,
    )


def _make_way(place: KeyState) -> str:
    """Take the oldest one that waits out of the key; its id."""
    oldest, held_a_place = place.replaceable.pop(0)
    place.live -= 1
    place.holders -= held_a_place
    return oldest


def _stand_in_line(job: NewJob, gate: str | None, max_active: int, plan: _Plan) -> str | None:
    """The gate behind which the job begins; None when it gets a place of its key at once."""
    place = plan.keys[job.queue, job.concurrency_key or ""]
    others_wait = place.live > place.holders
    due = job.run_at is None and not job.delay_seconds
    if gate is None:
        if due and not others_wait and place.holders < max_active:
            place.holders += 1
        else:
            gate = keys.GATE
            if place.holders < max_active:
                # Someone is to have that place: which one is decided when all rows are there, by the database,
                # which knows what is due.
                plan.unsettled.add((job.queue, job.concurrency_key or ""))
    place.live += 1
    place.queued_id = job.id
    place.replaceable.append((job.id, gate is None))
    return gate


def _unmet(job: NewJob, related: dict[str, asyncpg.Record]) -> list[str]:
    """What the job has to wait for. One that failed already is in it too: it decides the job's fate."""
    runs_anyway = job.on_dependency_failure == "run"
    return [
        name
        for name in job.depends_on or ()
        if related[name]["state"] != State.DONE and not (runs_anyway and related[name]["state"] in _FAILED)
    ]


# queued → skipped
SKIP = (
    """
WITH skipped AS (
    UPDATE jobs AS j SET
        state = 'skipped', reason = 'replaced', completed_at = now(),
        queued_seconds = j.queued_seconds + date_part('epoch', now() - j.entered_at),
        seq = j.seq + 1, entered_at = now(), updated_at = now()
    FROM unnest($1::text[], $2::text[]) AS replaced (id, by)
    WHERE j.id = replaced.id AND j.id = ANY ($1::text[]) AND j.state = 'queued'
    RETURNING j.*, replaced.by
)
"""
    + leave_queue("skipped")
    + end("skipped")
    + moved("skipped", verb="'skip'", data="json_build_object('replaced_by', by)::text")
    + tally("skipped")
    + "SELECT id, seq, queue, kind FROM skipped"
)

# Like parents (see enqueue), in the same order, the jobs that new ones wait for: none of them ends between this look
# and the commit without finding out that someone waits.
LOCK_RELATED = RELATED.format(lock="FOR NO KEY UPDATE")


async def _lock_related(connection: Runner, jobs: Sequence[NewJob]) -> dict[str, asyncpg.Record]:
    awaited = {(name, job.tenant) for job in jobs for name in job.depends_on or ()}
    if not awaited:
        return await lock_parents(connection, jobs)
    parents = {(job.parent_id, job.tenant) for job in jobs if job.parent_id}
    return await lock_named(connection, LOCK_RELATED, parents | awaited)
