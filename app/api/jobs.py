"""/jobs: submit, read, list, cancel, revive, delete."""

import base64
import binascii
import hashlib
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.api import describe
from app.api.batches import parse_batch
from app.api.body import release_body
from app.api.direct import direct_router, json_response, read_as, read_body
from app.api.headers import idempotency_key, not_modified, prefer_wait, query_wait, trace_of
from app.api.house import House, house_of, tenant_of
from app.api.render import dump, job_document
from app.errors import InvalidTransition, NotFound
from app.jobs import verbatim
from app.jobs.ids import is_id
from app.jobs.states import TERMINAL, State
from app.jobs.submission import NewJob, explain, invalid, parse_job
from app.loops.off_loop import off_loop
from app.store import read, steer
from app.store.idempotency import Submission
from app.store.job import Job
from app.store.read import Filter

router = direct_router("jobs")

MAX_BATCH = 1000
MAX_LIMIT = 200
DEFAULT_LIMIT = 50
MAX_REASON = 500


@router.post("/jobs", status_code=202, **describe.SUBMIT)
async def submit(request: Request) -> Response:
    house = house_of(request)
    body = await read_body(request)
    tenant = tenant_of(request)
    job = await off_loop(len(body), parse_job, body, tenant, house.settings.max_json_depth)
    receipt = await house.intake.submit(await _submission(request, [job], body, tenant))
    job_id = receipt.job_ids[0]
    # Whoever waits now waits without it.
    del body, job
    release_body(request)
    headers = {"location": f"/jobs/{job_id}"}
    if receipt.replayed:
        headers["idempotency-replayed"] = "true"
    wait = prefer_wait(request)
    if wait is not None:
        finished = await _wait_until_terminal(house, job_id, tenant, wait)
        if finished is not None and finished.state in TERMINAL:
            headers["preference-applied"] = f"wait={wait}"
            return json_response(dump(job_document(finished)), 200, headers)
    if receipt.answers is not None:
        answer = receipt.answers[0]
        return json_response(dump(answer._asdict()), 200 if answer.outcome == "coalesced" else 202, headers)
    return json_response(
        b'{"job_id":"%b","state":"queued","outcome":"accepted"}' % job_id.encode(), 202, headers
    )


@router.post("/jobs/batch", status_code=202, **describe.SUBMIT_BATCH)
async def submit_batch(request: Request) -> Response:
    house = house_of(request)
    body = await read_body(request)
    tenant = tenant_of(request)
    jobs = await off_loop(len(body), _parse_jobs, body, tenant, house.settings.max_json_depth)
    receipt = await house.intake.submit(await _submission(request, jobs, body, tenant, batch=True))
    answers = [answer._asdict() for answer in receipt.each()]
    headers = {"idempotency-replayed": "true"} if receipt.replayed else None
    return json_response(dump({"jobs": answers}), 202, headers)


def _parse_jobs(body: bytes, tenant: str, max_depth: int) -> list[NewJob]:
    def parse(entry: bytes) -> NewJob:
        return parse_job(entry, tenant, max_depth)

    return parse_batch(body, "jobs", parse, most=MAX_BATCH, max_depth=max_depth)


async def _submission(
    request: Request, jobs: list[NewJob], body: bytes, tenant: str, *, batch: bool = False
) -> Submission:
    trace = trace_of(request)
    for job in jobs:
        job.request_id = trace.request_id
        job.traceparent = trace.traceparent
        job.tracestate = trace.tracestate
    key = idempotency_key(request)
    if key is None:
        return Submission(jobs, tenant, batch=batch)
    return Submission(jobs, tenant, key, await fingerprint_of(request, body), batch)


async def fingerprint_of(request: Request, body: bytes) -> bytes:
    """What an idempotency key was used for. The same body means something else to another route."""
    digest = hashlib.sha256(request.url.path.encode() + b"\0")
    await off_loop(len(body), digest.update, body)
    return digest.digest()


@router.get("/jobs/{job_id}", **describe.GET_JOB)
async def get_job(request: Request) -> Response:
    house = house_of(request)
    job_id = job_id_of(request)
    wait = query_wait(request)
    job = await _wait_until_terminal(house, job_id, tenant_of(request), wait)
    if job is None:
        raise NotFound("There is no such job.")
    etag = f'"{job.seq}"'
    if not_modified(request, etag):
        return Response(status_code=304, headers={"etag": etag})
    return json_response(dump(await _live_document(house, job)), 200, {"etag": etag})


async def _wait_until_terminal(house: House, job_id: str, tenant: str, seconds: float) -> Job | None:
    """The job as soon as it has ended, or as it is when the time is over. Holds no connection meanwhile."""
    if seconds <= 0:
        return await read.get_job(house.database, job_id, tenant)
    ends = time.monotonic() + seconds
    with house.hub.watch(job_id) as watch:
        while True:
            job = await read.get_job(house.database, job_id, tenant)
            left = ends - time.monotonic()
            if job is None or job.state in TERMINAL or left <= 0 or house.hub.closing:
                return job
            await watch.changed(job.seq, left)


@router.get("/jobs", **describe.LIST_JOBS)
async def list_jobs(request: Request) -> Response:
    house = house_of(request)
    wanted, limit = filter_of(request)
    return await page(request, house, wanted, limit, "jobs")


async def page(request: Request, house: House, wanted: Filter, limit: int, name: str) -> Response:
    """One page of jobs under this name, and where the next one is."""
    found = await read.list_jobs(house.database, wanted, tenant_of(request), limit)
    cursor = None if found.next_before is None else _encode_cursor(found.next_before)
    headers = {}
    if cursor:
        following = request.url.include_query_params(cursor=cursor)
        headers["link"] = f'<{following.path}?{following.query}>; rel="next"'
    unwanted = await house.claimers.missing(found.jobs)
    documents = [job_document(job, unwanted_since=unwanted.get(job.id)) for job in found.jobs]
    return json_response(dump({name: documents, "next_cursor": cursor}), 200, headers)


FILTERS = frozenset({"state", "queue", "kind", "model", "since", "until", "limit", "cursor"})


def filter_of(request: Request) -> tuple[Filter, int]:
    query = request.query_params
    for name in query:
        if name not in FILTERS and not name.startswith("metadata."):
            raise invalid(name, "is not a known filter")
    states = [part for value in query.getlist("state") for part in value.split(",")]
    for state in states:
        if state not in set(State):
            raise invalid("state", f"must be one of {', '.join(State)}")
    for name, value in query.multi_items():
        if "\0" in value or "\0" in name:
            raise invalid(name.replace("\0", ""), "has a NUL character")
    cursor = query.get("cursor")
    wanted = Filter(
        states=states,
        queue=query.get("queue"),
        kind=query.get("kind"),
        model=query.get("model"),
        since=moment_of("since", query.get("since")),
        until=moment_of("until", query.get("until")),
        metadata={
            name.removeprefix("metadata."): query[name] for name in query if name.startswith("metadata.")
        },
        before=_decode_cursor(cursor) if cursor is not None else None,
    )
    return wanted, limit_of(query.get("limit"))


def limit_of(given: str | None) -> int:
    if given is None:
        return DEFAULT_LIMIT
    if not given.isascii() or not given.isdigit() or len(given) > 6 or not 1 <= int(given) <= MAX_LIMIT:
        raise invalid("limit", f"must be a number from 1 to {MAX_LIMIT}")
    return int(given)


def moment_of(field: str, given: str | None) -> datetime | None:
    if given is None:
        return None
    try:
        # A '+' in a query arrives as a blank unless it was escaped; both are meant.
        moment = datetime.fromisoformat(
            given.replace(" ", "+", 1) if given.count(" ") == 1 and "T" in given else given
        )
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as problem:
        raise invalid(field, "must be an RFC 3339 timestamp") from problem


def _encode_cursor(job_id: str) -> str:
    return base64.urlsafe_b64encode(b"1:" + job_id.encode()).decode().rstrip("=")


def _decode_cursor(cursor: str) -> str:
    try:
        version, _, job_id = (
            base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition(":")
        )
    except (binascii.Error, ValueError) as problem:
        raise invalid("cursor", "is not a cursor of ours") from problem
    if version != "1" or not is_id(job_id):
        raise invalid("cursor", "is not a cursor of ours")
    return job_id


class CancelRequest(msgspec.Struct, forbid_unknown_fields=True):
    reason: str | None = None


@router.post("/jobs/{job_id}/cancel", **describe.CANCEL)
async def cancel(request: Request) -> Response:
    house = house_of(request)
    job_id = job_id_of(request)
    reason = await read_as(request, _cancel_reason, house.settings.max_json_depth)
    cancelled = await cancel_job(house, job_id, tenant_of(request), reason)
    if not cancelled:
        raise NotFound("There is no such job.")
    status = 202 if cancelled[0].requested else 200
    return json_response(await document_of(house, job_id, tenant_of(request)), status)


async def cancel_job(house: House, job_id: str, tenant: str, reason: str | None) -> list[steer.Cancel]:
    """Cancel a job and its children; about the job itself first, nothing when there is no such job."""
    changes = await steer.cancel(house.database, [job_id], tenant, reason)
    house.hub.announce(changes)
    return changes.answers


def _cancel_reason(body: bytes, max_depth: int) -> str | None:
    if not body.strip():
        return None
    parts = verbatim.members(body, max_depth)
    try:
        reason = msgspec.json.decode(body, type=CancelRequest).reason
    except msgspec.ValidationError as problem:
        unknown = sorted(parts.keys() - {"reason"})
        raise (
            invalid(unknown[0], "is not a known field") if unknown else explain(parts, CancelRequest)
        ) from problem
    if reason is not None and (len(reason) > MAX_REASON or "\0" in reason):
        raise invalid("reason", f"must have at most {MAX_REASON} characters")
    return reason


@router.post("/jobs/{job_id}/retry", **describe.RETRY)
async def retry(request: Request) -> Response:
    house = house_of(request)
    job_id = job_id_of(request)
    tenant = tenant_of(request)
    changes = await steer.revive(house.database, [job_id], tenant)
    if not changes.answers:
        job = await read.get_job(house.database, job_id, tenant)
        if job is None:
            raise NotFound("There is no such job.")
        raise InvalidTransition(
            f"Only a failed job can be retried; this one is {job.state}.", state=job.state
        )
    # Read before anybody is told: the answer shows the job as it was revived, not as a quick worker made it.
    document = await document_of(house, job_id, tenant)
    house.hub.announce(changes)
    return json_response(document)


@router.delete("/jobs/{job_id}", status_code=204, **describe.DELETE)
async def delete(request: Request) -> Response:
    house = house_of(request)
    job_id = job_id_of(request)
    tenant = tenant_of(request)
    changes = await steer.delete(house.database, [job_id], tenant)
    if changes.answers:
        house.hub.announce(changes)
        return Response(status_code=204)
    job = await read.get_job(house.database, job_id, tenant)
    if job is None:
        raise NotFound("There is no such job.")
    raise InvalidTransition(
        f"Only a job that has ended can be deleted; this one is {job.state}.", state=job.state
    )


def job_id_of(request: Request) -> str:
    job_id: str = request.path_params["job_id"]
    if not is_id(job_id):
        raise NotFound("There is no such job.")
    return job_id


async def document_of(house: House, job_id: str, tenant: str) -> bytes:
    job = await read.get_job(house.database, job_id, tenant)
    if job is None:
        raise NotFound("There is no such job.")
    return dump(await _live_document(house, job))


async def _live_document(house: House, job: Job) -> dict[str, Any]:
    """The job with what is found out while it is read; none of that moves its `seq`, and so its ETag."""
    position = await read.queue_position(house.database, job)
    unwanted = await house.claimers.missing([job])
    return job_document(job, queue_position=position, unwanted_since=unwanted.get(job.id))
