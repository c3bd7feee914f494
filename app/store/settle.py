"""Settlements: start, complete, fail, retry, defer, release, cancel by the worker that holds the lease.

Every one of them counts only with the current lease token. What comes late changes nothing, is told
`lease_lost`, and leaves a `late_settlement` event. One statement takes a whole batch of mixed verbs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from app.jobs.retry import DEFAULT_BACKOFF_SECONDS
from app.jobs.states import TERMINAL, Verb
from app.store.changes import Changes, Failure
from app.store.database import Runner
from app.store.effects import DELIVERIES, MOVED, OUTBOX, logged, moved
from app.store.history import TAKES_EVENTS, line
from app.store.live import stop
from app.store.rows import padded_arrays
from app.store.tallies import tally
from app.telemetry import EVENTS_APPENDED, SETTLEMENTS


@dataclass(slots=True)
class Settlement:
    """One verb on one job. `error`, `result`, `usage` and `output` are JSON text.

    SETTLE is sent the fields in this order, but for the last one, which only SETTLE_AND_SAY takes.
    """

    job_id: str
    lease_token: str
    verb: Verb
    result: str | None = None
    error: str | None = None
    delay_seconds: float | None = None
    reason: str | None = None
    usage: str | None = None
    # A factor around 1 for the backoff; randomness comes from outside.
    jitter: float = 1.0
    # The same settlement sent twice has the same fingerprint; only callers over HTTP have one.
    fingerprint: str | None = None
    # What the run said last: an event of type `output`, before that of the verb.
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """How a settlement ended: the state the job is in now, or that the lease was lost.

    `state` is None when there is no such job.
    """

    job_id: str
    ok: bool
    state: str | None


# What runs said last, with the state they said it in; announced before what became of them.
SAID = """
, said AS (
    INSERT INTO chatter (job_id, seq, type, state, data, at)
    SELECT id, seq - CASE WHEN was = 'loading' AND state = 'done' THEN 2 ELSE 1 END, 'output', was, output, statement_timestamp()
    FROM settled WHERE output IS NOT NULL
    RETURNING job_id AS id, seq
)
, announced AS (
    INSERT INTO announcements (job_ids, seqs)
    SELECT array_agg(id), array_agg(seq) FROM (SELECT id, seq FROM said UNION ALL SELECT id, seq FROM moved) AS written
    HAVING count(*) > 0
)
"""


# held → what becomes of each → jobs, events and outbox, in lock order of the ids. Only a running job has a
# lease token. LATERAL with its LIMIT keeps the look-up on the primary key, whatever the planner believes: a
# scan over the index of live jobs would wade through the dead entries of all that ran before.
# What starts and what is done is written into the job's own history, all else into the log of events.
# A worker that gives up on a job that was asked to stop has thereby confirmed the cancel.
def _settling(*, says: bool) -> str:
    """`says`: some of them have output to be written, too, which takes the seq before the verb's."""

    def saying(part: str) -> str:
        return part if says else ""

    next_seq = f"(j.seq + 1{saying(' + (h.output IS NOT NULL)::int')})"
    return (
        f"""
WITH input AS (
    SELECT * FROM unnest(
        $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::float8[], $7::text[], $8::text[], $9::float8[], $10::text[]{saying(", $12::text[]")}
    ) AS input (id, token, verb, result, error, delay, reason, usage, jitter, fingerprint{saying(", output")})
    ORDER BY id COLLATE "C"
)
, held AS (
    SELECT
        j.id, j.state AS was, j.logs_itself, input.verb, input.result, input.error, input.usage, input.fingerprint,
        {saying("input.output,")}
        CASE
            WHEN input.verb = 'complete' THEN 'done'
            WHEN input.verb = 'start' THEN 'working'
            WHEN input.verb = 'cancel' OR j.cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN input.verb = 'fail' OR (input.verb = 'retry' AND j.attempt >= j.max_attempts) THEN 'failed'
            ELSE 'queued'
        END AS becomes,
        CASE
            WHEN input.verb IN ('complete', 'start') THEN NULL
            WHEN input.verb = 'cancel' OR j.cancel_requested_at IS NOT NULL
                THEN coalesce(j.cancel_reason, input.reason, 'cancel')
            WHEN input.verb = 'retry' AND j.attempt >= j.max_attempts THEN 'attempts_exhausted'
            ELSE coalesce(input.reason, input.verb)
        END AS reason,
        CASE
            WHEN input.verb = 'retry' THEN coalesce(
                input.delay,
                (coalesce(j.backoff_seconds, $11::float8[]))[
                    least(greatest(j.attempt, 1), cardinality(coalesce(j.backoff_seconds, $11::float8[])))
                ] * input.jitter
            )
            ELSE coalesce(input.delay, 0)
        END AS delay
    FROM input CROSS JOIN LATERAL (
        SELECT id, state, attempt, max_attempts, backoff_seconds, cancel_requested_at, cancel_reason,
            {TAKES_EVENTS} AS logs_itself
        FROM jobs j
        WHERE id = input.id AND lease_token = input.token LIMIT 1 FOR UPDATE
    ) AS j
)
, settled AS (
    UPDATE jobs AS j SET
        state = h.becomes,
        reason = h.reason,
        seq = j.seq + CASE WHEN h.becomes = 'done' AND h.was = 'loading' THEN 2 ELSE 1 END{saying(" + (h.output IS NOT NULL)::int")},
        attempt = j.attempt - CASE WHEN h.becomes = 'queued' AND h.verb IN ('defer', 'release') THEN 1 ELSE 0 END,
        deferrals = j.deferrals + CASE WHEN h.becomes = 'queued' AND h.verb = 'defer' THEN 1 ELSE 0 END,
        result = coalesce(h.result, j.result),
        usage = coalesce(h.usage, j.usage),
        error = CASE WHEN h.becomes = 'done' THEN NULL ELSE coalesce(h.error, j.error) END,
        run_at = CASE WHEN h.becomes = 'queued' THEN now() + h.delay * interval '1 second' ELSE j.run_at END,
        ready_at = CASE WHEN h.becomes <> 'queued' THEN j.ready_at WHEN h.delay <= 0 THEN now() END,
        completed_at = CASE WHEN h.becomes IN ({", ".join(f"'{state}'" for state in sorted(TERMINAL))}) THEN now() END,
        lease_token = CASE WHEN h.becomes = 'working' THEN j.lease_token END,
        lease_expires_at = CASE WHEN h.becomes = 'working' THEN j.lease_expires_at END,
        attempt_expires_at = CASE WHEN h.becomes = 'working' THEN j.attempt_expires_at END,
        settlement = coalesce(h.fingerprint || ' ' || h.becomes, j.settlement),
        loading_seconds = j.loading_seconds
            + CASE WHEN h.was = 'loading' THEN date_part('epoch', now() - j.entered_at) ELSE 0 END,
        working_seconds = j.working_seconds
            + CASE WHEN h.was = 'working' THEN date_part('epoch', now() - j.entered_at) ELSE 0 END,
        entered_at = now(), updated_at = now(),
        history = CASE
            WHEN NOT h.logs_itself OR h.becomes NOT IN ('working', 'done') THEN j.history
            WHEN h.becomes = 'done' AND h.was = 'loading'
                THEN j.history || {line(next_seq, "start")} || {line(f"({next_seq} + 1)", "complete")}
            WHEN h.becomes = 'done' THEN j.history || {line(next_seq, "complete")}
            ELSE j.history || {line(next_seq, "start")}
        END
    FROM held h
    WHERE j.id = h.id AND NOT (h.verb = 'start' AND h.was = 'working')
    RETURNING j.id, j.kind, j.seq, j.state, j.reason, j.attempt, j.worker, j.queue, j.lane, j.ready_at, j.webhook_url,
        j.webhook_events, j.run_at, j.concurrency_key, j.has_dependents, j.rank, j.gate, j.fair_value, j.deadline, j.usage,
        j.usage_booked, j.completed_at, j.key_number, h.was, h.error,{saying(" h.output,")}
        h.logs_itself AND h.becomes IN ('working', 'done') AS logged_itself,
        CASE j.state WHEN 'cancelled' THEN 'cancel' WHEN 'failed' THEN 'fail' ELSE h.verb END AS verb
)
, moved AS (
    SELECT id, seq - 1 AS seq, 'working' AS type, 'working' AS state, 'start' AS verb, NULL AS data, webhook_url,
        webhook_events, logged_itself
    FROM settled WHERE was = 'loading' AND state = 'done'
    UNION ALL
    SELECT id, seq, state, state, verb,
        CASE WHEN state NOT IN ('working', 'done') THEN json_strip_nulls(json_build_object(
            'attempt', attempt, 'reason', nullif(reason, verb), 'error', error::json,
            'run_at', CASE WHEN state = 'queued' THEN run_at END
        ))::text END,
        webhook_url, webhook_events, logged_itself
    FROM settled
)
"""
        + stop("settled")
        + logged("moved WHERE NOT logged_itself")
        + (DELIVERIES + SAID if says else OUTBOX)
        + tally("settled")
        + f"""
SELECT {MOVED}, kind, attempt FROM settled
UNION ALL
SELECT id, was, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM held WHERE verb = 'start' AND was = 'working'
"""
    )


SETTLE = _settling(says=False)
SETTLE_AND_SAY = _settling(says=True)

_SENT = [each.name for each in fields(Settlement) if each.name != "output"]
_BACKOFF = list(DEFAULT_BACKOFF_SECONDS)


async def settle(database: Runner, settlements: Sequence[Settlement]) -> Changes[Settled]:
    """Settle a batch in one commit, each on its own terms. At most one settlement per job."""
    given = (*padded_arrays(settlements, *_SENT), _BACKOFF)
    outputs = [each.output for each in settlements]
    if any(outputs):
        rows = await database.fetch(SETTLE_AND_SAY, *given, outputs)
    else:
        rows = await database.fetch(SETTLE, *given)
    changes: Changes[Settled] = Changes()
    answers: dict[str, Settled] = {}
    for row in rows:
        answers[row["id"]] = Settled(row["id"], True, row["state"])
        # One that was working already, and was started once more, has not changed.
        if row["queue"] is not None:
            changes.moved(row, ran=True)
            if row["state"] == "failed":
                errors = {each.job_id: each.error for each in settlements}
                changes.failed.append(
                    Failure(row["id"], row["kind"], row["queue"], row["attempt"], errors[row["id"]])
                )
    if len(answers) < len(settlements):
        without = [each for each in settlements if each.job_id not in answers]
        answers |= await _without_lease(database, without, changes)
    changes.answers = [answers[each.job_id] for each in settlements]
    for settlement, answer in zip(settlements, changes.answers, strict=True):
        changes.count(SETTLEMENTS, settlement.verb.value, "true" if answer.ok else "false")
        if settlement.output is not None and answer.ok:
            changes.count(EVENTS_APPENDED, "output")
    return changes


LAST_SETTLEMENTS = "SELECT id, state, settlement FROM jobs WHERE id = ANY ($1::text[])"


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
        if job is None:
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
    """
WITH late AS (
    SELECT j.id, input.verb
    FROM (SELECT * FROM unnest($1::text[], $2::text[]) AS late (id, verb) ORDER BY id COLLATE "C") AS input
    CROSS JOIN LATERAL (SELECT id FROM jobs WHERE id = input.id LIMIT 1 FOR UPDATE) AS j
)
, noted AS (
    UPDATE jobs AS j SET seq = j.seq + 1, updated_at = now()
    FROM late WHERE j.id = late.id
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


async def note_late(database: Runner, late: Sequence[tuple[str, str]]) -> Changes[None]:
    """Leave a late_settlement event for each (job id, verb)."""
    noted = await database.fetch(NOTE_LATE, [job_id for job_id, _ in late], [verb for _, verb in late])
    return Changes(jobs={row["id"] for row in noted})


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
# at which the row's lock was got: somebody may have held it for longer than the lease lasts.
HEARTBEAT = """
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
        clock_timestamp() + coalesce(held.seconds, j.lease_seconds, 30) * interval '1 second', j.attempt_expires_at
    )
FROM held WHERE j.id = held.id
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
