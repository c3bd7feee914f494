"""From a job's row to its document. Payload, result and the like are spliced in verbatim."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from msgspec import UNSET, Raw

from app.api.job_documents import Artifact, BriefClaimedJob, BriefTrace, ClaimedJob, Timings, Trace
from app.api.job_documents import Job as Document
from app.jobs.artifacts import artifact_list
from app.jobs.lanes import NO_WORKER, TARGET_ASLEEP
from app.jobs.outcomes import shown_error
from app.jobs.states import LIVE, State
from app.jobs.tenants import unscoped
from app.store.job import BriefJob, Job, JobSummary, LeasedJob

Shape = TypeVar("Shape", bound=Document)

# How the driver shows infinity: without a zone, so it equals no moment that has one.
INFINITY = datetime.max  # noqa: DTZ901 - see above
_NULL = Raw(b"null")
_NOTHING = Raw(b"{}")


def job_document(
    job: JobSummary, *, queue_position: int | None = None, unwanted_since: datetime | None = None
) -> Document:
    """The job as specified; a summary of it is shown without payload, result and artifacts.

    `unwanted_since`: since when nobody has asked for its kind; not in the row, because it is nobody's doing.
    """
    document = _document(Document, job, datetime.now(UTC))
    if job.state == "queued":
        document.queue_position = queue_position
    if job.key_id is not None:
        document.submitted_by = job.key_id
    if unwanted_since is not None:
        document.reason = NO_WORKER
        document.reason_since = unwanted_since
    return document


def claimed_documents(jobs: Iterable[LeasedJob]) -> list[ClaimedJob]:
    now = datetime.now(UTC)
    return [_document(ClaimedJob, job, now, lease_token=job.lease_token) for job in jobs]


def brief_documents(jobs: Iterable[BriefJob]) -> list[BriefClaimedJob]:
    return [
        # In the order of the fields: a name for each would take as long again.
        BriefClaimedJob(
            job.id,
            job.kind,
            job.queue,
            job.attempt,
            job.max_attempts,
            job.deferrals,
            job.lease_token,
            job.lease_expires_at,
            Raw(job.payload),
            BriefTrace(job.traceparent or UNSET, job.tracestate or UNSET),
            job.deadline or UNSET,
            job.parent_id or UNSET,
            Raw(job.metadata) if job.metadata else UNSET,
        )
        for job in jobs
    ]


def _document(shape: type[Shape], job: JobSummary, now: datetime, **more: Any) -> Shape:
    document = shape(
        job_id=job.id,
        kind=job.kind,
        queue=job.queue,
        # A row has no state but these; to look it up would cost more than it tells.
        state=cast(State, job.state),
        reason=job.reason,
        priority=job.priority,
        model=job.model,
        error=_raw(shown_error(job.error)),
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        deferrals=job.deferrals,
        progress=_raw(job.progress),
        created_at=job.created_at,
        # A sleeping target is waited for, however soon it is asked again: there is no moment to name.
        run_at=None if job.reason == TARGET_ASLEEP or job.run_at == INFINITY else job.run_at,
        started_at=job.started_at,
        completed_at=job.completed_at,
        updated_at=job.updated_at,
        deadline=job.deadline,
        worker=job.worker,
        target=job.runs_on or job.target,
        lease_expires_at=job.lease_expires_at,
        concurrency_key=job.concurrency_key and unscoped(job.tenant, job.concurrency_key),
        parent_id=job.parent_id,
        metadata=Raw(job.metadata) if job.metadata else _NOTHING,
        trace=Trace(request_id=job.request_id, traceparent=job.traceparent, tracestate=job.tracestate),
        timings=_timings(job, now),
        seq=job.seq,
        usage=_raw(job.usage),
        **more,
    )
    if isinstance(job, Job):
        document.payload = Raw(job.payload)
        document.result = _raw(job.result)
        document.artifacts = []
        if job.result is not None or job.stored_artifacts is not None:
            found = artifact_list(job.id, job.kind, job.result, job.stored_artifacts)
            document.artifacts = [Artifact(**each) for each in found]
    return document


def _raw(text: str | None) -> Raw:
    return _NULL if text is None else Raw(text)


def _timings(job: JobSummary, now: datetime) -> Timings:
    """Seconds spent in each phase, the current one included."""
    queued, loading, working = job.queued_seconds, job.loading_seconds, job.working_seconds
    if job.state in LIVE:
        current = max(0.0, (now - job.entered_at).total_seconds())
        if job.state == "queued":
            queued += current
        elif job.state == "loading":
            loading += current
        else:
            working += current
    return Timings(
        queued_seconds=round(queued, 6), loading_seconds=round(loading, 6), working_seconds=round(working, 6)
    )
