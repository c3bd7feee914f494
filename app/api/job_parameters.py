"""What routes that are about jobs ask for in their paths and queries."""

import base64
import binascii
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Depends, Path, Query
from pydantic import BeforeValidator
from starlette.requests import Request

from app.api.headers import MAX_WAIT_SECONDS, wait_of
from app.api.parameters import KnownFilters
from app.errors import NotFound
from app.jobs.ids import is_id
from app.jobs.states import State
from app.jobs.submission import invalid
from app.store.read import Filter

MAX_LIMIT = 200
DEFAULT_LIMIT = 50
METADATA = "metadata."


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


def encode_cursor(job_id: str) -> str:
    return base64.urlsafe_b64encode(b"1:" + job_id.encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> str:
    try:
        version, _, job_id = (
            base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition(":")
        )
    except (binascii.Error, ValueError) as problem:
        raise invalid("cursor", "is not a cursor of ours") from problem
    if version != "1" or not is_id(job_id):
        raise invalid("cursor", "is not a cursor of ours")
    return job_id


def next_link(request: Request, cursor: str | None) -> dict[str, str] | None:
    """The header that leads to the next page, if there is one."""
    if cursor is None:
        return None
    following = request.url.include_query_params(cursor=cursor)
    return {"link": f'<{following.path}?{following.query}>; rel="next"'}


async def _filter(
    request: Request,
    _known: Annotated[None, Depends(KnownFilters(prefix=METADATA))],
    queue: Annotated[str | None, Query(description="Only this queue.")] = None,
    kind: Annotated[str | None, Query(description="Only this kind.")] = None,
    model: Annotated[str | None, Query(description="Only this model.")] = None,
    since: Annotated[
        datetime | None, _moment("since"), Query(description="Created at or after this moment.")
    ] = None,
    until: Annotated[
        datetime | None, _moment("until"), Query(description="Created before this moment.")
    ] = None,
    cursor: Annotated[
        str | None, BeforeValidator(decode_cursor), Query(description="From next_cursor.")
    ] = None,
) -> Filter:
    query = request.query_params
    metadata = {name.removeprefix(METADATA): query[name] for name in query if name.startswith(METADATA)}
    return Filter(
        queue=queue, kind=kind, model=model, since=since, until=until, metadata=metadata, before=cursor
    )


# Which jobs a list shows; in which states they are is the route's own parameter.
JobFilter = Annotated[Filter, Depends(_filter)]
