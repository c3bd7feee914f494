"""Artifacts: a worker puts them with its lease token, anybody who may read the job gets them, in ranges."""

import contextlib
import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header
from prometheus_client import Counter
from pydantic import AfterValidator
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from app.api.job_documents import Artifact
from app.api.job_parameters import JobIdInPath
from app.api.jobs import existing_job
from app.api.parameters import Caller, NameInPath, Server, Tenant
from app.api.problems import problem_response
from app.api.routes import ETAG, Answer, AnswerHeader, Content, Reply, Routes
from app.api.services import Services
from app.errors import (
    ForemanError,
    InvalidRequest,
    LeaseLost,
    NotFound,
    RangeNotSatisfiable,
    RateLimited,
    Unavailable,
)
from app.identity.scopes import Scope
from app.jobs.artifacts import COMPLETION, INLINE_LIMIT, RESULT, artifact, completion, completion_type
from app.jobs.submission import invalid, is_name
from app.store import artifacts as store
from app.store.artifacts import NewArtifact
from app.store.changes import Changes
from app.store.job import Job
from app.telemetry import ARTIFACT_BYTES

routes = Routes("artifacts")

DEFAULT_TYPE = "application/octet-stream"
MAX_TYPE_LENGTH = 255
_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+\s*(;[\x20-\x7e]*)?\Z")
_TEXT = re.compile(
    r"text/|application/(json|xml|yaml|x-ndjson|[a-z0-9.+-]+\+(json|xml|yaml))\b", re.IGNORECASE
)
_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*\Z", re.IGNORECASE)

_TAKEN_IN = ARTIFACT_BYTES.labels("in")
_GIVEN_OUT = ARTIFACT_BYTES.labels("out")


def _name(name: str) -> str:
    if not is_name(name):
        raise invalid(
            "name", "must have 1 to 128 letters, digits and . _ : -, and begin with one of the first two"
        )
    return name


def _content_type(given: str) -> str:
    given = given.strip()
    if len(given) > MAX_TYPE_LENGTH or not _TYPE.match(given):
        raise invalid("Content-Type", "is not a media type")
    return given


@routes.put(
    "/jobs/{job_id}/artifacts/{name}",
    Scope.JOBS_WORK,
    "Add an artifact to a running job",
    {
        201: Reply("Added", Artifact, (ETAG,)),
        200: Reply("Replaced the one of that name", Artifact, (ETAG,)),
    },
    errors=(404, 408, 409),
    request=Content(bytes, "*/*"),
)
async def put(
    request: Request,
    server: Server,
    caller: Caller,
    job_id: JobIdInPath,
    name: Annotated[NameInPath, AfterValidator(_name)],
    # Not in the query as well: what stands in a URL is written down by every proxy.
    given: Annotated[str, Header(alias="X-Foreman-Lease-Token", description="The lease token of the claim.")],
    # Said by the body's description already.
    content_type: Annotated[
        str, AfterValidator(_content_type), Header(include_in_schema=False)
    ] = DEFAULT_TYPE,
) -> Answer[Artifact]:
    token = caller.lease_token(job_id, _lease_token(given))
    held = await store.holds_lease(server.database, job_id, caller.tenant, token)
    if held is None:
        raise NotFound("There is no such job.")
    if not held:
        raise LeaseLost()
    taken = await _take_in(server, request, NewArtifact(job_id, name, content_type, 0, ""))
    changes = await _make_visible(server, taken, token)
    _TAKEN_IN.inc(taken.size)
    server.hub.announce(changes)
    document = Artifact(**artifact(job_id, name, content_type, taken.size, taken.content))
    return Answer(document, 201 if changes.answers[0] else 200, {"etag": taken.etag})


def _lease_token(given: str) -> str:
    if not given:
        raise invalid("X-Foreman-Lease-Token", "must not be empty")
    if "\0" in given:
        raise LeaseLost()
    return given


class _Body:
    """A request's body as it comes in, counted and hashed on its way."""

    def __init__(self, request: Request) -> None:
        self._receive = request.receive
        self._digest = hashlib.sha256()
        self.size = 0
        self.complete = False
        self.problem: ForemanError | None = None

    async def read(self, at_most: int) -> bytes:
        """Everything, or a little more than `at_most` if there is more."""
        pieces = bytearray()
        while not self.complete and len(pieces) <= at_most:
            pieces += await self._next()
        return bytes(pieces)

    async def rest(self, first: bytes) -> AsyncIterator[bytes]:
        yield first
        while not self.complete:
            yield await self._next()

    async def _next(self) -> bytes:
        try:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise InvalidRequest("The request ended before its body was complete.")
        except ForemanError as problem:
            self.problem = problem
            raise
        self.complete = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        self.size += len(chunk)
        self._digest.update(chunk)
        return chunk

    @property
    def etag(self) -> str:
        return f'"{self._digest.hexdigest()[:32]}"'


async def _take_in(services: Services, request: Request, wanted: NewArtifact) -> NewArtifact:
    """Put the bytes where they belong: small ones into the row, the others into the store."""
    body = _Body(request)
    first = await body.read(INLINE_LIMIT)
    small = body.complete and len(first) <= INLINE_LIMIT
    text = _as_text(first, wanted.content_type) if small else None
    location = None
    if not (small and services.artifacts.in_database):
        location = services.artifacts.new_location(wanted.job_id, wanted.name)
        await store.begin_upload(services.database, location)
        try:
            await services.artifacts.write(location, body.rest(first))
        except BaseException as problem:
            with contextlib.suppress(Unavailable):
                await store.abandon_upload(services.database, location)
            # The store may have wrapped what went wrong with the body.
            raise (body.problem or problem) from problem
    data = first if location is None and text is None else None
    return NewArtifact(
        wanted.job_id, wanted.name, wanted.content_type, body.size, body.etag, text, data, location
    )


def _as_text(data: bytes, content_type: str) -> str | None:
    """Shown in the job's document if it can be: text in UTF-8 and without what PostgreSQL refuses."""
    if not _TEXT.match(content_type) or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


async def _make_visible(services: Services, taken: NewArtifact, token: str) -> Changes[bool]:
    try:
        changes = await store.put(services.database, taken, token, services.settings.max_artifacts)
        if not changes.answers:
            raise LeaseLost("The lease was lost while the artifact was being uploaded.")
    except (LeaseLost, RateLimited):
        if taken.location is not None:
            await store.abandon_upload(services.database, taken.location)
        raise
    return changes


@dataclass(frozen=True, slots=True)
class Found:
    """An artifact to be given out: its bytes, or where they lie."""

    content_type: str
    size: int
    etag: str
    data: bytes | None
    location: str | None


@routes.get(
    "/jobs/{job_id}/artifacts/{name}",
    Scope.JOBS_READ,
    "Read an artifact",
    {
        200: Reply("All of it", bytes, (ETAG,), media_type="*/*"),
        206: Reply(
            "The bytes that were asked for",
            bytes,
            (ETAG, AnswerHeader("Content-Range")),
            media_type="*/*",
        ),
        304: Reply("Not changed since If-None-Match", headers=(ETAG,)),
    },
    errors=(404, 416),
    also=("HEAD",),
)
async def get(
    server: Server,
    tenant: Tenant,
    job_id: JobIdInPath,
    name: NameInPath,
    range_: Annotated[
        str | None, Header(alias="Range", description="One range, such as `bytes=0-1023` or `bytes=-500`.")
    ] = None,
    if_range: Annotated[
        str | None,
        Header(alias="If-Range", description="An ETag: the range only if the artifact is still that one."),
    ] = None,
    if_none_match: Annotated[
        str | None,
        Header(alias="If-None-Match", description="An ETag; answers 304 when the artifact has not changed."),
    ] = None,
) -> Response:
    found = await _find(server, job_id, name, tenant)
    headers = {
        "etag": found.etag,
        "accept-ranges": "bytes",
        "content-type": found.content_type,
        # What a worker wrote is not ours: never run as a page of this server.
        "cache-control": "private, no-cache",
    }
    if found.etag in _etags(if_none_match or ""):
        return Response(status_code=304, headers=headers)
    try:
        wanted = parse_range(range_ if if_range in {None, found.etag} else None, found.size)
    except RangeNotSatisfiable as problem:
        refusal = problem_response(problem)
        refusal.headers["content-range"] = f"bytes */{found.size}"
        return refusal
    headers["content-length"] = str(wanted.length)
    if wanted.status == 206:
        headers["content-range"] = f"bytes {wanted.start}-{wanted.start + wanted.length - 1}/{found.size}"
    return Given(server, found, wanted, headers)


async def _find(services: Services, job_id: str, name: str, tenant: str) -> Found:
    if not is_name(name):
        raise NotFound("There is no such artifact.")
    row = await store.get(services.database, job_id, name, tenant)
    if row is not None:
        data = row.data if row.content is None else row.content.encode()
        return Found(row.content_type, row.size, row.etag or f'"{row.size}"', data, row.location)
    text, content_type = _of_result(await existing_job(services, job_id, tenant), name)
    if text is None:
        raise NotFound("There is no such artifact.")
    data = text.encode()
    etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    return Found(content_type, len(data), etag, data, None)


def _of_result(job: Job, name: str) -> tuple[str | None, str]:
    """What can be had by a name although nobody put it there: the answer of an LLM job, the result of any."""
    if name == COMPLETION:
        return completion(job.kind, job.result), completion_type(job.kind)
    return job.result if name == RESULT else None, "application/json"


def _etags(given: str) -> set[str]:
    return {each.strip().removeprefix("W/") for each in given.split(",")}


@dataclass(frozen=True, slots=True)
class Slice:
    """What of an artifact is sent: all of it, or one range of bytes (RFC 9110)."""

    status: int
    start: int
    length: int


def parse_range(given: str | None, size: int) -> Slice:
    """One range, or the whole for a header that says anything else.

    Raises RangeNotSatisfiable for a range behind the end.
    """
    whole = Slice(200, 0, size)
    found = _RANGE.match((given or "").strip())
    if found is None:
        return whole
    first, last = found.groups()
    if not first and not last:
        return whole
    if not first:
        # The last so many bytes.
        length = min(int(last), size)
        start, end = size - length, size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < int(first):
            return whole
    if start >= end:
        raise RangeNotSatisfiable(f"The artifact has {size} bytes.")
    return Slice(206, start, end - start)


class Given(Response):
    """An artifact on its way out, piece by piece: none of it is held in memory as a whole."""

    def __init__(
        self,
        services: Services,
        found: Found,
        wanted: Slice,
        headers: dict[str, str],
        *,
        counted: Counter = _GIVEN_OUT,
    ) -> None:
        self._services = services
        self._counted = counted
        self._found = found
        self._wanted = wanted
        self.status_code = wanted.status
        self.background = None
        self.raw_headers = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope["method"] != "HEAD":
            async for piece in self._pieces():
                self._counted.inc(len(piece))
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _pieces(self) -> AsyncIterator[bytes]:
        start, length = self._wanted.start, self._wanted.length
        if self._found.location is None:
            yield (self._found.data or b"")[start : start + length]
            return
        async for piece in self._services.artifacts.read(self._found.location, start, length):
            yield piece
