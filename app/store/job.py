"""A job as the store hands it out, in as much of its row as the reader needs.

`error`, `progress`, `usage` and `metadata` are JSON text, payload and result verbatim what came in.
"""

from datetime import datetime

import msgspec


class JobCore(msgspec.Struct, gc=False):
    """What every reader needs: where the job belongs, what it is, how often it was tried."""

    id: str
    tenant: str
    queue: str
    lane: str
    rank: int
    kind: str
    model: str | None
    target: str | None
    attempt: int
    max_attempts: int
    deferrals: int
    deadline: datetime | None
    traceparent: str | None
    # Of its last event. That of the claim's event tells this run from every other of the job.
    seq: int


class JobSummary(JobCore, gc=False):
    """Everything but what may be large: what a list shows."""

    state: str
    reason: str | None
    priority: int
    runs_on: str | None
    error: str | None
    progress: str | None
    usage: str | None
    metadata: str | None
    created_at: datetime
    updated_at: datetime
    run_at: datetime
    ready_at: datetime | None
    entered_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    queued_seconds: float
    loading_seconds: float
    working_seconds: float
    worker: str | None
    lease_expires_at: datetime | None
    concurrency_key: str | None
    parent_id: str | None
    request_id: str | None
    tracestate: str | None
    # Whose key submitted it; None where there is no authentication, and of jobs that schedules make.
    key_id: str | None


class Job(JobSummary, gc=False):
    """The whole job. `stored_artifacts` is a JSON array, None where nobody asked for it."""

    payload: str
    result: str | None
    # What payload and result of an LLM job are written in.
    dialect: str
    stored_artifacts: str | None


class LeasedJob(Job, gc=False):
    """A job that was just claimed, for a worker over HTTP: whole, and with its lease."""

    ready_at: datetime
    worker: str
    lease_token: str
    lease_seconds: float
    webhook_url: str | None
    fair_value: str | None
    waited_seconds: float


class BriefJob(msgspec.Struct, gc=False):
    """The same for a worker that wants no more of it than it takes to run it: rows are wide."""

    id: str
    queue: str
    lane: str
    rank: int
    kind: str
    attempt: int
    max_attempts: int
    deferrals: int
    deadline: datetime | None
    metadata: str | None
    parent_id: str | None
    traceparent: str | None
    tracestate: str | None
    payload: str
    ready_at: datetime
    # Since when it is claimed.
    entered_at: datetime
    worker: str
    lease_token: str
    lease_seconds: float
    lease_expires_at: datetime
    webhook_url: str | None
    fair_value: str | None
    waited_seconds: float


class ClaimedJob(JobCore, gc=False):
    """A job that was just claimed, for a worker in this process: rows are wide, and to run it few columns do."""

    payload: str
    ready_at: datetime
    # Since when it is claimed.
    entered_at: datetime
    lease_token: str
    lease_seconds: float
    max_duration_seconds: float | None
    webhook_url: str | None
    # What the payload of an LLM job is written in, and its result will be.
    dialect: str
    fair_value: str | None
    # From when it could be claimed until it was.
    waited_seconds: float
    # The claim has started it as well.
    started: bool
    backoff_seconds: list[float] | None

    @property
    def interactive(self) -> bool:
        """Its caller waits on the line. (Twice the priority, and one for that: see `rank` of the table.)"""
        return self.rank % 2 == 1

    @property
    def is_told_at_once(self) -> bool:
        """Its caller does not want to wait until it is tried again: see `NO_BACKOFF`."""
        return self.backoff_seconds == []
