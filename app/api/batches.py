"""/v1/batches: thousands of calls in one file, each of them a job, as OpenAI's clients know it.

A batch is a job of kind `batch`, and its lines are that job's children; app/engine/batch_runner.py runs it.
"""

from datetime import datetime
from functools import partial
from typing import Annotated, Literal

import msgspec
import orjson
from fastapi import Depends, Path, Query
from msgspec import Meta
from starlette.requests import Request

from app.api import admission
from app.api.files import STORED_ERRORS
from app.api.job_parameters import idempotency_key, trace_of
from app.api.jobs import cancel_job, fingerprint
from app.api.parameters import Caller, JsonBody, KnownFilters, Server, Tenant
from app.api.routes import Reply, Routes
from app.api.services import Services
from app.api.webhook_headers import webhook_of, webhook_parameters
from app.errors import InvalidRequest, NotFound
from app.identity.scopes import Scope
from app.jobs.batch_lines import ENDPOINTS, window_seconds
from app.jobs.file_ids import BATCH, FILE, own_id, wire_id
from app.jobs.ids import new_id
from app.jobs.lanes import BATCH as KIND
from app.jobs.lanes import BATCH_LANE, BATCHES
from app.jobs.states import LIVE, State
from app.jobs.submission import TEN_YEARS, Metadata, NewJob, invalid, shown
from app.store import batches as store
from app.store.batches import Batch
from app.store.database import Runner, in_transaction
from app.store.enqueue import Enqueued
from app.store.idempotency import Receipt, Submission

routes = Routes("batches", STORED_ERRORS)

MAX_PAGE = 100
LAST = "~"
# A run that loses its lease has spent an attempt: a batch outlives more restarts than a job does.
MAX_ATTEMPTS = 100_000
PURPOSE = "batch"


class OutputExpiry(msgspec.Struct, forbid_unknown_fields=True):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=1, le=int(TEN_YEARS))]


class NewBatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    input_file_id: str
    endpoint: Annotated[str, Meta(description="What each line asks for, such as /v1/chat/completions.")]
    completion_window: Annotated[str, Meta(description="How long it may take: 24h, 90s, 1d12h.")]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None

    def check(self) -> None:
        if self.endpoint not in ENDPOINTS:
            raise invalid("endpoint", f"must be one of {', '.join(ENDPOINTS)}")
        if window_seconds(self.completion_window) is None:
            raise invalid("completion_window", "must be a duration such as 24h, 30m, 90s, 7d or 1h30m")
        if own_id(self.input_file_id, FILE) is None:
            raise _no_input(self.input_file_id)


class RequestCounts(msgspec.Struct):
    total: int
    completed: int
    failed: int


class BatchObject(msgspec.Struct, kw_only=True):
    """A batch, as OpenAI describes it."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: Annotated[msgspec.Raw, Meta(extra_json_schema={"type": ["object", "null"]})]
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: Annotated[msgspec.Raw, Meta(extra_json_schema={"type": ["object", "null"]})]


class BatchPage(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


BatchId = Annotated[str, Path(description="As in `batch_01J…`.")]


def _no_input(file_id: str) -> InvalidRequest:
    return invalid("input_file_id", f"there is no file {shown(file_id)} for batches")


@routes.post(
    "/v1/batches",
    Scope.JOBS_WRITE,
    "Begin a batch",
    Reply("The batch, whose lines are being checked", BatchObject),
    errors=(400, 413, 503),
)
async def create(
    request: Request,
    server: Server,
    caller: Caller,
    wanted: Annotated[NewBatch, Depends(JsonBody(NewBatch))],
    _webhook: Annotated[None, Depends(webhook_parameters)],
) -> BatchObject:
    trace = trace_of(request)
    job = NewJob(
        new_id(),
        caller.tenant,
        BATCHES,
        BATCH_LANE,
        KIND,
        msgspec.json.encode(wanted).decode(),
        deadline_seconds=window_seconds(wanted.completion_window),
        max_attempts=MAX_ATTEMPTS,
        metadata=orjson.dumps(wanted.metadata).decode() if wanted.metadata else None,
        request_id=trace.request_id,
        traceparent=trace.traceparent,
        tracestate=trace.tracestate,
    )
    webhook_of(request, server.settings).put_on(job)
    key = idempotency_key(request)
    asked = None if key is None else fingerprint(request.scope["path"], job.payload.encode())
    submission = Submission([job], caller.tenant, key, asked)
    receipt = await admission.submit(server, caller, submission, by=partial(_enter, server, wanted))
    return await _document(server, receipt.job_ids[0], caller.tenant)


async def _enter(server: Services, wanted: NewBatch, submission: Submission) -> Receipt:
    """The job and what makes it a batch, in one commit, while its input is held."""
    [job] = submission.jobs
    intake, file_id = server.intake, own_id(wanted.input_file_id, FILE) or ""
    intake.begin_trace(submission)
    await intake.check(submission)

    async def steps(runner: Runner) -> Enqueued:
        purpose = await store.hold_input(runner, file_id, job.tenant)
        enqueued = await intake.managed.enqueue_in(runner, [submission])
        receipt = enqueued.answers[0]
        if isinstance(receipt, Exception):
            raise receipt
        if not receipt.replayed:
            if purpose != PURPOSE:
                raise _no_input(wanted.input_file_id)
            endpoint, window = wanted.endpoint, wanted.completion_window
            await store.add(runner, job.id, job.tenant, file_id, endpoint, window)
        return enqueued

    await intake.know_queues([submission])
    enqueued = await in_transaction(server.database, steps)
    intake.announce([submission], enqueued)
    receipt = enqueued.answers[0]
    if isinstance(receipt, Exception):
        raise receipt
    return receipt


@routes.get(
    "/v1/batches",
    Scope.JOBS_READ,
    "List batches",
    Reply("The batches, newest first", BatchPage),
    errors=(400, 503),
)
async def listed(
    server: Server,
    tenant: Tenant,
    _known: Annotated[None, Depends(KnownFilters())],
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
    after: Annotated[str | None, Query(description="The id of the last one of the page before.")] = None,
) -> BatchPage:
    begin = LAST if after is None else own_id(after, BATCH)
    if begin is None:
        raise invalid("after", "is not the id of a batch")
    found = await store.page(server.database, tenant, begin, limit + 1)
    data = [await _described(server, batch) for batch in found[:limit]]
    return BatchPage(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(found) > limit,
    )


@routes.get(
    "/v1/batches/{batch_id}", Scope.JOBS_READ, "One batch", Reply("The batch", BatchObject), errors=(404, 503)
)
async def get(server: Server, tenant: Tenant, batch_id: BatchId) -> BatchObject:
    return await _document(server, own_id(batch_id, BATCH), tenant)


@routes.post(
    "/v1/batches/{batch_id}/cancel",
    Scope.JOBS_WRITE,
    "Cancel a batch",
    Reply("The batch; one that has ended is as it was", BatchObject),
    errors=(404, 503),
)
async def cancel(server: Server, tenant: Tenant, batch_id: BatchId) -> BatchObject:
    job_id = own_id(batch_id, BATCH)
    # So that no other job is cancelled by this way.
    await _document(server, job_id, tenant)
    # Its lines may be many: the keeper of batches sees to those that are left.
    await cancel_job(server, job_id or "", tenant, None, at_once=False)
    return await _document(server, job_id, tenant)


async def _document(server: Services, job_id: str | None, tenant: str) -> BatchObject:
    batch = None if job_id is None else await store.get(server.database, job_id, tenant)
    if batch is None:
        raise NotFound("No such batch.")
    return await _described(server, batch)


async def _described(server: Services, batch: Batch) -> BatchObject:
    # Its lines may have been refused, and its job not yet have been told.
    status, ended_at = status_of(batch), _seconds(batch.completed_at or batch.finalized_at)
    completed, failed = batch.completed, batch.failed
    if completed is None or failed is None:
        counts = await store.count(server.database, batch.job_id)
        completed, failed = counts.completed, counts.failed
    return BatchObject(
        id=f"{BATCH}{batch.job_id}",
        endpoint=batch.endpoint,
        errors=_errors(batch, status),
        input_file_id=f"{FILE}{batch.input_file_id}",
        completion_window=batch.completion_window,
        status=status,
        output_file_id=wire_id(batch.output_file_id),
        error_file_id=wire_id(batch.error_file_id),
        created_at=int(batch.created_at.timestamp()),
        in_progress_at=_seconds(batch.in_progress_at),
        expires_at=_seconds(batch.deadline),
        finalizing_at=_seconds(batch.finalizing_at),
        completed_at=ended_at if status == "completed" else None,
        failed_at=ended_at if status == "failed" else None,
        expired_at=ended_at if status == "expired" else None,
        cancelling_at=_seconds(batch.cancel_requested_at),
        cancelled_at=ended_at if status == "cancelled" else None,
        request_counts=RequestCounts(batch.total or 0, completed, failed),
        metadata=_raw(batch.metadata),
    )


_ENDED = {State.DONE: "completed", State.CANCELLED: "cancelled", State.EXPIRED: "expired"}


def status_of(batch: Batch) -> str:
    """OpenAI's word for where a batch stands."""
    if batch.errors is not None:
        return "failed"
    if batch.state not in LIVE and batch.finalized_at is not None:
        return _ENDED.get(State(batch.state), "failed")
    if batch.cancel_requested_at is not None:
        return "cancelling"
    if batch.state not in LIVE or batch.finalizing_at is not None:
        return "finalizing"
    return "validating" if batch.in_progress_at is None else "in_progress"


def _errors(batch: Batch, status: str) -> msgspec.Raw:
    if batch.errors is not None or status != "failed":
        return _raw(batch.errors)
    said = orjson.loads(batch.error or "{}")
    error = {"code": said.get("code"), "message": said.get("message"), "line": None, "param": None}
    return msgspec.Raw(orjson.dumps({"object": "list", "data": [error]}))


def _raw(text: str | None) -> msgspec.Raw:
    return msgspec.Raw((text or "null").encode())


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
