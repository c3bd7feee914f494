"""enqueue: → queued. Many submissions, one statement, one commit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import asyncpg

from app.errors import ForemanError, IdempotencyMismatch, InvalidRequest, JobTerminal, NotFound
from app.jobs.retry import DEFAULT_MAX_ATTEMPTS
from app.jobs.states import TERMINAL
from app.jobs.submission import NewJob
from app.store.changes import Changes
from app.store.database import Database, Runner
from app.store.tail import EVENT_AND_OUTBOX
from app.telemetry import ENQUEUED


@dataclass(slots=True)
class Submission:
    """Jobs that are accepted together or not at all, and the key that makes a second try harmless."""

    jobs: list[NewJob]
    tenant: str = "default"
    idempotency_key: str | None = None
    fingerprint: bytes | None = None
    # Came as a list: what is wrong with one of the jobs is said with its index.
    batch: bool = False


class Answer(NamedTuple):
    """What became of one job: its id, or that of the job which it was coalesced into."""

    job_id: str
    state: str = "queued"
    outcome: str = "accepted"


@dataclass(slots=True)
class Receipt:
    job_ids: list[str]
    replayed: bool = False
    # Only where not every job was simply accepted.
    answers: list[Answer] | None = field(default=None, compare=False)

    def each(self) -> list[Answer]:
        return self.answers or [Answer(job_id) for job_id in self.job_ids]


def write_answers(answers: Sequence[Answer]) -> str:
    """As kept with an idempotency key: ids, and what is worth saying beside."""
    return " ".join(
        each.job_id if each == Answer(each.job_id) else f"{each.job_id}:{each.state}:{each.outcome}"
        for each in answers
    )


def read_answers(text: str) -> list[Answer]:
    return [Answer(*each.split(":")) for each in text.split(" ")]


COLUMNS = (
    ("id", "text"),
    ("owner", "text"),
    ("key", "text"),
    ("fingerprint", "bytea"),
    ("job_ids", "text"),
    ("tenant", "text"),
    ("queue", "text"),
    ("lane", "text"),
    ("kind", "text"),
    ("priority", "smallint"),
    ("interactive", "bool"),
    ("model", "text"),
    ("target", "text"),
    ("payload", "text"),
    ("metadata", "jsonb"),
    ("max_attempts", "int"),
    ("backoff_seconds", "text"),
    ("max_duration_seconds", "float8"),
    ("run_at", "timestamptz"),
    ("delay_seconds", "float8"),
    ("deadline", "timestamptz"),
    ("deadline_seconds", "float8"),
    ("parent_deadline", "timestamptz"),
    ("parent_id", "text"),
    ("webhook_url", "text"),
    ("webhook_events", "text"),
    ("webhook_secret", "bytea"),
    ("request_id", "text"),
    ("traceparent", "text"),
    ("tracestate", "text"),
    ("dialect", "text"),
    # From here on: what the rules of the queue add (see admission).
    ("concurrency_key", "text"),
    ("fair_value", "text"),
    ("gate", "text"),
    ("on_dependency_failure", "text"),
    ("depends_on", "jsonb"),
)
NO_RULES = (None, None, None, None, None)
# Where a job belongs: the same for most jobs of a batch, and then sent once instead of once per row.
PLACE = range(5, 13)


@dataclass(slots=True)
class Rows:
    """What is inserted, row by row; `columns` has it as arrays for unnest."""

    rows: list[tuple[object, ...]] = field(default_factory=list)

    def columns(self) -> list[tuple[object, ...]]:
        return list(zip(*self.rows, strict=True))

    def add(
        self,
        job: NewJob,
        submission: Submission,
        parent_deadline: datetime | None,
        ruled: tuple[str | None, ...] = NO_RULES,
    ) -> None:
        keyed = submission.idempotency_key is not None
        first = keyed and submission.jobs[0] is job
        # None stands for the usual value: a column that nobody uses is not sent at all.
        row = (
            job.id,
            submission.jobs[0].id if keyed else None,
            submission.idempotency_key if first else None,
            submission.fingerprint if first else None,
            " ".join(each.id for each in submission.jobs) if first else None,
            job.tenant,
            job.queue,
            job.lane,
            job.kind,
            job.priority or None,
            job.interactive or None,
            job.model,
            job.target,
            job.payload,
            job.metadata,
            job.max_attempts,
            None if job.backoff_seconds is None else _array_literal(job.backoff_seconds),
            job.max_duration_seconds,
            job.run_at,
            job.delay_seconds,
            job.deadline,
            job.deadline_seconds,
            parent_deadline,
            job.parent_id,
            job.webhook_url,
            None if job.webhook_events is None else _array_literal(job.webhook_events),
            job.sealed_webhook_secret,
            job.request_id,
            job.traceparent,
            job.tracestate,
            job.dialect,
            *ruled,
        )
        self.rows.append(row)


def _array_literal(values: Sequence[object]) -> str:
    """Ragged arrays cannot be unnested; they travel as Postgres array literals (names and numbers only)."""
    # Quoted, or a name such as null would be taken for no value at all.
    return "{" + ",".join(f'"{value}"' for value in values) + "}"


# A job's run_at may lie in the past (then it is ready at once) or ahead (then the promoter readies it). The gates
# stand in this order: other jobs, time, the key. What is not due yet does not stand in line for its key.
_ENQUEUE = (
    """
WITH input AS (
    SELECT *, coalesce(run_at, now() + delay_seconds * interval '1 second', now()) AS due_at FROM ({input}) AS input
)
, keys AS (
    INSERT INTO idempotency_keys (tenant, key, fingerprint, job_ids)
    SELECT tenant, key, fingerprint, job_ids FROM input WHERE key IS NOT NULL
    -- In one order everywhere: two batches with the same keys wait for each other, but never in a circle.
    ORDER BY tenant, key
    ON CONFLICT DO NOTHING
    RETURNING left(job_ids, 26) AS owner
)
, {inserted} AS (
    INSERT INTO jobs (
        id, tenant, queue, lane, kind, state, reason, priority, interactive, model, target, payload, metadata,
        max_attempts, backoff_seconds, max_duration_seconds, run_at, ready_at, deadline, parent_id,
        webhook_url, webhook_events, webhook_secret, request_id, traceparent, tracestate, seq, dialect,
        concurrency_key, fair_value, gate, on_dependency_failure
    )
    SELECT
        id, tenant, queue, lane, kind, 'queued',
        CASE WHEN gate = 'waiting_for' THEN gate WHEN due_at > now() THEN 'scheduled'
             WHEN gate = 'key' THEN 'key_busy' END,
        coalesce(priority, 0), coalesce(interactive, false), model, target, payload, metadata,
        coalesce(max_attempts, {max_attempts}), backoff_seconds::float8[], max_duration_seconds,
        due_at, CASE WHEN due_at <= now() AND gate IS NULL THEN now() END,
        least(deadline, now() + deadline_seconds * interval '1 second', parent_deadline), parent_id,
        webhook_url, webhook_events::text[], webhook_secret, request_id, traceparent, tracestate, 1,
        coalesce(dialect, 'ollama'),
        concurrency_key, fair_value, CASE WHEN gate = 'waiting_for' OR due_at <= now() THEN gate END,
        on_dependency_failure
    FROM input
    WHERE owner IS NULL OR owner IN (SELECT owner FROM keys)
    RETURNING id, seq, state AS type, state, 'enqueue' AS verb, NULL AS data, webhook_url, webhook_events
)
{with_data}
"""
    + EVENT_AND_OUTBOX
    + "SELECT id FROM moved"
)


# What a job waits for stands in its first event.
_WITH_DATA = """
, moved AS (
    SELECT inserted.id, seq, type, state, verb, inserted.webhook_url, inserted.webhook_events,
        CASE WHEN depends_on IS NOT NULL THEN json_build_object('depends_on', depends_on)::text END AS data
    FROM inserted JOIN input ON input.id = inserted.id
)
"""
_DEPENDS_ON = [name for name, _ in COLUMNS].index("depends_on")


@cache
def enqueue_statement(used: tuple[int, ...], *, one_place: bool = False) -> str:
    """The statement for a batch that uses these columns. Arrays cost their encoding, even full of NULLs."""
    arrays, names, others = [], [], []
    for index, (name, kind) in enumerate(COLUMNS):
        if index not in used:
            others.append(f"NULL::{kind} AS {name}")
        elif one_place and index in PLACE:
            others.append(f"${used.index(index) + 1}::{kind} AS {name}")
        else:
            arrays.append(f"${used.index(index) + 1}::{kind}[]")
            names.append(name)
    return _ENQUEUE.format(
        input=f"SELECT *, {', '.join(others)} FROM unnest({', '.join(arrays)}) AS sent ({', '.join(names)})",
        max_attempts=DEFAULT_MAX_ATTEMPTS,
        inserted="inserted" if _DEPENDS_ON in used else "moved",
        with_data=_WITH_DATA if _DEPENDS_ON in used else "",
    )


async def enqueue(database: Database, submissions: Sequence[Submission]) -> Changes[Receipt | Exception]:
    """Enqueue all of them in one commit; each is answered on its own."""
    answers: list[Receipt | Exception | None] = [None] * len(submissions)
    async with database.connection() as connection:
        if any(job.parent_id for submission in submissions for job in submission.jobs):
            async with connection.transaction():
                parents = await _lock_parents(connection, submissions)
                inserted = await _insert(connection, submissions, answers, parents)
        else:
            inserted = await _insert(connection, submissions, answers, {})
        for n, submission in enumerate(submissions):
            if answers[n] is None and submission.jobs[0].id in inserted:
                answers[n] = Receipt([job.id for job in submission.jobs])
        repeated = [n for n, answer in enumerate(answers) if _may_be_a_repeat(submissions[n], answer)]
        if repeated:
            firsts = await first_answers(connection, [submissions[n] for n in repeated])
            for n, first in zip(repeated, firsts, strict=True):
                answers[n] = first or answers[n] or just_expired()
    changes: Changes[Receipt | Exception] = Changes(
        [answer or RuntimeError("an enqueue was not answered") for answer in answers]
    )
    for submission, receipt in zip(submissions, changes.answers, strict=True):
        if isinstance(receipt, Receipt) and not receipt.replayed:
            accept(changes, submission.jobs)
            changes.work.update([(job.queue, job.lane) for job in submission.jobs])
    return changes


def accept(changes: Changes[Any], jobs: Sequence[NewJob]) -> None:
    """These are in the queue now. Nobody watches a job that he has yet to hear of: it is no change of its log."""
    changes.count(ENQUEUED, by=len(jobs))
    for job in jobs:
        changes.accepted[job.queue] += 1
        if job.webhook_url:
            changes.webhooks.append((job.id, job.webhook_url))
        if job.run_at is not None or job.delay_seconds:
            changes.delayed = True


def _may_be_a_repeat(submission: Submission, answer: Receipt | Exception | None) -> bool:
    """Not inserted, or refused for a parent that may have been alive when this was first asked."""
    return answer is None or (submission.idempotency_key is not None and isinstance(answer, Exception))


def just_expired() -> IdempotencyMismatch:
    # Its row was pruned in this very moment: the caller's retry will be a first request.
    return IdempotencyMismatch("The Idempotency-Key has just expired; try again.")


async def _insert(
    connection: Runner,
    submissions: Sequence[Submission],
    answers: list[Receipt | Exception | None],
    parents: dict[str, asyncpg.Record],
) -> set[str]:
    rows = Rows()
    for n, submission in enumerate(submissions):
        problem = parent_problem(submission, parents)
        if problem is not None:
            answers[n] = problem
            continue
        for job in submission.jobs:
            parent = parents.get(job.parent_id or "")
            rows.add(job, submission, parent["deadline"] if parent else None)
    if not rows.rows:
        return set()
    return await insert(connection, rows)


async def insert(connection: Runner, rows: Rows) -> set[str]:
    """Insert these rows, with their events; the ids that are there now."""
    columns = rows.columns()
    used = tuple(index for index, column in enumerate(columns) if column.count(None) < len(column))
    place = rows.rows[0][PLACE.start : PLACE.stop]
    one_place = all(row[PLACE.start : PLACE.stop] == place for row in rows.rows)
    sent = (columns[index][0] if one_place and index in PLACE else columns[index] for index in used)
    records = await connection.fetch(enqueue_statement(used, one_place=one_place), *sent)
    return {record["id"] for record in records}


def parent_problem(submission: Submission, parents: dict[str, asyncpg.Record]) -> ForemanError | None:
    for index, job in enumerate(submission.jobs):
        if job.parent_id is None:
            continue
        problem = _refusal(parents.get(job.parent_id), job.tenant)
        if problem is not None:
            return indexed(problem, index) if submission.batch else problem
    return None


def indexed(problem: ForemanError, index: int) -> ForemanError:
    """The same, said of one entry of a list."""
    return type(problem)(
        f"jobs[{index}]: {problem.detail}", retry_after=problem.retry_after, index=index, **problem.extra
    )


def _refusal(parent: asyncpg.Record | None, tenant: str) -> ForemanError | None:
    if parent is None or parent["tenant"] != tenant:
        return InvalidRequest(
            "parent_id: there is no such job.",
            errors=[{"field": "parent_id", "message": "there is no such job"}],
        )
    if parent["state"] in TERMINAL:
        return JobTerminal(f"The parent job has already ended ({parent['state']}).")
    if parent["cancel_requested_at"] is not None:
        return JobTerminal("The parent job is being cancelled.")
    return None


# FOR SHARE: the parent cannot be cancelled between this look and our insert, so no child is missed.
LOCK_PARENTS = "SELECT id, tenant, state, deadline, cancel_requested_at FROM jobs WHERE id = ANY ($1::text[]) ORDER BY id FOR SHARE"


async def _lock_parents(connection: Runner, submissions: Sequence[Submission]) -> dict[str, asyncpg.Record]:
    wanted = {job.parent_id for submission in submissions for job in submission.jobs if job.parent_id}
    return {record["id"]: record for record in await connection.fetch(LOCK_PARENTS, sorted(wanted))}


FIRST_ANSWERS = """
SELECT i.position, k.fingerprint, k.job_ids
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS i (tenant, key, position)
JOIN idempotency_keys k ON k.tenant = i.tenant AND k.key = i.key
"""
STILL_THERE = "SELECT id FROM jobs WHERE id = ANY ($1::text[])"


async def first_answers(
    connection: Runner, repeats: Sequence[Submission]
) -> list[Receipt | Exception | None]:
    """What the first request with the same key was answered; or that it was another request, or that its jobs were
    deleted since; None if there was none."""
    found = {
        record["position"]: record
        for record in await connection.fetch(
            FIRST_ANSWERS, [each.tenant for each in repeats], [each.idempotency_key for each in repeats]
        )
    }
    answers: list[Receipt | Exception | None] = []
    for position, submission in enumerate(repeats, 1):
        record = found.get(position)
        if record is None:
            answers.append(None)
        elif record["fingerprint"] != submission.fingerprint:
            answers.append(
                IdempotencyMismatch("This Idempotency-Key was already used with another request body.")
            )
        else:
            first = read_answers(record["job_ids"])
            answers.append(Receipt([each.job_id for each in first], replayed=True, answers=first))
    receipts = [each for each in answers if isinstance(each, Receipt)]
    if receipts:
        asked = [job_id for each in receipts for job_id in each.job_ids]
        there = {row["id"] for row in await connection.fetch(STILL_THERE, asked)}
        answers = [_deleted(each, there) or each if isinstance(each, Receipt) else each for each in answers]
    return answers


def _deleted(receipt: Receipt, there: set[str]) -> NotFound | None:
    """The first answer said that the jobs are queued. Of what is gone that is not to be said again, and it is not
    to be run again either."""
    deleted = [job_id for job_id in receipt.job_ids if job_id not in there]
    if not deleted:
        return None
    return NotFound(
        "What was submitted with this Idempotency-Key has been deleted since.",
        job_ids=receipt.job_ids,
        deleted=deleted,
    )
