"""enqueue: → queued. Many submissions, one statement, one commit."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import asyncpg
import orjson
from msgspec.structs import astuple
from sqlalchemy import Column
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY

from app.errors import ForemanError, InvalidRequest, JobTerminal
from app.jobs.retry import DEFAULT_MAX_ATTEMPTS
from app.jobs.states import TERMINAL
from app.jobs.submission import NewJob
from app.store.changes import Changes
from app.store.database import Database, Runner
from app.store.effects import OUTBOX, announced
from app.store.history import line
from app.store.idempotency import Receipt, Submission, first_answers, just_expired
from app.store.live import enter_queue
from app.store.tables import METADATA
from app.store.tables.columns import Sent
from app.telemetry import ENQUEUED

# One answer for each submission.
Enqueued = Changes[Receipt | Exception]


def _array_literal(values: Sequence[object] | None) -> str | None:
    """Ragged arrays cannot be unnested; they travel as Postgres array literals (names and numbers only)."""
    # Quoted, or a name such as null would be taken for no value at all.
    return None if values is None else "{" + ",".join(f'"{value}"' for value in values) + "}"


def _json(value: object) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


_POSTGRESQL = postgresql.dialect()  # type: ignore[no-untyped-call]


class Input(NamedTuple):
    """What is sent of every job: a column of the table (see `Sent`), or something that others are made of."""

    name: str
    kind: str
    source: str = ""
    usual: int | bool | None = None
    shared: bool = False
    encode: Callable[[Any], object] | None = None


def _of_table() -> Iterator[Input]:
    for column in METADATA.tables["jobs"].columns:
        sent: Sent | None = column.info.get("sent")
        if sent is not None:
            is_array = isinstance(column.type, ARRAY)
            kind = "text" if is_array else _type_of(column)
            encode = _array_literal if is_array else None
            yield Input(column.name, kind, sent.source or column.name, sent.usual, sent.shared, encode)


def _type_of(column: Column[Any]) -> str:
    # Without the collation, which belongs to the column.
    return column.type.compile(_POSTGRESQL).partition(" COLLATE")[0]


OF_JOB = (
    *_of_table(),
    Input("delay_seconds", "float8", "delay_seconds"),
    Input("deadline_seconds", "float8", "deadline_seconds"),
    Input("depends_on", "jsonb", "depends_on", encode=_json),
)
INPUTS = (
    *OF_JOB,
    # What its submission, its parent and the rules of its queue add.
    Input("owner", "text"),
    Input("key", "text"),
    Input("fingerprint", "bytea"),
    Input("job_ids", "text"),
    Input("parent_deadline", "timestamptz"),
    Input("gate", "text"),
)
SHARED = tuple(index for index, each in enumerate(INPUTS) if each.shared)
# A row is all the fields of its job, and then what is added: where in it each input stands.
_PLACES = (
    *(NewJob.__struct_fields__.index(each.source) for each in OF_JOB),
    *range(len(NewJob.__struct_fields__), len(NewJob.__struct_fields__) + len(INPUTS) - len(OF_JOB)),
)
_NOTHING_MORE = (None,) * (len(INPUTS) - len(OF_JOB))


@dataclass(slots=True)
class Rows:
    """What is inserted, row by row; as arrays for unnest it goes to the database."""

    rows: list[tuple[object, ...]] = field(default_factory=list)

    def add(
        self,
        job: NewJob,
        submission: Submission,
        parents: Mapping[str, asyncpg.Record],
        gate: str | None = None,
    ) -> None:
        parent = parents.get(job.parent_id) if job.parent_id is not None else None
        if parent is None and gate is None and submission.idempotency_key is None:
            self.rows.append(astuple(job) + _NOTHING_MORE)
            return
        parent_deadline: datetime | None = parent["deadline"] if parent else None
        more: tuple[object, ...] = (None, None, None, None, parent_deadline, gate)
        if submission.idempotency_key is not None:
            jobs = submission.jobs
            if jobs[0] is not job:
                more = (jobs[0].id, None, None, None, parent_deadline, gate)
            else:
                ids = job.id if len(jobs) == 1 else " ".join([each.id for each in jobs])
                key, fingerprint = submission.idempotency_key, submission.fingerprint
                more = (job.id, key, fingerprint, ids, parent_deadline, gate)
        self.rows.append(astuple(job) + more)

    def sent(self) -> tuple[tuple[int, ...], bool, list[object]]:
        """Which inputs are used, whether all jobs share their place, and what the statement is sent."""
        by_place = list(zip(*self.rows, strict=True))
        columns = [by_place[place] for place in _PLACES]
        number = len(self.rows)
        used = tuple(
            index for index, column in enumerate(columns) if column.count(INPUTS[index].usual) < number
        )
        one_place = all(columns[index].count(columns[index][0]) == number for index in SHARED)
        sent = [
            columns[index][0]
            if one_place and INPUTS[index].shared
            else _encoded(INPUTS[index], columns[index])
            for index in used
        ]
        return used, one_place, sent


def _encoded(given: Input, values: tuple[object, ...]) -> tuple[object, ...]:
    return values if given.encode is None else tuple(map(given.encode, values))


_DEPENDS_ON_DATA = "json_build_object('depends_on', depends_on)::text"
# What is not stored as it is sent.
MADE = {
    "state": "'queued'",
    "seq": "1",
    "reason": """CASE WHEN gate = 'waiting_for' THEN gate WHEN due_at > now() THEN 'scheduled'
             WHEN gate = 'key' THEN 'key_busy' END""",
    "max_attempts": f"coalesce(max_attempts, {DEFAULT_MAX_ATTEMPTS})",
    "run_at": "due_at",
    "ready_at": "CASE WHEN due_at <= now() AND gate IS NULL THEN now() END",
    "deadline": "least(deadline, now() + deadline_seconds * interval '1 second', parent_deadline)",
    "dialect": "coalesce(dialect, 'ollama')",
    "gate": "CASE WHEN gate = 'waiting_for' OR due_at <= now() THEN gate END",
    # What a job waits for stands in its first event; otherwise that says nothing that the row does not.
    "history": f"""CASE WHEN depends_on IS NULL THEN '' ELSE {line("1", "enqueue", _DEPENDS_ON_DATA)} END""",
    "on_dependency_failure": "CASE WHEN depends_on IS NOT NULL THEN coalesce(on_dependency_failure, 'cancel') END",
}
STORED = {
    name: MADE.get(name) or (f"{name}::{_type_of(column)}" if isinstance(column.type, ARRAY) else name)
    for name, column in METADATA.tables["jobs"].columns.items()
    if name in MADE or "sent" in column.info
}

# A job's run_at may lie in the past (then it is ready at once) or ahead (then the promoter readies it). The gates
# stand in this order: other jobs, time, the key. What is not due yet does not stand in line for its key.
_ENQUEUE = """
WITH input AS (
    SELECT *, coalesce(run_at, now() + delay_seconds * interval '1 second', now()) AS due_at FROM ({input}) AS input
)
{keys}
, moved AS (
    INSERT INTO jobs ({stored})
    SELECT {values}
    FROM input
    {unrepeated}
    RETURNING id, seq, state AS type, state, webhook_url, webhook_events, queue, lane, rank, ready_at, run_at, gate,
        concurrency_key, fair_value, deadline, key_number
)
{enter_queue}
{outbox}
SELECT id FROM moved
"""
# In one order everywhere: two batches with the same keys wait for each other, but never in a circle.
_KEYS = """
, keys AS (
    INSERT INTO idempotency_keys (tenant, key, fingerprint, job_ids)
    SELECT tenant, key, fingerprint, job_ids FROM input WHERE key IS NOT NULL
    ORDER BY tenant, key
    ON CONFLICT DO NOTHING
    RETURNING left(job_ids, 26) AS owner
)
"""
_UNREPEATED = "WHERE owner IS NULL OR owner IN (SELECT owner FROM keys)"


# Only under the locks of their keys (see key_memory.py).
NUMBERED = "CASE WHEN concurrency_key IS NOT NULL THEN nextval('key_numbers') END"


def unnested(used: tuple[int, ...], *, one_place: bool, beside: Sequence[tuple[str, str]] = ()) -> str:
    """What `Rows.sent` makes, as rows with all inputs by name; and what comes `beside` it, arrays by name and type."""
    arrays, names, others = [], [], []
    for index, each in enumerate(INPUTS):
        if index not in used:
            usual = "NULL" if each.usual is None else str(each.usual)
            others.append(f"{usual}::{each.kind} AS {each.name}")
        elif one_place and each.shared:
            others.append(f"${used.index(index) + 1}::{each.kind} AS {each.name}")
        else:
            arrays.append(f"${used.index(index) + 1}::{each.kind}[]")
            names.append(each.name)
    arrays += [f"${len(used) + n}::{kind}[]" for n, (_, kind) in enumerate(beside, 1)]
    names += [name for name, _ in beside]
    return f"SELECT *, {', '.join(others)} FROM unnest({', '.join(arrays)}) AS sent ({', '.join(names)})"


@cache
def enqueue_statement(used: tuple[int, ...], *, one_place: bool = False, numbered: bool = False) -> str:
    """The statement for a batch that uses these inputs. Arrays cost their encoding, even full of NULLs; and each table
    that a statement writes costs something, even if it writes nothing to it."""
    has_keys, has_webhooks = (
        any(INPUTS[index].name == name for index in used) for name in ("owner", "webhook_url")
    )
    return _ENQUEUE.format(
        input=unnested(used, one_place=one_place),
        keys=_KEYS if has_keys else "",
        stored=", ".join((*STORED, "key_number")),
        values=", ".join((*STORED.values(), NUMBERED if numbered else "NULL")),
        unrepeated=_UNREPEATED if has_keys else "",
        enter_queue=enter_queue("moved"),
        outbox=OUTBOX if has_webhooks else announced(),
    )


async def enqueue(database: Database, submissions: Sequence[Submission]) -> Enqueued:
    """Enqueue all of them in one commit; each is answered on its own."""
    answers: list[Receipt | Exception | None] = [None] * len(submissions)
    accepted: list[NewJob] = []
    async with database.connection() as connection:
        children = [job for submission in submissions for job in submission.jobs if job.parent_id is not None]
        if children:
            async with connection.transaction():
                parents = await lock_parents(connection, children)
                inserted = await _insert(connection, submissions, answers, parents)
        else:
            inserted = await _insert(connection, submissions, answers, None)
        for n, submission in enumerate(submissions):
            if answers[n] is None and submission.jobs[0].id in inserted:
                answers[n] = Receipt([job.id for job in submission.jobs])
                accepted += submission.jobs
        repeated = [n for n, answer in enumerate(answers) if _may_be_a_repeat(submissions[n], answer)]
        if repeated:
            firsts = await first_answers(connection, [submissions[n] for n in repeated])
            for n, first in zip(repeated, firsts, strict=True):
                answers[n] = first or answers[n] or just_expired()
    changes: Enqueued = Changes([answer or RuntimeError("an enqueue was not answered") for answer in answers])
    if accepted:
        accept(changes, accepted)
        changes.work = {(job.queue, job.lane) for job in accepted}
    return changes


def accept(changes: Changes[Any], jobs: Sequence[NewJob]) -> None:
    """These are in the queue now. Nobody watches a job that he has yet to hear of: it is no change of its log."""
    changes.count(ENQUEUED, by=len(jobs))
    changes.accepted.update([job.queue for job in jobs])
    changes.webhooks += [(job.id, job.webhook_url) for job in jobs if job.webhook_url]
    if not changes.delayed:
        changes.delayed = any(job.run_at is not None or job.delay_seconds for job in jobs)


def _may_be_a_repeat(submission: Submission, answer: Receipt | Exception | None) -> bool:
    """Not inserted, or refused for a parent that may have been alive when this was first asked."""
    return answer is None or (submission.idempotency_key is not None and isinstance(answer, Exception))


async def _insert(
    connection: Runner,
    submissions: Sequence[Submission],
    answers: list[Receipt | Exception | None],
    parents: dict[str, asyncpg.Record] | None,
) -> set[str]:
    """`parents` is None where no job has one."""
    rows = Rows()
    for n, submission in enumerate(submissions):
        if parents is not None:
            answers[n] = parent_problem(submission, parents)
            if answers[n] is not None:
                continue
        for job in submission.jobs:
            rows.add(job, submission, parents or {})
    return await insert(connection, rows) if rows.rows else set()


async def insert(connection: Runner, rows: Rows, *, numbered: bool = False) -> set[str]:
    """Insert these rows, with their events; the ids that are there now. `numbered`: under the locks of their keys."""
    used, one_place, sent = rows.sent()
    records = await connection.fetch(enqueue_statement(used, one_place=one_place, numbered=numbered), *sent)
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


# Each by its id and tenant: what is another's is neither held nor waited for.
RELATED = """
SELECT j.id, j.tenant, j.state, j.deadline, j.cancel_requested_at
FROM (
    SELECT DISTINCT id COLLATE "C" AS id, tenant FROM unnest($1::text[], $2::text[]) AS named (id, tenant) ORDER BY 1
) AS named
CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = named.id AND tenant = named.tenant LIMIT 1 {lock}) AS j
"""
# The parent cannot be cancelled between this look and our insert, so no child is missed.
LOCK_PARENTS = RELATED.format(lock="FOR SHARE")


async def lock_parents(connection: Runner, jobs: Sequence[NewJob]) -> dict[str, asyncpg.Record]:
    named = [(job.parent_id, job.tenant) for job in jobs if job.parent_id]
    return await lock_named(connection, LOCK_PARENTS, named)


async def lock_named(
    connection: Runner, statement: str, named: Collection[tuple[str, str]]
) -> dict[str, asyncpg.Record]:
    """Jobs by id and tenant, held in the order of their ids."""
    if not named:
        return {}
    ids, tenants = [job_id for job_id, _ in named], [tenant for _, tenant in named]
    return {record["id"]: record for record in await connection.fetch(statement, ids, tenants)}
