"""A job as the store hands it out, in as much of its row as the reader needs.

`error`, `progress`, `usage` and `metadata` are JSON text, payload and result verbatim what came in.
"""

from datetime import datetime

import msgspec


class JobSummary(msgspec.Struct, gc=False):
    """Everything but what may be large: what a list shows."""

    id: str
    tenant: str
    queue: str
    lane: str
    rank: int
    kind: str
    state: str
    reason: str | None
    priority: int
    model: str | None
    target: str | None
    runs_on: str | None
    error: str | None
    progress: str | None
    usage: str | None
    metadata: str | None
    attempt: int
    max_attempts: int
    deferrals: int
    created_at: datetime
    updated_at: datetime
    run_at: datetime
    ready_at: datetime | None
    entered_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    deadline: datetime | None
    queued_seconds: float
    loading_seconds: float
    working_seconds: float
    worker: str | None
    lease_expires_at: datetime | None
    concurrency_key: str | None
    parent_id: str | None
    request_id: str | None
    traceparent: str | None
    tracestate: str | None
    seq: int


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


class ClaimedJob(msgspec.Struct, gc=False):
    """A job that was just claimed, for a worker in this process: rows are wide, and to run it few columns do."""

    id: str
    tenant: str
    queue: str
    lane: str
    rank: int
    kind: str
    payload: str
    model: str | None
    target: str | None
    attempt: int
    max_attempts: int
    deferrals: int
    ready_at: datetime
    lease_token: str
    lease_seconds: float
    deadline: datetime | None
    max_duration_seconds: float | None
    traceparent: str | None
    # The seq of the claim's event: it tells this run from every other of the job.
    seq: int
    webhook_url: str | None
    # What the payload of an LLM job is written in, and its result will be.
    dialect: str
    fair_value: str | None
