"""/jobs: submit, read, explain, list, cancel, revive, delete."""

import hashlib
import time
from collections.abc import Sequence
from typing import Annotated, Literal, cast

import msgspec
from fastapi import Depends, Header
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from app.api import admission
from app.api.direct import encode, json_response, read_body, release_body
from app.api.job_documents import Accepted, AcceptedJobs, JobPage, Outcome
from app.api.job_documents import Job as Document
from app.api.job_parameters import (
    DEFAULT_LIMIT,
    MAX_KEY_LENGTH,
    JobFilter,
    JobIdInPath,
    Limit,
    States,
    Wait,
    encode_cursor,
    idempotency_key,
    next_link,
    not_modified,
    prefer_wait,
    trace_of,
    waiting,
)
from app.api.open_streams import long_poll
from app.api.parameters import Caller, JsonBody, Server, Tenant
from app.api.render import job_document
from app.api.routes import ETAG, LINK, LOCATION, Answer, AnswerHeader, AnyOf, Content, Reply, Routes
from app.api.services import Services, account_of, services_of
from app.errors import InvalidTransition, NotFound
from app.identity.scopes import Scope
from app.jobs.explanation import Explanation
from app.jobs.shapes import parse_batch
from app.jobs.states import TERMINAL, State
from app.jobs.submission import NO_NUL, JobRequest, NewJob, parse_job, parse_plain_jobs
from app.loops.off_loop import off_loop
from app.store import control, idempotency, read
from app.store.changes import Changes
from app.store.idempotency import Receipt, Submission
from app.store.job import Job, JobSummary
from app.store.read import Filter

routes = Routes("jobs")

MAX_BATCH = 1000
EXAMPLE = {"model": "echo", "messages": [{"role": "user", "content": "Hello, Foreman!"}]}
REPLAYED = AnswerHeader("Idempotency-Replayed", shape=Literal["true"])

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=MAX_KEY_LENGTH,
        description="Same key and body: the first answer again.",
    ),
]
Traceparent = Annotated[str | None, Header(description="W3C trace context; made when absent.")]
Tracestate = Annotated[str | None, Header(description="W3C trace state.")]


def _of_submit(
    idempotency_key: IdempotencyKey = None,
    prefer: Annotated[
        str | None,
        Header(
            alias="Prefer",
            description="`wait=N`, N up to 300: answer 200 with the whole job if it ends in time.",
        ),
    ] = None,
    traceparent: Traceparent = None,
    tracestate: Tracestate = None,
) -> None:
    """Read in app/api/job_parameters.py."""


@routes.post(
    "/jobs",
    Scope.JOBS_WRITE,
    "Submit a job",
    {
        202: Reply("Accepted: the job is safely queued", Accepted, (LOCATION, REPLAYED)),
        200: Reply(
            "Coalesced into the job that is named; or with `Prefer: wait` the finished job",
            AnyOf((Accepted, Document)),
            (LOCATION, REPLAYED, AnswerHeader("Preference-Applied")),
        ),
    },
    errors=(404, 408, 409, 429),
    parameters=_of_submit,
    request=Content(Annotated[JobRequest, Meta(examples=[EXAMPLE])]),
    hot=True,
)
async def submit(request: Request) -> Response:
    services = services_of(request)
    body = await read_body(request)
    account = account_of(request)
    tenant = account.tenant
    receipt = await submit_body(request, body, idempotency_key(request))
    job_id = receipt.job_ids[0]
    # Whoever waits now waits without it.
    del body
    release_body(request)
    seconds = prefer_wait(request)
    # It is a wish: a caller who has too many of them is answered at once, for the job is there.
    if seconds is not None and account.may_wait:
        with long_poll(request.scope, seconds):
            finished = await wait_until_terminal(services, job_id, tenant, seconds)
        if finished is not None and finished.state in TERMINAL:
            headers = _headers_of(receipt) | {"preference-applied": f"wait={seconds}"}
            return json_response(encode(job_document(finished)), 200, headers)
    return submitted_response(receipt)


async def submit_body(request: Request, body: bytes, key: str | None) -> Receipt:
    """The job that a body describes, from whoever sent the request; with their idempotency key, if any."""
    services, account = services_of(request), account_of(request)
    job = await off_loop(len(body), parse_job, body, account.tenant, services.settings.max_json_depth)
    submission = await _submission(request, [job], body, account.tenant, key)
    return await admission.submit(services, account, submission)


def submitted_response(receipt: Receipt) -> Response:
    """What a submitted job is answered, whichever way it came (see app/server/direct_submissions.py)."""
    headers = _headers_of(receipt)
    if receipt.answers is not None:
        answer = accepted(receipt.answers[0])
        return json_response(encode(answer), 200 if answer.outcome == "coalesced" else 202, headers)
    return json_response(plain_answer(receipt.job_ids[0].encode()), 202, headers)


def plain_answer(job_id: bytes) -> bytes:
    return b'{"job_id":"%b","state":"queued","outcome":"accepted"}' % job_id


def _headers_of(receipt: Receipt) -> dict[str, str]:
    headers = {"location": f"/jobs/{receipt.job_ids[0]}"}
    if receipt.replayed:
        headers["idempotency-replayed"] = "true"
    return headers


class JobBatch(msgspec.Struct, forbid_unknown_fields=True):
    jobs: Annotated[list[JobRequest], Meta(min_length=1, max_length=MAX_BATCH)]


def _of_submit_batch(
    idempotency_key: IdempotencyKey = None,
    traceparent: Traceparent = None,
    tracestate: Tracestate = None,
) -> None:
    """Read in app/api/job_parameters.py."""


@routes.post(
    "/jobs/batch",
    Scope.JOBS_WRITE,
    f"Submit up to {MAX_BATCH} jobs in one commit",
    {202: Reply("All accepted, answers in order", AcceptedJobs, (REPLAYED,))},
    errors=(404, 408, 409, 429),
    parameters=_of_submit_batch,
    request=Content(JobBatch),
    hot=True,
)
async def submit_batch(request: Request) -> Response:
    services = services_of(request)
    body = await read_body(request)
    account = account_of(request)
    tenant = account.tenant
    jobs = await off_loop(len(body), _parse_jobs, body, tenant, services.settings.max_json_depth)
    submission = await _submission(request, jobs, body, tenant, idempotency_key(request), batch=True)
    receipt = await admission.submit(services, account, submission)
    headers = {"idempotency-replayed": "true"} if receipt.replayed else None
    return json_response(_batch_answer(receipt), 202, headers)


def _batch_answer(receipt: Receipt) -> bytes:
    if receipt.answers is not None:
        return encode(AcceptedJobs([accepted(answer) for answer in receipt.answers]))
    # The same, written by hand: nearly always all were accepted, and there are up to a thousand of them.
    return b'{"jobs":[%b]}' % b",".join([plain_answer(job_id.encode()) for job_id in receipt.job_ids])


def accepted(answer: idempotency.Answer) -> Accepted:
    # Written by us: to check them again would cost more than the rest of the answer.
    state, outcome = cast(State, answer.state), cast(Outcome, answer.outcome)
    return Accepted(job_id=answer.job_id, state=state, outcome=outcome)


def _parse_jobs(body: bytes, tenant: str, max_depth: int) -> list[NewJob]:
    def parse(entry: bytes) -> NewJob:
        return parse_job(entry, tenant, max_depth)

    def parse_all(array: msgspec.Raw) -> list[NewJob] | None:
        return parse_plain_jobs(array, tenant)

    return parse_batch(body, "jobs", parse, most=MAX_BATCH, max_depth=max_depth, parse_all=parse_all)


async def _submission(
    request: Request,
    jobs: list[NewJob],
    body: bytes,
    tenant: str,
    key: str | None,
    *,
    batch: bool = False,
) -> Submission:
    trace = trace_of(request)
    for job in jobs:
        job.request_id = trace.request_id
        job.traceparent = trace.traceparent
        job.tracestate = trace.tracestate
    if key is None:
        return Submission(jobs, tenant, batch=batch)
    # One job is the same job, whichever way its body came.
    path = "/jobs/batch" if batch else "/jobs"
    return Submission(jobs, tenant, key, await off_loop(len(body), fingerprint, path, body), batch)


async def fingerprint_of(request: Request, body: bytes) -> bytes:
    return await off_loop(len(body), fingerprint, request.scope["path"], body)


def fingerprint(path: str, body: bytes) -> bytes:
    """What an idempotency key was used for. The same body means something else to another route."""
    digest = hashlib.sha256(path.encode() + b"\0")
    digest.update(body)
    return digest.digest()


@routes.get(
    "/jobs/{job_id}",
    Scope.JOBS_READ,
    "Read a job",
    {
        200: Reply("The job", Document, (AnswerHeader("ETag", "The job's seq."),)),
        304: Reply("Not changed since If-None-Match", headers=(ETAG,)),
    },
    errors=(404, 422),
)
async def get_job(
    request: Request,
    server: Server,
    caller: Caller,
    job_id: JobIdInPath,
    wait: Annotated[Wait, waiting("the job has ended")] = 0.0,
    # Read from the request, because there may be several.
    _if_none_match: Annotated[
        str | None,
        Header(alias="If-None-Match", description="An ETag; answers 304 when the job has not changed."),
    ] = None,
) -> Answer[Document] | Response:
    with long_poll(request.scope, wait):
        job = await wait_until_terminal(server, job_id, caller.tenant, wait)
    if job is None:
        raise NotFound("There is no such job.")
    headers = {"etag": f'"{job.seq}"'}
    if not_modified(request, headers["etag"]):
        return Response(status_code=304, headers=headers)
    return Answer(await _live_document(server, job), headers=headers)


@routes.get(
    "/jobs/{job_id}/explain",
    Scope.JOBS_READ,
    "Why a job waits, what it is at, or how it went",
    "For people and programs; of several reasons the one that decides comes first",
    errors=(404,),
)
async def explain(server: Server, caller: Caller, job_id: JobIdInPath) -> Explanation:
    sees_all = Scope.ADMIN_READ in caller.scopes
    explanation = await server.explainer.explain(job_id, caller.tenant, sees_all=sees_all)
    if explanation is None:
        raise NotFound("There is no such job.")
    return explanation


async def wait_until_terminal(services: Services, job_id: str, tenant: str, seconds: float) -> Job | None:
    """The job as soon as it has ended, or as it is when the time is over. Holds no connection meanwhile."""
    if seconds <= 0:
        return await read.get_job(services.database, job_id, tenant)
    ends = time.monotonic() + seconds
    with services.hub.watch(job_id) as watch:
        while True:
            job = await read.get_job(services.database, job_id, tenant)
            left = ends - time.monotonic()
            if job is None or job.state in TERMINAL or left <= 0 or services.hub.closing:
                return job
            await watch.changed(job.seq, left)


@routes.get(
    "/jobs",
    Scope.JOBS_READ,
    "List jobs, newest first",
    Reply(
        "A page of jobs, without payload, result and artifacts. It may be short, even empty, and not be "
        "the last: go on until next_cursor is null",
        JobPage,
        (LINK,),
    ),
    errors=(422,),
)
async def list_jobs(
    request: Request,
    server: Server,
    tenant: Tenant,
    wanted: JobFilter,
    state: States,
    limit: Limit = DEFAULT_LIMIT,
) -> Answer[JobPage]:
    wanted.states = state
    jobs, cursor = await page_of(server, wanted, tenant, limit)
    return Answer(JobPage(jobs, cursor), headers=next_link(request, cursor))


async def page_of(
    services: Services, wanted: Filter, tenant: str, limit: int, *, seconds: float = read.LOOK_SECONDS
) -> tuple[list[Document], str | None]:
    """One page of jobs, looked for no longer than about so many seconds, and the cursor of the next."""
    found = await read.list_jobs(services.database, wanted, tenant, limit, seconds=seconds)
    cursor = None if found.next_before is None else encode_cursor(found.next_before)
    return await _listed(services, found.jobs), cursor


async def documents_of(services: Services, job_ids: Sequence[str], tenant: str) -> dict[str, Document]:
    """Those of the jobs that there are, as a list shows them."""
    found = await read.get_summaries(services.database, job_ids, tenant)
    return {each.job_id: each for each in await _listed(services, found)}


async def _listed(services: Services, jobs: Sequence[JobSummary]) -> list[Document]:
    unwanted = await services.claimers.missing(jobs)
    return [job_document(job, unwanted_since=unwanted.get(job.id)) for job in jobs]


class CancelRequest(msgspec.Struct, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=500, pattern=NO_NUL)] | None = None


@routes.post(
    "/jobs/{job_id}/cancel",
    Scope.JOBS_WRITE,
    "Cancel a job and its children",
    {
        200: Reply("Cancelled, or it had ended already", Document),
        202: Reply("It is running: its worker was asked to stop", Document),
    },
    errors=(404,),
)
async def cancel(
    server: Server,
    tenant: Tenant,
    job_id: JobIdInPath,
    given: Annotated[CancelRequest, Depends(JsonBody(CancelRequest, required=False))],
) -> Answer[Document]:
    cancelled = await cancel_job(server, job_id, tenant, given.reason)
    if not cancelled:
        raise NotFound("There is no such job.")
    return Answer(await read_document(server, job_id, tenant), 202 if cancelled[0].requested else 200)


async def cancel_job(
    services: Services, job_id: str, tenant: str, reason: str | None, *, at_once: bool = True
) -> list[control.Cancel]:
    """Cancel a job and its children; about the job itself first, nothing when there is no such job."""
    changes = await control.cancel(services.database, [job_id], tenant, reason, at_once=at_once)
    services.hub.announce(changes)
    return changes.answers


@routes.post(
    "/jobs/{job_id}/retry",
    Scope.JOBS_WRITE,
    "Revive a failed job under the same id",
    "Queued again",
    errors=(404, 409),
)
async def retry(server: Server, tenant: Tenant, job_id: JobIdInPath) -> Document:
    changes = await control.revive(server.database, [job_id], tenant)
    return await moved_document(server, changes, job_id, tenant, "Only a failed job can be retried")


async def moved_document(
    services: Services, changes: Changes[str], job_id: str, tenant: str, rule: str
) -> Document:
    """The job that a verb has moved; raises what says the rule if it did not."""
    if not changes.answers:
        state = (await existing_job(services, job_id, tenant)).state
        raise InvalidTransition(f"{rule}; this one is {state}.", state=state)
    # Read before anybody is told: the answer shows the job as it was moved, not as a quick worker made it.
    document = await read_document(services, job_id, tenant)
    services.hub.announce(changes)
    return document


@routes.delete(
    "/jobs/{job_id}",
    Scope.JOBS_WRITE,
    "Delete a job that has ended, and all it owns",
    {204: Reply("Gone")},
    errors=(404, 409),
)
async def delete(server: Server, tenant: Tenant, job_id: JobIdInPath) -> None:
    changes = await control.delete(server.database, [job_id], tenant)
    if not changes.answers:
        job = await existing_job(server, job_id, tenant)
        raise InvalidTransition(
            f"Only a job that has ended can be deleted; this one is {job.state}.", state=job.state
        )
    server.hub.announce(changes)


async def existing_job(services: Services, job_id: str, tenant: str) -> Job:
    job = await read.get_job(services.database, job_id, tenant)
    if job is None:
        raise NotFound("There is no such job.")
    return job


async def read_document(services: Services, job_id: str, tenant: str) -> Document:
    return await _live_document(services, await existing_job(services, job_id, tenant))


async def _live_document(services: Services, job: Job) -> Document:
    """The job with what is found out while it is read; none of that moves its `seq`, and so its ETag."""
    position = await read.queue_position(services.database, job)
    unwanted = await services.claimers.missing([job])
    return job_document(job, queue_position=position, unwanted_since=unwanted.get(job.id))
