"""A job's row as the JSON that callers see. Payload and result are spliced in verbatim."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson

from app.jobs.artifacts import artifact_list
from app.jobs.lanes import NO_WORKER, TARGET_ASLEEP
from app.store.job import Job, JobSummary

# How the driver shows infinity: without a zone, so it equals no moment that has one.
INFINITY = datetime.max  # noqa: DTZ901 - see above


def dump(document: Any) -> bytes:
    """As JSON; rows of the store may be parts of the document as they are."""
    return orjson.dumps(document, msgspec.structs.asdict, orjson.OPT_UTC_Z)


def raw(text: str | None) -> orjson.Fragment | None:
    return None if text is None else orjson.Fragment(text)


def moment(at: datetime | None) -> datetime | None:
    """A moment for callers: one that never comes is none at all."""
    return None if at == INFINITY else at


def job_document(
    job: JobSummary,
    *,
    queue_position: int | None = None,
    unwanted_since: datetime | None = None,
) -> dict[str, Any]:
    """The job as specified; a summary of it is shown without payload, result and artifacts.

    `unwanted_since`: since when nobody has asked for its kind; not in the row, because it is nobody's doing.
    """
    document: dict[str, Any] = {
        "job_id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "state": job.state,
        "reason": NO_WORKER if unwanted_since else job.reason,
        "priority": job.priority,
        "model": job.model,
    }
    if isinstance(job, Job):
        document["payload"] = raw(job.payload)
        document["result"] = raw(job.result)
    document |= {
        "error": raw(job.error),
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "deferrals": job.deferrals,
        "progress": raw(job.progress),
        "created_at": job.created_at,
        # A sleeping target is waited for, however soon it is asked again: there is no moment to name.
        "run_at": None if job.reason == TARGET_ASLEEP else moment(job.run_at),
        "started_at": job.started_at,
        "completed_at": job.completed_at,
        "updated_at": job.updated_at,
        "deadline": job.deadline,
        "worker": job.worker,
        "target": job.runs_on or job.target,
        "lease_expires_at": job.lease_expires_at,
        "concurrency_key": job.concurrency_key,
        "parent_id": job.parent_id,
        "metadata": raw(job.metadata) or {},
    }
    if isinstance(job, Job):
        document["artifacts"] = artifacts(job)
    document |= {
        "trace": {
            "request_id": job.request_id,
            "traceparent": job.traceparent,
            "tracestate": job.tracestate,
        },
        "timings": timings(job, datetime.now(UTC)),
        "seq": job.seq,
        "usage": raw(job.usage),
    }
    if job.state == "queued":
        document["queue_position"] = queue_position
    if unwanted_since:
        document["reason_since"] = unwanted_since
    return document


def timings(job: JobSummary, now: datetime) -> dict[str, float]:
    """Seconds spent in each phase, the current one included."""
    spent = {
        "queued_seconds": job.queued_seconds,
        "loading_seconds": job.loading_seconds,
        "working_seconds": job.working_seconds,
    }
    phase = f"{job.state}_seconds"
    if phase in spent:
        spent[phase] += max(0.0, (now - job.entered_at).total_seconds())
    return {name: round(seconds, 6) for name, seconds in spent.items()}


def artifacts(job: Job) -> list[dict[str, Any]]:
    return artifact_list(job.id, job.kind, job.result, job.stored_artifacts)
