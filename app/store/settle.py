"""Settlements: start, complete, fail, retry, defer, release, cancel by the worker that holds the lease.

Every one of them counts only with the current lease token. What comes late changes nothing, is told
`lease_lost`, and leaves a `late_settlement` event. One statement takes a whole batch of mixed verbs.
(What can happen to a lease, in any order and through any crash, is walked through by tests/store/lease_model.py.)
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson

from app.jobs.retry import DEFAULT_BACKOFF_SECONDS
from app.jobs.states import TERMINAL, Verb
from app.store.changes import Changes
from app.store.database import Runner
from app.store.effects import DELIVERIES, RANK_IS_KEPT, announced, logged, moved, ran, told
from app.store.history import TAKES_EVENTS, line
from app.store.live import book, leave_run, stop
from app.store.rows import looked_up, padded_arrays
from app.store.tallies import tally
from app.telemetry import EVENTS_APPENDED, SETTLEMENTS, TOKENS


@dataclass(slots=True)
class Settlement:
    """One verb on one job. `error`, `error_body`, `result`, `usage` and `output` are JSON text."""

    job_id: str
    lease_token: str
    verb: Verb
    result: str | None = None
    error: str | None = None
    # Kept with the job's error, but not told with its events.
    error_body: str | None = None
    delay_seconds: float | None = None
    reason: str | None = None
    usage: str | None = None
    # A factor around 1 for the backoff; randomness comes from outside.
    jitter: float = 1.0
    # The same settlement sent twice has the same fingerprint, without blanks. (`start` may be said twice as it is.)
    fingerprint: str | None = None
    # What the run said last: an event of type `output`, before that of the verb.
    output: str | None = None
    # Whose job it must be; who holds the lease needs not say.
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """How a settlement ended: the state the job is in now, or that the lease was lost.

    `state` is None when there is no such job.
    """

    job_id: str
    ok: bool
    state: str | None


# What runs said last, with the state they said it in: it stands before what became of them.
SAID = """
, said AS (
    INSERT INTO chatter (job_id, seq, type, state, data, at)
    SELECT id, seq - CASE WHEN was = 'loading' AND state = 'done' THEN 2 ELSE 1 END, 'output', was, output, statement_timestamp()
    FROM settled WHERE output IS NOT NULL
)
"""


# What is sent of each Settlement; where all of them complete, that is less.
_COMPLETION = ("job_id", "lease_token", "result", "usage", "fingerprint")
_OTHERWISE = ("verb", "error", "error_body", "delay_seconds", "reason", "jitter")
_NUMBERS = ("delay_seconds", "jitter")


def _sent(*, completes: bool, says: bool) -> tuple[str, ...]:
    return _COMPLETION + (() if completes else _OTHERWISE) + (("output",) if says else ())


# Into which state, why, and after which delay. A worker that gives up on a job that was asked to stop has thereby
# confirmed the cancel. A job without any backoff is not tried again later: its caller is told.
_BECOMES = """,
        CASE
            WHEN input.verb = 'complete' THEN 'done'
            WHEN input.verb = 'start' THEN 'working'
            WHEN input.verb = 'cancel' OR j.cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN input.verb = 'fail' OR (input.verb = 'retry' AND j.attempt >= j.max_attempts) THEN 'failed'
            WHEN input.verb = 'retry' AND cardinality(j.backoff_seconds) = 0 THEN 'failed'
            ELSE 'queued'
        END AS becomes,
        CASE
            WHEN input.verb IN ('complete', 'start') THEN NULL
            WHEN input.verb = 'cancel' OR j.cancel_requested_at IS NOT NULL
                THEN coalesce(j.cancel_reason, input.reason, 'cancel')
            WHEN input.verb = 'retry' AND cardinality(j.backoff_seconds) = 0 THEN 'fail'
            WHEN input.verb = 'retry' AND j.attempt >= j.max_attempts THEN 'attempts_exhausted'
            ELSE coalesce(input.reason, input.verb)
        END AS why,
        CASE
            WHEN input.verb = 'retry' THEN coalesce(
                input.delay_seconds,
                (coalesce(j.backoff_seconds, {backoff}))[
                    least(greatest(j.attempt, 1), cardinality(coalesce(j.backoff_seconds, {backoff})))
                ] * input.jitter
            )
            ELSE coalesce(input.delay_seconds, 0)
        END AS delay
"""


# What the row keeps of an error: with the body, as it was written.
_KEPT_ERROR = """CASE WHEN h.error_body IS NULL THEN h.error
        ELSE left(h.error, -1) || ',"body":' || h.error_body || '}' END"""

# Whose events are rows, in the log or in the outbox; of most jobs they are lines of their history, and nothing else.
_TELLS = "(NOT logged_itself OR webhook_url IS NOT NULL)"


# One that was working already, and was started once more, has not changed.
STARTED_ALREADY = f"""
UNION ALL
SELECT id, NULL, was{", NULL" * 12} FROM held WHERE verb = 'start' AND was = 'working'
"""

# How long the run took, from its claim on. A job that was never `loading` was claimed and started at once; otherwise the
# claim has to be looked up, but for one that is still loading.
_RAN = f"""CASE WHEN j.state = 'loading' OR j.loading_seconds = 0
        THEN greatest(0, date_part('epoch', now() - j.entered_at)) ELSE {ran("j")} END"""


# held → what becomes of each → jobs, events and outbox, in lock order of the ids. Only a running job has a
# lease token. LATERAL with its LIMIT keeps the look-up on the primary key, whatever the planner believes: a
# scan over the index of live jobs would wade through the dead entries of all that ran before.
# What starts and what is done is written into the job's own history, all else into the log of events.
def _settling(*, completes: bool, says: bool) -> str:
    """`completes`: all of them do, as mostly, and what only the other verbs need is left out; PostgreSQL itself leaves
    out of the CASEs what cannot be. `says`: some have output to be written, too, which takes the seq before the verb's.
    """
    sent = _sent(completes=completes, says=says)
    arrays = [f"${n}::{'float8' if name in _NUMBERS else 'text'}[]" for n, name in enumerate(sent, 1)]
    if completes:
        decided, becomes, verb, why, error, delay = "", "'done'", "'complete'", "NULL", "NULL::text", "0"
        request_id = kept_error = "NULL::text"
        ended = leave_run("settled") + book("settled")
    else:
        decided = _BECOMES.format(backoff=f"${len(sent) + 1}::float8[]")
        becomes, verb, why, error, delay = "h.becomes", "h.verb", "h.why", "h.error", "h.delay"
        request_id = "CASE WHEN h.becomes = 'failed' THEN j.request_id END"
        kept_error = _KEPT_ERROR
        ended = stop("settled")
    said = " + (h.output IS NOT NULL)::int" if says else ""
    next_seq = f"(j.seq + 1{said})"
    events = "CASE WHEN was = 'loading' AND state = 'done' THEN 2 ELSE 1 END" + said.replace("h.", "")
    return (
        f"""
WITH input AS (
    SELECT * FROM unnest({", ".join(arrays)}) AS input ({", ".join(sent)}) ORDER BY job_id COLLATE "C"
)
, held AS (
    SELECT j.id, j.state AS was, j.logs_itself, {_RAN} AS ran, input.*{decided}
    FROM input CROSS JOIN LATERAL (
        SELECT id, state, entered_at, loading_seconds, attempt, max_attempts, backoff_seconds, cancel_requested_at, cancel_reason,
            {TAKES_EVENTS} AS logs_itself
        FROM jobs j
        WHERE id = input.job_id AND lease_token = input.lease_token LIMIT 1 FOR UPDATE
    ) AS j
)
, settled AS (
    UPDATE jobs AS j SET
        state = {becomes},
        reason = {why},
        seq = j.seq + CASE WHEN {becomes} = 'done' AND h.was = 'loading' THEN 2 ELSE 1 END{said},
        attempt = j.attempt - CASE WHEN {becomes} = 'queued' AND {verb} IN ('defer', 'release') THEN 1 ELSE 0 END,
        deferrals = j.deferrals + CASE WHEN {becomes} = 'queued' AND {verb} = 'defer' THEN 1 ELSE 0 END,
        result = coalesce(h.result, j.result),
        usage = coalesce(h.usage, j.usage),
        error = CASE WHEN {becomes} = 'done' THEN NULL ELSE coalesce({kept_error}, j.error) END,
        run_at = CASE WHEN {becomes} = 'queued' THEN now() + {delay} * interval '1 second' ELSE j.run_at END,
        ready_at = CASE WHEN {becomes} <> 'queued' THEN j.ready_at WHEN {delay} <= 0 THEN now() END,
        completed_at = CASE WHEN {becomes} IN ({", ".join(f"'{state}'" for state in sorted(TERMINAL))}) THEN now() END,
        lease_token = CASE WHEN {becomes} = 'working' THEN j.lease_token END,
        lease_expires_at = CASE WHEN {becomes} = 'working' THEN j.lease_expires_at END,
        attempt_expires_at = CASE WHEN {becomes} = 'working' THEN j.attempt_expires_at END,
        settlement = coalesce(h.fingerprint || ' ' || {becomes}, j.settlement),
        loading_seconds = j.loading_seconds
            + CASE WHEN h.was = 'loading' THEN date_part('epoch', now() - j.entered_at) ELSE 0 END,
        working_seconds = j.working_seconds
            + CASE WHEN h.was = 'working' THEN date_part('epoch', now() - j.entered_at) ELSE 0 END,
        entered_at = now(), updated_at = now(),
        history = CASE
            WHEN NOT h.logs_itself OR {becomes} NOT IN ('working', 'done') THEN j.history
            WHEN {becomes} = 'done' AND h.was = 'loading'
                THEN j.history || {line(next_seq, "start")} || {line(f"({next_seq} + 1)", "complete")}
            WHEN {becomes} = 'done' THEN j.history || {line(next_seq, "complete")}
            ELSE j.history || {line(next_seq, "start")}
        END,
        {RANK_IS_KEPT}
    FROM held h
    WHERE {looked_up("j.id", "h.id")} AND NOT ({verb} = 'start' AND h.was = 'working')
    RETURNING j.id, j.kind, j.seq, j.state, j.reason, j.attempt, j.worker, j.queue, j.lane, j.ready_at, j.webhook_url,
        j.webhook_events, j.run_at, j.concurrency_key, j.has_dependents, j.rank, j.gate, j.fair_value, j.deadline, j.usage,
        j.usage_booked, j.completed_at, j.key_number, h.was, h.ran, {error} AS error, {request_id} AS request_id,
        CASE WHEN h.usage IS NOT NULL THEN coalesce(j.model, '') END AS used_model,{" h.output," if says else ""}
        h.logs_itself AND {becomes} IN ('working', 'done') AS logged_itself,
        CASE {becomes} WHEN 'cancelled' THEN 'cancel' WHEN 'failed' THEN 'fail' ELSE {verb} END AS verb
)
, moved AS (
    SELECT id, seq - 1 AS seq, 'working' AS type, 'working' AS state, 'start' AS verb, NULL AS data, webhook_url,
        webhook_events, logged_itself
    FROM settled WHERE {_TELLS} AND was = 'loading' AND state = 'done'
    UNION ALL
    SELECT id, seq, state, state, verb,
        CASE WHEN state NOT IN ('working', 'done') THEN json_strip_nulls(json_build_object(
            'attempt', attempt, 'reason', nullif(reason, verb), 'error', error::json,
            'run_at', CASE WHEN state = 'queued' THEN run_at END
        ))::text END,
        webhook_url, webhook_events, logged_itself
    FROM settled WHERE {_TELLS}
)
"""
        + ended
        + logged("moved WHERE NOT logged_itself")
        + DELIVERIES
        + (SAID if says else "")
        + announced("settled", events)
        + tally("settled")
        + told("settled", "used_model", verb="verb", ran="ran", error="error")
        + ("" if completes else STARTED_ALREADY)
    )


SETTLE = _settling(completes=False, says=False)
SETTLE_AND_SAY = _settling(completes=False, says=True)
COMPLETE = _settling(completes=True, says=False)
COMPLETE_AND_SAY = _settling(completes=True, says=True)
# By whether all of them complete, and whether any says something.
_STATEMENTS = {
    (False, False): SETTLE,
    (False, True): SETTLE_AND_SAY,
    (True, False): COMPLETE,
    (True, True): COMPLETE_AND_SAY,
}
_BACKOFF = list(DEFAULT_BACKOFF_SECONDS)


async def settle(database: Runner, settlements: Sequence[Settlement]) -> Changes[Settled]:
    """Settle a batch in one commit, each on its own terms. At most one settlement per job."""
    completes = all(each.verb is Verb.COMPLETE for each in settlements)
    says = any(each.output for each in settlements)
    given = padded_arrays(settlements, *_sent(completes=completes, says=says))
    rows = await database.fetch(_STATEMENTS[completes, says], *given, *(() if completes else (_BACKOFF,)))
    changes: Changes[Settled] = Changes()
    answers: dict[str, Settled] = {}
    for row in rows:
        answers[row["id"]] = Settled(row["id"], True, row["state"])
    changes.moved(rows if completes else [row for row in rows if row["queue"] is not None])
    if len(answers) < len(settlements):
        without = [each for each in settlements if each.job_id not in answers]
        answers |= await _without_lease(database, without, changes)
    changes.answers = [answers[each.job_id] for each in settlements]
    if any(each.usage for each in settlements):
        _count_tokens(changes, settlements, {row["id"]: row["used_model"] for row in rows})
    ended = zip(settlements, changes.answers, strict=True)
    counted = Counter([(each.verb, answer.ok, each.output is None) for each, answer in ended])
    for (verb, ok, silent), number in counted.items():
        changes.count(SETTLEMENTS, verb.value, "true" if ok else "false", by=number)
        if ok and not silent:
            changes.count(EVENTS_APPENDED, "output", by=number)
    return changes


def _count_tokens(
    changes: Changes[Settled], settlements: Sequence[Settlement], models: Mapping[str, str | None]
) -> None:
    """As GET /usage does, but for what is no number: whatever workers write beside the figures is kept as it is."""
    for each in settlements:
        model = models.get(each.job_id)
        if each.usage is None or model is None:
            continue
        usage = orjson.loads(each.usage)
        for of in ("prompt", "completion"):
            tokens = usage.get(f"{of}_tokens") if isinstance(usage, dict) else None
            if isinstance(tokens, int) and tokens > 0:
                changes.count(TOKENS, model, of, by=tokens)


LAST_SETTLEMENTS = "SELECT id, tenant, state, settlement FROM jobs WHERE id = ANY ($1::text[])"


async def _without_lease(
    database: Runner, settlements: Sequence[Settlement], changes: Changes[Settled]
) -> dict[str, Settled]:
    """The very same settlement sent twice is answered alike; anything else without its lease is late."""
    known = {
        row["id"]: row
        for row in await database.fetch(LAST_SETTLEMENTS, [each.job_id for each in settlements])
    }
    answers: dict[str, Settled] = {}
    late = []
    for each in settlements:
        job = known.get(each.job_id)
        if job is None or each.tenant not in (None, job["tenant"]):
            answers[each.job_id] = Settled(each.job_id, ok=False, state=None)
            continue
        fingerprint, _, state = (job["settlement"] or "").partition(" ")
        if each.fingerprint is not None and fingerprint == each.fingerprint:
            answers[each.job_id] = Settled(each.job_id, True, state)
        else:
            late.append(each)
            answers[each.job_id] = Settled(each.job_id, False, job["state"])
    if late:
        changes.add(await note_late(database, [(each.job_id, str(each.verb)) for each in late]))
    return answers


# Not a transition: the state stays. It still gets the next seq, so the log tells what happened.
NOTE_LATE = (
    f"""
WITH late AS (
    SELECT j.id, input.verb
    FROM (SELECT * FROM unnest($1::text[], $2::text[]) AS late (id, verb) ORDER BY id COLLATE "C") AS input
    CROSS JOIN LATERAL (
        SELECT id FROM jobs WHERE id = input.id AND ($3::text IS NULL OR tenant = $3) LIMIT 1 FOR UPDATE
    ) AS j
)
, noted AS (
    UPDATE jobs AS j SET seq = j.seq + 1, updated_at = now()
    FROM late WHERE {looked_up("j.id", "late.id")}
    RETURNING j.id, j.seq, j.state, late.verb, j.webhook_url, j.webhook_events
)
"""
    + moved(
        "noted",
        verb="'late_settlement'",
        data="json_build_object('verb', verb)::text",
        kind="'late_settlement'",
    )
    + "SELECT id FROM noted"
)


async def note_late(
    database: Runner, late: Sequence[tuple[str, str]], tenant: str | None = None
) -> Changes[str]:
    """Leave a late_settlement event for each (job id, verb), of this tenant where one is named; answers the ids of those
    that there are."""
    noted = await database.fetch(
        NOTE_LATE, [job_id for job_id, _ in late], [verb for _, verb in late], tenant
    )
    ids = [row["id"] for row in noted]
    return Changes(ids, jobs=set(ids))


@dataclass(frozen=True, slots=True)
class Lease:
    """The answer to a heartbeat: what HEARTBEAT returns."""

    job_id: str
    token: str
    expires_at: datetime
    cancel_requested: bool
    deadline: datetime | None


# Only columns without an index change, so the update stays on its page. Never past the attempt's end:
# a worker that hangs but still breathes loses its lease by the same rule as one that died. Counted from the moment
# at which the row's lock was got: somebody may have held it for longer than the lease lasts. Who does not say for how long
# does not shorten what was promised: such a heartbeat may have been on its way for longer than one that did.
HEARTBEAT = f"""
WITH held AS (
    SELECT j.id, input.seconds
    FROM (
        SELECT * FROM unnest($1::text[], $2::text[], $3::float8[]) AS beat (id, token, seconds) ORDER BY id COLLATE "C"
    ) AS input
    CROSS JOIN LATERAL (
        SELECT id FROM jobs WHERE id = input.id AND lease_token = input.token LIMIT 1 FOR UPDATE
    ) AS j
)
UPDATE jobs AS j SET
    lease_expires_at = least(
        greatest(
            clock_timestamp() + coalesce(held.seconds, j.lease_seconds, 30) * interval '1 second',
            CASE WHEN held.seconds IS NULL THEN j.lease_expires_at END
        ),
        j.attempt_expires_at
    )
FROM held WHERE {looked_up("j.id", "held.id")}
RETURNING j.id, j.lease_token, j.lease_expires_at, j.cancel_requested_at IS NOT NULL AS cancel_requested, j.deadline
"""


async def heartbeat(
    database: Runner, leases: Sequence[tuple[str, str]], seconds: Sequence[float | None] | None = None
) -> dict[str, Lease]:
    """Renew leases by (job id, token), each for its own time or as it was; those missing from the answer are lost."""
    rows = await database.fetch(
        HEARTBEAT,
        [job_id for job_id, _ in leases],
        [token for _, token in leases],
        list(seconds or [None] * len(leases)),
    )
    return {row["id"]: Lease(*row) for row in rows}
