"""Requests and replies as plain values, JSON, and the way from a problem document to its error. No I/O.

JSON is the standard library's on purpose: results and payloads are kept verbatim by the server, and faster
parsers round big integers or write NaN as null without a word.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any

from foreman_client.errors import BY_CODE, BY_STATUS, ApiError, JobNotFound, NotFound

JSON_TYPE = "application/json"
EVENT_STREAM_TYPE = "text/event-stream"
MAX_RETRY_AFTER_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. `repeatable`: sending it twice does no more than sending it once."""

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    repeatable: bool = False
    # How long the server was asked to hold the answer back; the time-out is counted from there.
    hold_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        try:
            return decode(self.content) if self.content else None
        except ValueError:
            raise _not_foreman(self.status) from None

    def having(self, *names: str) -> dict[str, Any]:
        """The JSON object with at least these members; anything else was not said by a Foreman server."""
        value = self.json()
        if not isinstance(value, dict) or not value.keys() >= set(names):
            raise _not_foreman(self.status)
        return value


def decode(text: str | bytes) -> Any:
    """What JSON says; ValueError for what is none.

    Python refuses to read an int of more than 4,300 digits, and to write it. The server keeps such a number
    like any other, so here it comes as decimal.Decimal: exact, and quick at any length.
    """
    return json.loads(text, parse_int=_integer)


def _integer(digits: str) -> int | Decimal:
    try:
        return int(digits)
    except ValueError:
        return Decimal(digits)


def _not_foreman(status: int) -> ApiError:
    return ApiError("the answer is not a Foreman server's: is the address right?", status=status)


def plain(value: Any) -> Any:
    """What JSON cannot say by itself: pydantic models, dataclasses and times."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, datetime):
        return timestamp(value)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain)


def encode(value: Any) -> bytes:
    """JSON in UTF-8; TypeError or ValueError for what JSON does not have (NaN, lone surrogates, sets)."""
    return _encoder.encode(value).encode()


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC; a naive time is taken as local, as Python itself does."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from a Retry-After header, which is a number or a date."""
    text = headers.get("retry-after")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError, OverflowError, IndexError):
            return None
    # Not a number is no time to wait, and nobody sleeps for ever because a header says so.
    return min(MAX_RETRY_AFTER_SECONDS, max(0.0, seconds)) if not math.isnan(seconds) else None


def error_from(reply: Reply, path: str) -> ApiError:
    """The typed error for a reply of 400 and above."""
    try:
        document = decode(reply.content)
    except ValueError:
        document = None
    problem: Mapping[str, Any] = document if isinstance(document, dict) else {}
    kind = BY_CODE.get(str(problem.get("code"))) or BY_STATUS.get(reply.status, ApiError)
    if kind is NotFound and path.startswith("/jobs/"):
        kind = JobNotFound
    message = problem.get("detail") or problem.get("title") or f"the server answered {reply.status}"
    return kind(
        f"{message} ({reply.status} on {path})" if reply.status >= 500 else str(message),
        status=reply.status,
        problem=problem,
        retry_after=retry_after(reply.headers),
    )
