"""How a job went that has ended: what came of it, after how many attempts, and what it took."""

from typing import Any

import orjson
from msgspec import UNSET, UnsetType

from app.engine.explain_run import MAX_NAMED, attempt_of, other_jobs
from app.jobs.explanation import (
    Code,
    LastError,
    Ledger,
    Reason,
    clock,
    error_of,
    lasting,
    named,
    number,
    quoted,
    sentence,
)
from app.jobs.states import LIVE, State
from app.jobs.tenants import unscoped
from app.store import explain as store
from app.store.database import Database
from app.store.dependencies import FAILURE_REASON
from app.store.explain import ExplainedJob, StateEvent


async def ended_reasons(database: Database, job: ExplainedJob) -> list[Reason]:
    reasons = await _how_it_ended(database, job)
    error = error_of(job.error)
    if error is not None and all(each.error is UNSET for each in reasons):
        reasons.append(
            Reason(
                code=Code.LAST_ERROR, message=sentence(f"its last error was: {error.message}"), error=error
            )
        )
    return [*reasons, *_ledger(job)]


async def _how_it_ended(database: Database, job: ExplainedJob) -> list[Reason]:
    match State(job.state):
        case State.DONE:
            return [_done(job)]
        case State.FAILED:
            return [_failed(job)]
        case State.DISMISSED:
            return [_dismissed(job)]
        case State.CANCELLED:
            return await _cancelled(database, job)
        case State.EXPIRED:
            return [_expired(job)]
        case State.SKIPPED:
            return [await _skipped(database, job)]
        case _:
            return [await _stale(database, job)]


def _ended(code: Code, job: ExplainedJob, words: str, **fields: Any) -> Reason:
    return Reason(
        code=code,
        message=sentence(words),
        since=job.completed_at or UNSET,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        **fields,
    )


def _done(job: ExplainedJob) -> Reason:
    took = ((job.completed_at or job.now) - job.created_at).total_seconds() if job.created_at.tzinfo else 0.0
    return _ended(
        Code.DONE,
        job,
        f"done {lasting(took)} after it came in, at {attempt_of(job)}",
        worker=job.worker or UNSET,
    )


def _failed(job: ExplainedJob) -> Reason:
    error = error_of(job.error)
    said = f": {error.message}" if error else ""
    if job.reason == Code.ATTEMPTS_EXHAUSTED:
        words, code = f"failed after {number(job.attempt, 'attempt')}{said}", Code.ATTEMPTS_EXHAUSTED
    else:
        words, code = f"failed for good at {attempt_of(job)}{said}", Code.FAILED
    return _ended(code, job, words, error=_or_unset(error), worker=job.worker or UNSET)


def _dismissed(job: ExplainedJob) -> Reason:
    error = error_of(job.error)
    said = f", which was: {error.message}" if error else ""
    words = f"dismissed: an operator gave up on it after its failure{said}"
    return _ended(Code.DISMISSED, job, words, error=_or_unset(error))


async def _cancelled(database: Database, job: ExplainedJob) -> list[Reason]:
    event = await store.last_state_event(database, job.id)
    if job.cancel_reason == FAILURE_REASON:
        return [await _dependency_failed(database, job)]
    reason = job.cancel_reason or (job.reason if job.reason != "cancel" else None)
    words = f"cancelled {f'at {attempt_of(job)}' if job.attempt else 'while it waited'}"
    words += f": {quoted(reason)}" if reason else ""
    if _said(event).get("confirmed") is False:
        words += "; its worker did not confirm it in time"
    reasons = [_ended(Code.CANCELLED, job, words, reason=reason or UNSET)]
    parents = await store.related_jobs(database, [job.parent_id] if job.parent_id else [], job.tenant)
    if parents and parents[0].state == State.CANCELLED:
        reasons.append(
            Reason(
                code=Code.PARENT_CANCELLED,
                message=sentence(f"its parent {parents[0].id} was cancelled, and with it all jobs below"),
                jobs=other_jobs(parents),
            )
        )
    return reasons


async def _dependency_failed(database: Database, job: ExplainedJob) -> Reason:
    depends_on = _said(await store.first_event(database, job.id)).get("depends_on")
    ids = [each for each in depends_on if isinstance(each, str)] if isinstance(depends_on, list) else []
    found = await store.related_jobs(database, ids, job.tenant)
    # One that is gone may have failed as well.
    failed = [each for each in found if each.state not in {*LIVE, State.DONE}]
    names = named(f"{each.id} ({each.state})" for each in failed)
    words = "cancelled, because a job that it depends on did not end as done" + (
        f": {names}" if names else ""
    )
    return _ended(Code.DEPENDENCY_FAILED, job, words, jobs=other_jobs(failed), reason=FAILURE_REASON)


def _expired(job: ExplainedJob) -> Reason:
    error = error_of(job.error)
    deadline = f" at {clock(job.deadline, job.now)}" if job.deadline else ""
    when = f"at {attempt_of(job)}" if job.attempt else "before it was tried"
    said = f"; its last error was: {error.message}" if error else ""
    words = f"expired {when}: its deadline passed{deadline}{said}"
    return _ended(Code.EXPIRED, job, words, until=job.deadline or UNSET, error=_or_unset(error))


async def _skipped(database: Database, job: ExplainedJob) -> Reason:
    by = _said(await store.last_state_event(database, job.id)).get("replaced_by")
    found = await store.related_jobs(database, [by] if isinstance(by, str) else [], job.tenant)
    words = "skipped: while it waited, a newer job of its key took its place"
    if isinstance(by, str):
        words += f", {by}"
    return _ended(Code.SKIPPED, job, words, jobs=other_jobs(found))


async def _stale(database: Database, job: ExplainedJob) -> Reason:
    key = job.concurrency_key
    ids = [] if key is None else await store.holders_of_key(database, job.queue, key, MAX_NAMED)
    holders = await store.related_jobs(database, ids, job.tenant)
    names = named(each.id for each in holders)
    words = f"stale: {job.worker or 'its worker'} let its lease run out, and the next job of its key may run"
    words += f"; now it is held by {names}" if names else ""
    return _ended(
        Code.STALE,
        job,
        words,
        worker=job.worker or UNSET,
        key=UNSET if key is None else unscoped(job.tenant, key),
        jobs=other_jobs(holders),
    )


def _ledger(job: ExplainedJob) -> list[Reason]:
    """How long it took and what it used; of one that never ran only how long it waited."""
    usage = _parsed(job.usage)
    used = Ledger(
        queued_seconds=round(max(0.0, job.queued_seconds), 6),
        loading_seconds=round(max(0.0, job.loading_seconds), 6),
        working_seconds=round(max(0.0, job.working_seconds), 6),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
    )
    words = f"it waited for {lasting(used.queued_seconds)}"
    if job.started_at is not None:
        words += f", was made ready for {lasting(used.loading_seconds)}"
        words += f" and worked for {lasting(used.working_seconds)}"
    tokens = [
        f"{count:,} {which}"
        for count, which in ((used.prompt_tokens, "in"), (used.completion_tokens, "out"))
        if count is not None
    ]
    words += f"; tokens: {', '.join(tokens)}" if tokens else ""
    return [Reason(code=Code.LEDGER, message=sentence(words), ledger=used)]


def _or_unset(error: LastError | None) -> LastError | UnsetType:
    return UNSET if error is None else error


def _said(event: StateEvent | None) -> dict[str, Any]:
    return {} if event is None else _parsed(event.data)


def _parsed(text: str | None) -> dict[str, Any]:
    """An object that was kept as text; nothing where it is none."""
    try:
        found = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 63:
        return None
    return int(value)
