"""What routes that are about jobs ask for in their paths, queries and headers."""

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import msgspec
from fastapi import Depends, Path, Query
from pydantic import BeforeValidator
from starlette.requests import Request

from app.api.parameters import KnownFilters
from app.errors import InvalidRequest, NotFound
from app.jobs.ids import is_id
from app.jobs.states import State
from app.jobs.submission import invalid
from app.store.read import Filter

MAX_LIMIT = 200
DEFAULT_LIMIT = 50
METADATA = "metadata."
MAX_WAIT_SECONDS = 300
MAX_KEY_LENGTH = 255
_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
    r"(?P<more>-[\x21-\x7e]{0,200})?"
)
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d+)\"?", re.IGNORECASE)
_MINIMAL = re.compile(r"(?:^|,)\s*return\s*=\s*\"?minimal\"?\s*(?:$|[,;])", re.IGNORECASE)
_PREFIX = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{0,25}", re.ASCII | re.IGNORECASE)
_PRINTABLE = re.compile(r"^[\x20-\x7e]+$")
MAX_TRACESTATE = 512


def existing_id(job_id: str) -> str:
    """What cannot be an id belongs to no job."""
    if not is_id(job_id):
        raise NotFound("There is no such job.")
    return job_id


def job_id_of(request: Request) -> str:
    """For routes that take the bare request."""
    return existing_id(request.path_params["job_id"])


async def _job_id(job_id: Annotated[str, Path()]) -> str:
    return existing_id(job_id)


# A dependency, and so looked at before the body is read.
JobIdInPath = Annotated[str, Depends(_job_id)]


def query_wait(request: Request) -> float:
    """Seconds from `?wait=N`; 0 when absent. For routes that take the bare request."""
    given = request.query_params.get("wait")
    return 0.0 if given is None else wait_of(given)


def wait_of(given: str) -> float:
    """Seconds, as they stand in a query."""
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise InvalidRequest(
            f"wait must be a number from 0 to {MAX_WAIT_SECONDS}.",
            errors=[{"field": "wait", "message": f"must be a number from 0 to {MAX_WAIT_SECONDS}"}],
        )
    return seconds


def waiting(until: str) -> Any:
    """Of a parameter: how long the answer may be held back."""
    return Query(
        description=f"Hold until {until}, at most this many seconds.",
        json_schema_extra={"minimum": 0, "maximum": MAX_WAIT_SECONDS},
    )


Wait = Annotated[float, BeforeValidator(wait_of)]


def limit_of(given: str | None) -> int:
    if given is None:
        return DEFAULT_LIMIT
    if not given.isascii() or not given.isdigit() or len(given) > 6 or not 1 <= int(given) <= MAX_LIMIT:
        raise invalid("limit", f"must be a number from 1 to {MAX_LIMIT}")
    return int(given)


Limit = Annotated[
    int,
    BeforeValidator(limit_of),
    Query(description="Page size.", json_schema_extra={"minimum": 1, "maximum": MAX_LIMIT}),
]


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


def prefix_of(field: str, given: str | None) -> str | None:
    """How ids begin, in either case."""
    if given is None:
        return None
    if not _PREFIX.fullmatch(given):
        raise invalid(field, "must be the beginning of a job id")
    return given.upper()


def _prefix(given: str) -> str | None:
    return prefix_of("id_prefix", given)


def _moment(field: str) -> BeforeValidator:
    def parse(given: str) -> datetime | None:
        return moment_of(field, given)

    return BeforeValidator(parse)


def states_of(given: list[str]) -> list[State]:
    """Each may be one state, or several with commas between them."""
    try:
        return [State(part) for value in given for part in value.split(",")]
    except ValueError as problem:
        raise invalid("state", f"must be one of {', '.join(State)}") from problem


States = Annotated[
    list[State], BeforeValidator(states_of), Query(default_factory=list, description="Repeatable.")
]


def encode_cursor(last: str) -> str:
    """Opaque to whoever gets it: what was shown last."""
    return base64.urlsafe_b64encode(b"1:" + last.encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> str:
    try:
        version, _, last = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition(":")
    except (binascii.Error, ValueError) as problem:
        raise bad_cursor() from problem
    if version != "1":
        raise bad_cursor()
    return last


def bad_cursor() -> InvalidRequest:
    return invalid("cursor", "is not a cursor of ours")


def _last_job(cursor: str) -> str:
    job_id = decode_cursor(cursor)
    if not is_id(job_id):
        raise bad_cursor()
    return job_id


def next_link(request: Request, cursor: str | None) -> dict[str, str] | None:
    """The header that leads to the next page, if there is one."""
    if cursor is None:
        return None
    following = request.url.include_query_params(cursor=cursor)
    return {"link": f'<{following.path}?{following.query}>; rel="next"'}


class RareFilters(TypedDict):
    error: str | None
    worker: str | None
    id_prefix: str | None


async def _rare_filters(
    error: Annotated[str | None, Query(description="Only with this code of their last error.")] = None,
    worker: Annotated[str | None, Query(description="Only those that this worker runs, or ran last.")] = None,
    id_prefix: Annotated[
        str | None, BeforeValidator(_prefix), Query(description="Only ids that begin so.")
    ] = None,
) -> RareFilters:
    return {"error": error, "worker": worker, "id_prefix": id_prefix}


async def _filter(
    request: Request,
    _known: Annotated[None, Depends(KnownFilters(prefix=METADATA))],
    more: Annotated[RareFilters, Depends(_rare_filters)],
    queue: Annotated[str | None, Query(description="Only this queue.")] = None,
    kind: Annotated[str | None, Query(description="Only this kind.")] = None,
    model: Annotated[str | None, Query(description="Only this model.")] = None,
    since: Annotated[
        datetime | None, _moment("since"), Query(description="Created at or after this moment.")
    ] = None,
    until: Annotated[
        datetime | None, _moment("until"), Query(description="Created before this moment.")
    ] = None,
    cursor: Annotated[str | None, BeforeValidator(_last_job), Query(description="From next_cursor.")] = None,
) -> Filter:
    query = request.query_params
    metadata = {name.removeprefix(METADATA): query[name] for name in query if name.startswith(METADATA)}
    return Filter(
        queue=queue,
        kind=kind,
        model=model,
        since=since,
        until=until,
        metadata=metadata,
        before=cursor,
        **more,
    )


# Which jobs a list shows; in which states they are is the route's own parameter.
JobFilter = Annotated[Filter, Depends(_filter)]


def header(request: Request, name: bytes) -> str | None:
    """The first header of this (lower-case) name; the framework's mapping costs ten times as much."""
    for key, value in request.scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None


class Trace(msgspec.Struct, gc=False):
    request_id: str
    # None where the caller sent none that can be read: the intake begins one.
    traceparent: str | None
    tracestate: str | None


def trace_of(request: Request) -> Trace:
    """The caller's trace context."""
    return trace_from(
        request.scope["state"]["request_id"], header(request, b"traceparent"), header(request, b"tracestate")
    )


def trace_from(request_id: str, traceparent: str | None, tracestate: str | None) -> Trace:
    """The same, of the headers by themselves."""
    if traceparent is not None and _is_traceparent(traceparent):
        usable = tracestate is not None and len(tracestate) <= MAX_TRACESTATE and _PRINTABLE.match(tracestate)
        return Trace(request_id, traceparent, tracestate if usable else None)
    return Trace(request_id, None, None)


def _is_traceparent(given: str) -> bool:
    found = _TRACEPARENT.fullmatch(given)
    # Later versions may append fields; version 00 has exactly these four.
    return found is not None and (found["more"] is None or found["version"] != "00")


def idempotency_key(request: Request) -> str | None:
    given = header(request, b"idempotency-key")
    return None if given is None else key_from(given)


def key_from(given: str) -> str:
    """An idempotency key as it stands in its header: quoted (RFC draft) or bare."""
    key = given.strip()
    if len(key) >= 2 and key.startswith('"') and key.endswith('"'):
        key = key[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    if not key or len(key) > MAX_KEY_LENGTH or not _PRINTABLE.match(key):
        raise InvalidRequest(f"Idempotency-Key must have 1 to {MAX_KEY_LENGTH} printable ASCII characters.")
    return key


def not_modified(request: Request, etag: str) -> bool:
    """Whether If-None-Match (a list of ETags, or a star for any) names this one."""
    given = ",".join(request.headers.getlist("if-none-match"))
    return given.strip() == "*" or etag in [each.strip().removeprefix("W/") for each in given.split(",")]


def prefer_wait(request: Request) -> int | None:
    """Seconds from `Prefer: wait=N`; a preference that cannot be met is capped, as RFC 7240 allows."""
    if header(request, b"prefer") is None:
        return None
    found = _WAIT.search(", ".join(request.headers.getlist("prefer")))
    if found is None:
        return None
    # More digits than any sensible number has: cap before converting.
    return MAX_WAIT_SECONDS if len(found[1]) > 9 else min(int(found[1]), MAX_WAIT_SECONDS)


def prefers_minimal(request: Request) -> bool:
    """Whether `Prefer: return=minimal` is asked for. A preference that nobody knows is ignored (RFC 7240)."""
    if header(request, b"prefer") is None:
        return False
    return _MINIMAL.search(", ".join(request.headers.getlist("prefer"))) is not None
