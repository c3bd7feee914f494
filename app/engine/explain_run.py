"""What a job that runs is at; and what is told of one in whatever state it is."""

from collections.abc import Sequence
from datetime import timedelta

from msgspec import UNSET

from app.jobs.explanation import (
    Code,
    OtherJob,
    Reason,
    clock,
    lasting,
    quoted,
    sentence,
    soon,
)
from app.jobs.queue_settings import QueueSettings
from app.jobs.states import State
from app.store.explain import ExplainedJob, RelatedJob

# From here on its deadline is what counts.
NEAR_SECONDS = 60.0
# How many other jobs are named, and how many counted.
MAX_NAMED, MAX_COUNTED = 20, 1000


def other_jobs(found: Sequence[RelatedJob]) -> list[OtherJob]:
    return [
        OtherJob(
            job_id=each.id,
            state=each.state,
            since=each.entered_at if each.entered_at.tzinfo else None,
            worker=each.worker if each.lease_expires_at else None,
            lease_expires_at=each.lease_expires_at
            if each.lease_expires_at and each.lease_expires_at.tzinfo
            else None,
        )
        for each in found[:MAX_NAMED]
    ]


def attempt_of(job: ExplainedJob) -> str:
    return f"attempt {job.attempt} of {job.max_attempts}"


def deadline_reasons(job: ExplainedJob) -> list[Reason]:
    """Of a job that has not ended."""
    if job.deadline is None:
        return []
    left = (job.deadline - job.now).total_seconds()
    if left <= 0:
        words = "its deadline has passed, and it is about to expire"
    elif left < NEAR_SECONDS:
        words = f"its deadline is near: it expires {soon(job.deadline, job.now)}"
    else:
        words = f"it expires {soon(job.deadline, job.now)}, unless it has ended by then"
    return [Reason(code=Code.DEADLINE, message=sentence(words), until=job.deadline)]


def cancel_reasons(job: ExplainedJob, grace_seconds: float) -> list[Reason]:
    """Of one that was asked to stop, and has not done so yet."""
    if job.cancel_requested_at is None:
        return []
    until = job.cancel_requested_at + timedelta(seconds=grace_seconds)
    said = f"({quoted(job.cancel_reason)})" if job.cancel_reason else ""
    return [
        Reason(
            code=Code.CANCEL_REQUESTED,
            message=sentence(
                f"it was asked to stop at {clock(job.cancel_requested_at, job.now)}", said,
                f"and is cancelled {soon(until, job.now)} at the latest",
            ),
            since=job.cancel_requested_at,
            until=until,
            reason=job.cancel_reason or UNSET,
        )
    ]  # fmt: skip


# -- it runs -----------------------------------------------------------------------------------------


def running_reasons(job: ExplainedJob, rules: QueueSettings, grace_seconds: float) -> list[Reason]:
    reasons = [_at_work(job)]
    if job.lease_expires_at is not None and job.lease_expires_at <= job.now:
        reasons.append(_lease_expired(job, rules))
    reasons += cancel_reasons(job, grace_seconds)
    if job.attempt_expires_at is not None:
        words = f"this attempt has to end {soon(job.attempt_expires_at, job.now)}"
        reasons.append(Reason(code=Code.MAX_DURATION, message=sentence(words), until=job.attempt_expires_at))
    return reasons + deadline_reasons(job)


def _at_work(job: ExplainedJob) -> Reason:
    verb = f"loading {job.model}" if job.state == State.LOADING and job.model else job.state
    words = [verb, f"for {lasting((job.now - job.entered_at).total_seconds())}"]
    if job.runs_on or job.worker:
        words.append(f"on {job.runs_on or job.worker}")
    return Reason(
        code=Code(job.state),
        message=sentence(f"{' '.join(words)}, {attempt_of(job)}"),
        since=job.entered_at,
        worker=job.worker or UNSET,
        targets=[job.runs_on] if job.runs_on else UNSET,
        model=job.model or UNSET,
        lease_expires_at=job.lease_expires_at or UNSET,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
    )


def _lease_expired(job: ExplainedJob, rules: QueueSettings) -> Reason:
    if job.concurrency_key is not None and rules.key is not None:
        fate = (
            "with the stale_policy block it keeps its key until its worker comes back or it is cancelled"
            if rules.stale_policy == "block"
            else "it is about to become stale"
        )
    elif job.attempt >= job.max_attempts:
        fate = "it is about to fail, for this was its last attempt"
    else:
        fate = "it is about to be queued again"
    at = job.lease_expires_at or job.now
    return Reason(
        code=Code.LEASE_EXPIRED,
        message=sentence(f"its worker has let its lease run out at {clock(at, job.now)}: {fate}"),
        since=at,
        worker=job.worker or UNSET,
    )
