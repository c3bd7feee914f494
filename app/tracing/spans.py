"""The spans of a job, as plain values: which there are, when each began and ended, and what it says.

All of a job's spans hang below the `traceparent` that its row keeps. Their ids are made of the job's id and
the `seq` of an event: every process knows that of a run, also while it goes on.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import msgspec
import orjson

from app.jobs.lanes import LLM_KINDS
from app.jobs.outcomes import code_of
from app.jobs.states import RUNNING, State, Verb
from app.store.attempts import EndedAttempt, Step
from app.store.idempotency import Receipt, Submission
from app.store.job import BriefJob, ClaimedJob, LeasedJob
from app.store.outbox import DueDelivery

SYSTEM = "foreman"
# Verbs that end a run, or a wait, as nobody wanted it.
_ERRORS = frozenset({Verb.FAIL, Verb.RETRY, Verb.RESCUE, Verb.SUPERSEDE, Verb.EXPIRE})
_GEN_AI_OPERATIONS = {"chat": "chat", "generate": "text_completion", "embed": "embeddings"}
_TRACEPARENT = re.compile(
    r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.DOTALL
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Kind = Literal["internal", "client", "producer", "consumer"]
Attributes = dict[str, str | int | float | bool]


class Context(NamedTuple):
    """Where a job's spans hang: its trace, and the span that submitted it."""

    trace_id: int
    span_id: int
    flags: int
    state: str | None = None

    def traceparent(self, span_id: int) -> str:
        """The same trace, seen from another of its spans."""
        return f"00-{self.trace_id:032x}-{span_id:016x}-{self.flags:02x}"


def context_of(traceparent: str | None, tracestate: str | None = None) -> Context | None:
    """None for what is no traceparent."""
    found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    return Context(int(found[1], 16), int(found[2], 16), int(found[3], 16), tracestate)


class Note(NamedTuple):
    """Something that happened at one moment of a span."""

    name: str
    at: int
    attributes: Attributes


class Span(msgspec.Struct, frozen=True):
    """Times are nanoseconds since 1970. Without a parent it is the one that its trace begins with."""

    context: Context
    name: str
    span_id: int
    parent_id: int | None
    start: int
    end: int
    attributes: Attributes
    kind: Kind = "internal"
    # A code, where it went wrong.
    error: str | None = None
    notes: Sequence[Note] = ()


def id_of(job_id: str, seq: int, part: str = "") -> int:
    """Of the span that belongs to this event of this job. Never zero, which is no id."""
    return int.from_bytes(blake2b(f"{job_id} {seq} {part}".encode(), digest_size=8).digest()) or 1


def of_submission(submission: Submission, receipt: Receipt, now: int) -> Span | None:
    """From when it was read to its commit; one span for all its jobs."""
    job = submission.jobs[0]
    context = context_of(job.traceparent, job.tracestate)
    if context is None:
        return None
    answer = receipt.each()[0]
    attributes: Attributes = {
        **_messaging("send", job.queue),
        "foreman.queue": job.queue,
        "foreman.kind": job.kind,
        "foreman.tenant": job.tenant,
        "foreman.outcome": "replayed" if receipt.replayed else answer.outcome,
    }
    if submission.batch:
        attributes["messaging.batch.message_count"] = len(submission.jobs)
    else:
        attributes |= {"foreman.job_id": answer.job_id, "messaging.message.id": answer.job_id}
    if job.model is not None:
        attributes["foreman.model"] = job.model
    if job.target is not None:
        attributes["foreman.target"] = job.target
    root = submission.begins_trace
    return Span(
        context,
        "foreman.submit",
        context.span_id if root else id_of(job.id, 0),
        None if root else context.span_id,
        submission.received_at,
        max(submission.received_at, now),
        attributes,
        "producer",
    )


def of_wait(job: ClaimedJob | LeasedJob | BriefJob) -> Span | None:
    """From when it could be claimed until it was."""
    context = context_of(job.traceparent)
    if context is None:
        return None
    attributes: Attributes = {
        "foreman.job_id": job.id,
        "foreman.queue": job.queue,
        "foreman.kind": job.kind,
        "foreman.attempt": job.attempt,
        "foreman.outcome": Verb.CLAIM.value,
    }
    start = _nanoseconds(job.ready_at)
    # A moment of a transaction that began before the job was ready may be earlier than that.
    end = max(start, _nanoseconds(job.entered_at))
    # By its moment: how many of them there were is not known to every claimer.
    wait_id = id_of(job.id, end, "queued")
    return Span(context, "foreman.queued", wait_id, context.span_id, start, end, attributes)


def of_attempt(ended: EndedAttempt) -> list[Span]:
    """What the transition has ended: a run with its parts, or a wait that led to none."""
    context = context_of(ended.traceparent, ended.tracestate)
    last, *before = ended.transitions()
    if context is None or last.seq != ended.ended_by or not before:
        return []
    if before[0].state == State.QUEUED and last.state != State.QUEUED:
        return [_unclaimed(ended, context, last, before[0])]
    if before[0].state in RUNNING:
        return _run(ended, context, last, before)
    # A dead letter was revived or dismissed.
    return []


def _unclaimed(ended: EndedAttempt, context: Context, last: Step, queued: Step) -> Span:
    start = queued.at * 1000 if ended.ready_at is None else _nanoseconds(ended.ready_at)
    return Span(
        context,
        "foreman.queued",
        id_of(ended.id, last.seq, "queued"),
        context.span_id,
        start,
        max(start, last.at * 1000),
        _of_job(ended) | {"foreman.outcome": last.verb},
        error=_error(last),
    )


def _run(ended: EndedAttempt, context: Context, last: Step, before: Sequence[Step]) -> list[Span]:
    working = before[0] if before[0].state == State.WORKING else None
    claim = next((step for step in before if step.state == State.LOADING), None)
    if claim is None:
        return []
    run_id = id_of(ended.id, claim.seq)
    start = claim.at * 1000
    end = max(start, last.at * 1000)
    started = end if working is None else min(max(start, working.at * 1000), end)
    parts = [
        Span(context, f"foreman.{state}", id_of(ended.id, claim.seq, state), run_id, since, until, {})
        for state, since, until in (("loading", start, started), ("working", started, end))
        if since < until
    ]
    claimed = _data(claim)
    attributes = _of_job(ended) | _messaging("process", ended.queue) | {"messaging.message.id": ended.id}
    attributes |= {"foreman.outcome": last.verb, "foreman.attempt": int(claimed.get("attempt", 0))}
    if worker := claimed.get("worker"):
        attributes["foreman.worker"] = str(worker)
    if ended.runs_on is not None:
        attributes["foreman.target"] = ended.runs_on
    if ended.kind in LLM_KINDS:
        attributes |= _gen_ai(ended, last)
    # Also of what is no failure, such as a target that could not be reached.
    if code := code_of(_data(last).get("error")):
        attributes["error.type"] = code
    notes = [_again(last)] if last.state == State.QUEUED else []
    run = Span(
        context,
        "foreman.run",
        run_id,
        context.span_id,
        start,
        end,
        attributes,
        "consumer",
        _error(last),
        notes,
    )
    return [run, *parts]


def _again(last: Step) -> Note:
    """It is queued once more: its next wait and its next run are spans of their own."""
    run_at = _data(last).get("run_at")
    return Note("foreman." + last.verb, last.at * 1000, {"foreman.run_at": str(run_at)} if run_at else {})


def of_delivery(delivery: DueDelivery, outcome: str, status: int | None, start: int, end: int) -> Span | None:
    """One try. The receiver by its host alone: what else a URL has may be secret."""
    context = context_of(delivery.traceparent, delivery.tracestate)
    if context is None:
        return None
    attributes: Attributes = {
        "foreman.job_id": delivery.job_id,
        "foreman.queue": delivery.queue,
        "foreman.kind": delivery.kind,
        "foreman.webhook.type": delivery.type,
        "foreman.webhook.seq": delivery.seq,
        "foreman.outcome": outcome,
        "http.request.method": "POST",
        "http.request.resend_count": delivery.tries,
        "server.address": delivery.host.rpartition("@")[2],
    }
    if status is not None:
        attributes["http.response.status_code"] = status
    error = None
    if outcome != "delivered":
        error = outcome if status is None else str(status)
        attributes["error.type"] = error
    try_id = id_of(delivery.job_id, delivery.seq, f"webhook {delivery.tries} {start}")
    return Span(
        context,
        "foreman.webhook",
        try_id,
        context.span_id,
        start,
        max(start, end),
        attributes,
        "client",
        error,
    )


def _of_job(job: EndedAttempt) -> Attributes:
    attributes: Attributes = {
        "foreman.job_id": job.id,
        "foreman.queue": job.queue,
        "foreman.kind": job.kind,
        "foreman.tenant": job.tenant,
    }
    if job.model is not None:
        attributes["foreman.model"] = job.model
    return attributes


def _messaging(operation: str, queue: str) -> Attributes:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
    }


def _gen_ai(job: EndedAttempt, last: Step) -> Attributes:
    attributes: Attributes = {"gen_ai.operation.name": _GEN_AI_OPERATIONS.get(job.kind, job.kind)}
    if job.model is not None:
        attributes["gen_ai.request.model"] = job.model
    if job.usage is not None and last.state == State.DONE:
        usage = orjson.loads(job.usage)
        for ours, theirs in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")):
            if isinstance(usage, dict) and isinstance(usage.get(ours), int):
                attributes[f"gen_ai.usage.{theirs}"] = usage[ours]
    return attributes


def _error(last: Step) -> str | None:
    """The code of what went wrong, or the verb where nobody named one."""
    return code_of(_data(last).get("error")) or last.verb if last.verb in _ERRORS else None


def _data(step: Step) -> dict[str, Any]:
    data = orjson.loads(step.data) if step.data else None
    return data if isinstance(data, dict) else {}


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND * 1000
