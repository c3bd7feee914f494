"""Artifacts: a worker puts them with its lease token, anybody who may read the job gets them, in ranges."""

import contextlib
import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api import describe_artifacts as describe
from app.api.direct import direct_router, json_response
from app.api.house import House, house_of, tenant_of
from app.api.jobs import job_id_of
from app.api.problems import problem_response
from app.api.ranges import Slice, parse_range
from app.api.render import dump
from app.errors import ForemanError, InvalidRequest, LeaseLost, NotFound, RangeNotSatisfiable, Unavailable
from app.jobs.artifacts import COMPLETION, INLINE_LIMIT, RESULT, artifact, completion_type
from app.jobs.results import completion
from app.jobs.submission import NAME, invalid
from app.store import artifacts as store
from app.store.artifacts import NewArtifact
from app.store.changes import Changes
from app.store.job import Job
from app.store.read import get_job
from app.telemetry import ARTIFACT_BYTES

router = direct_router("artifacts")

TOKEN_HEADER = "x-foreman-lease-token"  # noqa: S105 - the name of a header
DEFAULT_TYPE = "application/octet-stream"
MAX_TYPE_LENGTH = 255
_NAME = re.compile(NAME.removesuffix("$") + r"\Z")
_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+\s*(;[\x20-\x7e]*)?\Z")
_TEXT = re.compile(
    r"text/|application/(json|xml|yaml|x-ndjson|[a-z0-9.+-]+\+(json|xml|yaml))\b", re.IGNORECASE
)

_TAKEN_IN = ARTIFACT_BYTES.labels("in")
_GIVEN_OUT = ARTIFACT_BYTES.labels("out")


@router.put("/jobs/{job_id}/artifacts/{name}", status_code=201, **describe.PUT)
async def put(request: Request) -> Response:
    house = house_of(request)
    job_id, name, content_type = job_id_of(request), _name(request), _content_type(request)
    token = _lease_token(request)
    held = await store.holds_lease(house.database, job_id, tenant_of(request), token)
    if held is None:
        raise NotFound("There is no such job.")
    if not held:
        raise LeaseLost()
    taken = await _take_in(house, request, NewArtifact(job_id, name, content_type, 0, ""))
    changes = await _make_visible(house, taken, token)
    _TAKEN_IN.inc(taken.size)
    house.hub.announce(changes)
    document = artifact(job_id, name, content_type, taken.size, taken.content)
    return json_response(dump(document), 201 if changes.answers[0] else 200, {"etag": taken.etag})


def _name(request: Request) -> str:
    name: str = request.path_params["name"]
    if not _NAME.match(name):
        raise invalid(
            "name", "must have 1 to 128 letters, digits and . _ : -, and begin with one of the first two"
        )
    return name


def _content_type(request: Request) -> str:
    given = request.headers.get("content-type", DEFAULT_TYPE).strip()
    if len(given) > MAX_TYPE_LENGTH or not _TYPE.match(given):
        raise invalid("Content-Type", "is not a media type")
    return given


def _lease_token(request: Request) -> str:
    token = request.headers.get(TOKEN_HEADER) or request.query_params.get("lease_token")
    if not token:
        raise invalid("lease_token", "is required, as X-Foreman-Lease-Token or in the query")
    if "\0" in token:
        raise LeaseLost()
    return token


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


async def _take_in(house: House, request: Request, wanted: NewArtifact) -> NewArtifact:
    """Put the bytes where they belong: small ones into the row, the others into the store."""
    body = _Body(request)
    first = await body.read(INLINE_LIMIT)
    small = body.complete and len(first) <= INLINE_LIMIT
    text = _as_text(first, wanted.content_type) if small else None
    location = None
    if not (small and house.artifacts.in_database):
        location = house.artifacts.new_location(wanted.job_id, wanted.name)
        await store.begin_upload(house.database, location)
        try:
            await house.artifacts.write(location, body.rest(first))
        except BaseException as problem:
            with contextlib.suppress(Unavailable):
                await store.abandon_upload(house.database, location)
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


async def _make_visible(house: House, taken: NewArtifact, token: str) -> Changes[bool]:
    changes = await store.put(house.database, taken, token)
    if not changes.answers:
        if taken.location is not None:
            await store.abandon_upload(house.database, taken.location)
        raise LeaseLost("The lease was lost while the artifact was being uploaded.")
    return changes


@dataclass(frozen=True, slots=True)
class Found:
    """An artifact to be given out: its bytes, or where they lie."""

    content_type: str
    size: int
    etag: str
    data: bytes | None
    location: str | None


@router.head("/jobs/{job_id}/artifacts/{name}", include_in_schema=False)
@router.get("/jobs/{job_id}/artifacts/{name}", **describe.GET)
async def get(request: Request) -> ASGIApp:
    house = house_of(request)
    found = await _find(house, job_id_of(request), request.path_params["name"], tenant_of(request))
    headers = {
        "etag": found.etag,
        "accept-ranges": "bytes",
        "content-type": found.content_type,
        # What a worker wrote is not ours: never run as a page of this server.
        "content-security-policy": "sandbox; default-src 'none'",
        "x-content-type-options": "nosniff",
        "cache-control": "private, no-cache",
    }
    if found.etag in _etags(request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    try:
        wanted = parse_range(request, found.size, found.etag)
    except RangeNotSatisfiable as problem:
        refusal = problem_response(problem)
        refusal.headers["content-range"] = f"bytes */{found.size}"
        return refusal
    headers["content-length"] = str(wanted.length)
    if wanted.status == 206:
        headers["content-range"] = f"bytes {wanted.start}-{wanted.start + wanted.length - 1}/{found.size}"
    return Given(house, found, wanted, headers)


async def _find(house: House, job_id: str, name: str, tenant: str) -> Found:
    if not _NAME.match(name):
        raise NotFound("There is no such artifact.")
    row = await store.get(house.database, job_id, name, tenant)
    if row is not None:
        data = row.data if row.content is None else row.content.encode()
        return Found(row.content_type, row.size, row.etag or f'"{row.size}"', data, row.location)
    job = await get_job(house.database, job_id, tenant)
    if job is None:
        raise NotFound("There is no such job.")
    text, content_type = _of_result(job, name)
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


class Given:
    """An artifact on its way out, piece by piece: none of it is held in memory as a whole."""

    def __init__(self, house: House, found: Found, wanted: Slice, headers: dict[str, str]) -> None:
        self._house = house
        self._found = found
        self._wanted = wanted
        self._headers = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self._wanted.status, "headers": self._headers})
        if scope["method"] != "HEAD":
            async for piece in self._pieces():
                _GIVEN_OUT.inc(len(piece))
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _pieces(self) -> AsyncIterator[bytes]:
        start, length = self._wanted.start, self._wanted.length
        if self._found.location is None:
            yield (self._found.data or b"")[start : start + length]
            return
        async for piece in self._house.artifacts.read(self._found.location, start, length):
            yield piece
