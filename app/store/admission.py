"""enqueue for queues that have rules: keys, a depth, fairness; and for jobs that wait for others.

→ queued, or → skipped for the one that is replaced. Many submissions, one transaction; each is answered on its
own, and the jobs of one submission come in together or not at all. What is decided here is decided under the
advisory locks of the keys and queues concerned, so it is exact over the fleet.
"""

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import asyncpg
import orjson

from app.errors import ForemanError, IdempotencyMismatch, InvalidRequest, KeyBusy, QueueFull
from app.jobs.queue_settings import QueueRules
from app.jobs.states import TERMINAL, State
from app.jobs.submission import NewJob
from app.store import dependencies, keys
from app.store.changes import Changes, Key
from app.store.database import Database, Runner
from app.store.enqueue import (
    Answer,
    Receipt,
    Rows,
    Submission,
    accept,
    first_answers,
    indexed,
    insert,
    just_expired,
    parent_problem,
    write_answers,
)
from app.store.queues import QueueBook
from app.store.tail import EVENT_AND_OUTBOX
from app.store.tallies import tally
from app.telemetry import REFUSED, SKIPPED

RETRY_AFTER_SECONDS = 1.0
# Far from its depth a queue is not counted for each submission: a process reserves this share of the room and admits
# within it, until it is used up or somebody else who comes near the depth revokes it.
CREDIT_SHARE = 16
# There must be at least this much room.
CREDIT_FROM = 2000


Admitted = Changes[Receipt | Exception]


@dataclass(slots=True)
class _Place:
    """A key as it stands: who runs, who waits. Changed while decisions are made."""

    holders: int
    live: int
    active: Answer | None
    # The one that newcomers are coalesced into.
    queued_id: str | None
    # Those that may be replaced, oldest first, and whether each takes a place.
    replaceable: list[tuple[str, bool]] = field(default_factory=list)


@dataclass(slots=True)
class _Plan:
    """What is going to be written, and the room that is left."""

    places: dict[Key, _Place]
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
        self._places = {}
        for job in submission.jobs:
            key = _key(job)
            if key is not None:
                place = plan.places[key]
                self._places[key] = replace(place, replaceable=list(place.replaceable))

    def take_back(self) -> None:
        rows, skips, waits = self._lengths
        del self._plan.rows[rows:]
        del self._plan.skips[skips:]
        del self._plan.waits[waits:]
        self._plan.room = self._room
        self._plan.places.update(self._places)

    @property
    def new_skips(self) -> list[str]:
        return [old for old, _ in self._plan.skips[self._lengths[1] :]]


def _key(job: NewJob) -> Key | None:
    return None if job.concurrency_key is None else (job.queue, job.concurrency_key)


@dataclass(slots=True)
class _Credit:
    """What is left of the room that this process has reserved in a queue, and under which depth."""

    token: str
    jobs: int
    max_depth: int


class _RevokedError(Exception):
    """Somebody else needed the room that was reserved in these queues: they have to be counted."""

    def __init__(self, queues: set[str]) -> None:
        super().__init__(queues)
        self.queues = queues


class Admission:
    """Admits jobs of managed queues. Holds a share of the room of those that are far from being full."""

    def __init__(self, database: Database, book: QueueBook) -> None:
        self._database = database
        self._book = book
        self._credits: dict[str, _Credit] = {}

    async def admit(self, submissions: Sequence[Submission]) -> Admitted:
        """Admit all of them in one commit; each is answered on its own."""
        jobs = [job for submission in submissions for job in submission.jobs]
        while True:
            wanted = self._wanted(jobs)
            spent = self._spend(wanted)
            try:
                async with self._database.transaction() as connection:
                    reserved: dict[str, _Credit] = {}
                    admitted = await self._admit(connection, submissions, wanted, spent, reserved)
            except _RevokedError as revoked:
                for queue in revoked.queues:
                    self._credits.pop(queue, None)
            else:
                self._credits |= reserved
                return admitted

    async def admit_on(self, connection: Runner, submissions: Sequence[Submission]) -> Admitted:
        """The same, in the caller's transaction."""
        jobs = [job for submission in submissions for job in submission.jobs]
        return await self._admit(connection, submissions, self._wanted(jobs))

    async def _admit(
        self,
        connection: Runner,
        submissions: Sequence[Submission],
        wanted: dict[str, int],
        spent: dict[str, str] | None = None,
        reserved: dict[str, _Credit] | None = None,
    ) -> Admitted:
        """`wanted` jobs in queues with a depth; those of `spent` are admitted under that reservation, the others
        are counted, and what this reserves of them stands in `reserved`."""
        spent = spent or {}
        jobs = [job for submission in submissions for job in submission.jobs]
        held = {key for job in jobs if (key := _key(job)) is not None}
        counted = {queue: number for queue, number in wanted.items() if queue not in spent}
        await _lock(connection, held, counted, spent)
        receipts: list[Receipt | Exception | None] = [None] * len(submissions)
        idempotency = _IdempotencyKeys(submissions)
        fresh = await idempotency.take(connection, receipts)
        related = await _lock_related(connection, jobs)
        plan = _Plan(
            await self._places(connection, held, jobs), await self._count(connection, counted, reserved)
        )
        admitted = Admitted()
        for n in fresh:
            receipts[n] = self._decide(submissions[n], plan, related, admitted)
        await _write(connection, plan, related)
        await idempotency.settle(connection, receipts)
        admitted.work = {(job.queue, job.lane) for job, gate in plan.rows if gate is None}
        # To be looked at once more after the commit: a place may have become free meanwhile.
        admitted.keys = {
            key for job, gate in plan.rows if gate == keys.GATE and (key := _key(job)) is not None
        }
        if plan.unsettled:
            admitted.add(await keys.ready_next_locked(connection, sorted(plan.unsettled)))
        admitted.answers = [each or RuntimeError("an enqueue was not answered") for each in receipts]
        for refusal in admitted.answers:
            if isinstance(refusal, ForemanError):
                admitted.count(REFUSED, refusal.code)
        return admitted

    # -- deciding ----------------------------------------------------------------------------------

    def _decide(
        self, submission: Submission, plan: _Plan, related: dict[str, asyncpg.Record], admitted: Admitted
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
                accept(admitted, [job])
                # Their verdict is known already.
                admitted.ended |= {name for name in _unmet(job, related) if related[name]["state"] in _FAILED}
        if mark.new_skips:
            admitted.jobs.update(mark.new_skips)
            admitted.count(SKIPPED, by=len(mark.new_skips))
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
            place = plan.places[key]
            if place.live >= rules.max_active + rules.max_queued:
                coalesced = _when_full(job, rules, place)
                if coalesced is not None:
                    return coalesced
                outcome = "replaced"
        if outcome == "accepted":
            self._take_room(job, rules, plan)
        if key is not None and rules is not None:
            if outcome == "replaced":
                plan.skips.append((_make_way(plan.places[key]), job.id))
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

    # -- counting ----------------------------------------------------------------------------------

    def _wanted(self, jobs: Sequence[NewJob]) -> dict[str, int]:
        """How many there are for each queue with a depth."""
        return Counter(job.queue for job in jobs if self._max_depth(job.queue) is not None)

    def _max_depth(self, queue: str) -> int | None:
        rules = self._book.rules(queue)
        return None if rules is None else rules.settings.max_depth

    def _spend(self, wanted: dict[str, int]) -> dict[str, str]:
        """The queues for which enough is reserved, and by which token; it is spent from here on."""
        spent = {}
        for queue, number in wanted.items():
            credit = self._credits.get(queue)
            if credit and credit.jobs >= number and credit.max_depth == self._max_depth(queue):
                credit.jobs -= number
                spent[queue] = credit.token
        return spent

    async def _count(
        self, connection: Runner, counted: dict[str, int], reserved: dict[str, _Credit] | None
    ) -> dict[str, int]:
        """The room of each queue, no part of which is anybody else's any more where it is little."""
        room: dict[str, int] = {}
        for queue, number in counted.items():
            limit = self._max_depth(queue) or 0
            room[queue] = limit - await depth(connection, queue, limit)
            if limit < CREDIT_FROM:
                continue
            mine = self._credits.get(queue) if reserved is not None else None
            others = await _reserved_by_others(connection, queue, mine.token if mine else "")
            free = room[queue] - number - others
            if free < 0:
                await connection.execute(REVOKE, queue)
            elif free >= CREDIT_FROM and reserved is not None:
                reserved[queue] = _Credit(secrets.token_urlsafe(12), free // CREDIT_SHARE, limit)
                await connection.execute(RESERVE, queue, reserved[queue].token, reserved[queue].jobs)
        return room

    async def _places(self, connection: Runner, held: set[Key], jobs: Sequence[NewJob]) -> dict[Key, _Place]:
        if not held:
            return {}
        asked = sorted(held)
        rules = [self._book.rules(queue) for queue, _ in asked]
        limits = [each.max_active + each.max_queued if each else 1 for each in rules]
        places = {
            (row["queue"], row["key"]): _Place(
                row["holders"],
                row["live"],
                Answer(*row["active"].split(":")) if row["active"] else None,
                row["queued_id"],
            )
            for row in await connection.fetch(PLACES, *map(list, zip(*asked, strict=True)), limits)
        }
        replacing = [
            key for key, each in zip(asked, rules, strict=True) if each and each.when_full == "replace-oldest"
        ]
        if replacing:
            newcomers = Counter(map(_key, jobs))
            for row in await connection.fetch(
                OLDEST, *map(list, zip(*replacing, strict=True)), [newcomers[key] for key in replacing]
            ):
                places[row["queue"], row["key"]].replaceable.append((row["id"], row["holds"]))
        return places


async def _write(connection: Runner, plan: _Plan, related: dict[str, asyncpg.Record]) -> None:
    if not plan.rows:
        return
    rows = Rows()
    for job, gate in plan.rows:
        parent = related.get(job.parent_id or "")
        rows.add(
            job,
            Submission([job], job.tenant),
            parent["deadline"] if parent else None,
            (
                job.concurrency_key,
                job.fair_value,
                gate,
                (job.on_dependency_failure or "cancel") if job.depends_on else None,
                orjson.dumps(job.depends_on).decode() if job.depends_on else None,
            ),
        )
    await insert(connection, rows)
    if plan.waits:
        await dependencies.add(connection, plan.waits)
    if plan.skips:
        await connection.fetch(SKIP, [old for old, _ in plan.skips], [new for _, new in plan.skips])


_FAILED = TERMINAL - {State.DONE}


def _when_full(job: NewJob, rules: QueueRules, place: _Place) -> Answer | None:
    """What the queue's policy makes of one job too many; None when the oldest one has to make way for it."""
    if rules.when_full == "replace-oldest" and place.replaceable:
        return None
    if rules.when_full == "coalesce":
        # Into one that has yet to begin, if there is one: it will find things as they are by then.
        if place.queued_id is not None:
            return Answer(place.queued_id, outcome="coalesced")
        if place.active is not None:
            return place.active._replace(outcome="coalesced")
    raise KeyBusy(
        f"The key {job.concurrency_key} has all the jobs that it may have.",
        existing_job_id=place.active.job_id if place.active else place.queued_id,
        key=job.concurrency_key,
    )


def _make_way(place: _Place) -> str:
    """Take the oldest one that waits out of the key; its id."""
    oldest, held_a_place = place.replaceable.pop(0)
    place.live -= 1
    place.holders -= held_a_place
    return oldest


def _stand_in_line(job: NewJob, gate: str | None, max_active: int, plan: _Plan) -> str | None:
    """The gate behind which the job begins; None when it gets a place of its key at once."""
    place = plan.places[job.queue, job.concurrency_key or ""]
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


# Counted no further than the limit: beyond it nothing changes.
PLACES = f"""
SELECT asked.queue, asked.key,
    (SELECT count(*) FROM jobs WHERE queue = asked.queue AND concurrency_key = asked.key AND {keys.HOLDS}) AS holders,
    (SELECT count(*) FROM (
        SELECT 1 FROM jobs
        WHERE queue = asked.queue AND concurrency_key = asked.key AND state IN ('queued', 'loading', 'working')
        LIMIT asked.places
    ) AS counted) AS live,
    (SELECT id || ':' || state FROM (
        SELECT id, state FROM jobs WHERE queue = asked.queue AND concurrency_key = asked.key AND {keys.HOLDS} OFFSET 0
     ) AS holder WHERE state IN ('loading', 'working') ORDER BY id LIMIT 1) AS active,
    (SELECT max(id) FROM (
        SELECT id FROM jobs
        WHERE queue = asked.queue AND concurrency_key = asked.key AND state = 'queued' LIMIT 100
     ) AS queued) AS queued_id
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS asked (queue, key, places)
"""

# SKIP LOCKED: one that is being claimed in this moment is as good as active, and is not replaced.
OLDEST = f"""
SELECT asked.queue, asked.key, oldest.id, oldest.holds
FROM unnest($1::text[], $2::text[], $3::int[]) AS asked (queue, key, wanted)
CROSS JOIN LATERAL (
    SELECT held.* FROM (
        SELECT id FROM (
            SELECT id FROM jobs
            WHERE queue = asked.queue AND concurrency_key = asked.key AND {keys.LIVES} AND state = 'queued' OFFSET 0
        ) AS queued ORDER BY id
    ) AS waiting
    CROSS JOIN LATERAL (
        SELECT id, ({keys.HOLDS}) AS holds FROM jobs WHERE id = waiting.id AND state = 'queued' FOR UPDATE SKIP LOCKED
    ) AS held
    LIMIT asked.wanted
) AS oldest
ORDER BY oldest.id
"""

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
, moved AS (
    SELECT id, seq, state AS type, state, 'skip' AS verb, json_build_object('replaced_by', by)::text AS data,
        webhook_url, webhook_events
    FROM skipped
)
"""
    + EVENT_AND_OUTBOX
    + tally("skipped")
    + "SELECT id FROM skipped"
)

# What is decided under a reservation shares the queue's lock, so that whoever counts, alone with it, sees all of that.
# One order for everybody: that of the numbers.
LOCK = """
SELECT CASE WHEN alone THEN pg_advisory_xact_lock(number)::text ELSE pg_advisory_xact_lock_shared(number)::text END
FROM unnest($1::bigint[], $2::bool[]) AS wanted (number, alone)
"""
# A statement, and so a snapshot, of its own: taken after the lock.
STILL_RESERVED = """
SELECT spent.queue FROM unnest($1::text[], $2::text[]) AS spent (queue, token)
JOIN depth_reservations AS r ON r.queue = spent.queue AND r.token = spent.token
"""


async def _lock(connection: Runner, held: set[Key], counted: Iterable[str], spent: Mapping[str, str]) -> None:
    """Lock the keys and the queues; raises when a reservation is no more."""
    numbers = dict.fromkeys(map(keys.key_lock, held), True)
    numbers |= {keys.lock_number("depth", queue): True for queue in counted}
    numbers |= {keys.lock_number("depth", queue): False for queue in spent}
    ordered = sorted(numbers)
    await connection.execute(LOCK, ordered, [numbers[number] for number in ordered])
    if spent:
        kept = await connection.fetch(STILL_RESERVED, list(spent), list(spent.values()))
        revoked = spent.keys() - {row["queue"] for row in kept}
        if revoked:
            raise _RevokedError(revoked)


# One's own is over with the next count; one of a process that has died, after a minute.
RESERVED = """
WITH over AS (
    DELETE FROM depth_reservations
    WHERE queue = $1 AND (token = $2 OR reserved_at < now() - interval '1 minute') RETURNING token
)
SELECT coalesce(sum(jobs), 0)::bigint AS jobs FROM depth_reservations
WHERE queue = $1 AND token NOT IN (SELECT token FROM over)
"""
RESERVE = "INSERT INTO depth_reservations (queue, token, jobs) VALUES ($1, $2, $3)"
REVOKE = "DELETE FROM depth_reservations WHERE queue = $1"


async def _reserved_by_others(connection: Runner, queue: str, own: str) -> int:
    """How much room others have reserved; one's own reservation ends here."""
    rows = await connection.fetch(RESERVED, queue, own)
    return int(rows[0]["jobs"])


# Waiting jobs by each of the three reasons, each from its own index.
DEPTH = """
SELECT count(*) FROM (
    (SELECT 1 FROM jobs WHERE queue = $1 AND state = 'queued' AND ready_at IS NOT NULL LIMIT $2)
    UNION ALL
    (SELECT 1 FROM jobs WHERE queue = $1 AND state = 'queued' AND gate IS NOT NULL LIMIT $2)
    UNION ALL
    (SELECT 1 FROM jobs WHERE queue = $1 AND state = 'queued' AND ready_at IS NULL AND gate IS NULL LIMIT $2)
) AS waiting
"""


async def depth(connection: Runner, queue: str, limit: int) -> int:
    """How many jobs wait in a queue; exact up to `limit`."""
    rows = await connection.fetch(DEPTH, queue, limit)
    return int(rows[0]["count"])


# The parents as before (see enqueue), and in the same order the jobs that new ones wait for: none of them ends
# between this look and the commit without finding out that someone waits.
LOCK_PARENTS = """
SELECT id, tenant, state, deadline, cancel_requested_at FROM jobs WHERE id = ANY ($1::text[]) ORDER BY id FOR SHARE
"""
LOCK_RELATED = """
SELECT id, tenant, state, deadline, cancel_requested_at FROM jobs
WHERE id = ANY ($1::text[]) ORDER BY id FOR NO KEY UPDATE
"""


async def _lock_related(connection: Runner, jobs: Sequence[NewJob]) -> dict[str, asyncpg.Record]:
    parents = {job.parent_id for job in jobs if job.parent_id}
    awaited = {name for job in jobs for name in job.depends_on or ()}
    if not parents and not awaited:
        return {}
    statement = LOCK_RELATED if awaited else LOCK_PARENTS
    return {row["id"]: row for row in await connection.fetch(statement, sorted(parents | awaited))}


TAKE_KEYS = """
INSERT INTO idempotency_keys (tenant, key, fingerprint, job_ids)
SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text[])
ON CONFLICT DO NOTHING RETURNING tenant, key
"""


class _IdempotencyKeys:
    """The keys of one flush: which submissions are new, which repeat an older one or one beside them."""

    def __init__(self, submissions: Sequence[Submission]) -> None:
        self._submissions = submissions
        self._first: dict[tuple[str, str], int] = {}
        self._twins: list[tuple[int, int]] = []
        for n, each in enumerate(submissions):
            if each.idempotency_key is not None:
                first = self._first.setdefault((each.tenant, each.idempotency_key), n)
                if first != n:
                    self._twins.append((n, first))

    async def take(self, connection: Runner, receipts: list[Receipt | Exception | None]) -> list[int]:
        """The positions of the submissions to decide on; repeats are answered with the first answer."""
        twins = {n for n, _ in self._twins}
        fresh = [n for n in range(len(self._submissions)) if n not in twins]
        if not self._first:
            return fresh
        # In one order everywhere, as in enqueue.
        named = [self._first[key] for key in sorted(self._first)]
        of_named = [self._submissions[n] for n in named]
        taken = {
            (row["tenant"], row["key"])
            for row in await connection.fetch(
                TAKE_KEYS,
                [each.tenant for each in of_named],
                [each.idempotency_key for each in of_named],
                [each.fingerprint for each in of_named],
                [write_answers([Answer(job.id) for job in each.jobs]) for each in of_named],
            )
        }
        repeats = [n for key, n in self._first.items() if key not in taken]
        first = await first_answers(connection, [self._submissions[n] for n in repeats])
        for n, answer in zip(repeats, first, strict=True):
            receipts[n] = answer or just_expired()
        return [n for n in fresh if receipts[n] is None]

    async def settle(self, connection: Runner, receipts: list[Receipt | Exception | None]) -> None:
        """Keep the answers that differ from the plain one; forget the keys of what was refused."""
        kept: list[tuple[str, str, str]] = []
        refused: list[tuple[str, str]] = []
        for key, n in self._first.items():
            receipt = receipts[n]
            if not isinstance(receipt, Receipt):
                refused.append(key)
            elif not receipt.replayed and any(each.outcome != "accepted" for each in receipt.each()):
                kept.append((*key, write_answers(receipt.each())))
        if kept:
            await connection.execute(KEEP_ANSWERS, *map(list, zip(*kept, strict=True)))
        if refused:
            await connection.execute(
                GIVE_BACK_KEYS,
                *map(list, zip(*refused, strict=True)),
                [self._submissions[self._first[key]].jobs[0].id for key in refused],
            )
        for n, first in self._twins:
            receipts[n] = self._as_twin(self._submissions[n], self._submissions[first], receipts[first])

    @staticmethod
    def _as_twin(
        submission: Submission, first: Submission, receipt: Receipt | Exception | None
    ) -> Receipt | Exception | None:
        """The same key twice in one flush is answered as if they had come one after the other."""
        if isinstance(receipt, Receipt) and submission.fingerprint != first.fingerprint:
            return IdempotencyMismatch("This Idempotency-Key was already used with another request body.")
        return replace(receipt, replayed=True) if isinstance(receipt, Receipt) else receipt


KEEP_ANSWERS = """
UPDATE idempotency_keys AS k SET job_ids = kept.answers
FROM unnest($1::text[], $2::text[], $3::text[]) AS kept (tenant, key, answers)
WHERE k.tenant = kept.tenant AND k.key = kept.key
"""
# Only the rows that this flush wrote: a mismatch leaves the older one as it is.
GIVE_BACK_KEYS = """
DELETE FROM idempotency_keys AS k USING unnest($1::text[], $2::text[], $3::text[]) AS refused (tenant, key, first)
WHERE k.tenant = refused.tenant AND k.key = refused.key AND left(k.job_ids, 26) = refused.first
"""
