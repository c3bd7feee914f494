"""Requests and replies as plain values, JSON, and the way from a problem document to its error. No I/O.

JSON is the standard library's on purpose: results and payloads are kept verbatim by the server, and faster
parsers round big integers or write NaN as null without a word.
"""

import dataclasses
import json
import marshal
import math
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
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

    def json(self, foreign: "Foreign | None" = None) -> Any:
        try:
            return decode(self.content, foreign) if self.content else None
        except ValueError:
            raise _not_foreman(self.status) from None

    def having(self, *names: str, foreign: "Foreign | None" = None) -> dict[str, Any]:
        """The JSON object with at least these members; anything else was not said by a Foreman server."""
        value = self.json(foreign)
        if not isinstance(value, dict) or not value.keys() >= set(names):
            raise _not_foreman(self.status)
        return value


# Picks from a decoded value all that the server hands on as somebody wrote it; its own numbers are finite.
Foreign = Callable[[Any], Any]


def decode(text: str | bytes, foreign: Foreign | None = None) -> Any:
    """What JSON says; ValueError for what is none, NaN and Infinity among it.

    The server keeps a number of any length and size. Python refuses to read an int of more than 4,300 digits
    and takes 1e400 for infinite; both come as decimal.Decimal: exact, and quick at any length.
    """
    if isinstance(text, bytes):
        text = text.decode()
    try:
        value = _decoder.decode(text)
        if not _has_infinity(value if foreign is None else foreign(value)):
            return value
    except json.JSONDecodeError:
        raise
    except ValueError:
        # Too long an int, or nested deeper than marshal goes; NaN is refused the second time as well.
        pass
    return _exact_decoder.decode(text)


_INFINITIES = (marshal.dumps(math.inf, 2), marshal.dumps(-math.inf, 2))


def _has_infinity(value: Any) -> bool:
    """A hook for every number makes an embedding three times as dear to read; this is a twentieth of it.

    What only looks like an infinity, in a text, costs a second reading and nothing else.
    """
    written = marshal.dumps(value, 2)
    return any(each in written for each in _INFINITIES)


class _Beyond(Decimal):
    """A number whose exponent even Decimal has no room for: infinite in a sum, and written as it was read."""

    _text: str

    def __new__(cls, text: str) -> "_Beyond":
        made = super().__new__(cls, "-Infinity" if text.startswith("-") else "Infinity")
        made._text = text
        return made

    def __str__(self) -> str:
        return self._text

    def __reduce__(self) -> Any:
        return _Beyond, (self._text,)


def _integer(digits: str) -> int | Decimal:
    try:
        return int(digits)
    except ValueError:
        return Decimal(digits)


def _real(text: str) -> float | Decimal:
    number = float(text)
    if math.isfinite(number):
        return number
    try:
        return Decimal(text)
    except InvalidOperation:
        return _Beyond(text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


_decoder = json.JSONDecoder(parse_constant=_no_constant)
_exact_decoder = json.JSONDecoder(parse_int=_integer, parse_float=_real, parse_constant=_no_constant)


def without_password(url: str) -> str:
    """A URL as it may be shown: also one whose password has an @, / or ? in it that had to be escaped.

    Such a URL does not work, so it is the very one that gets shown.
    """
    start = url.find("://") + 3 if "://" in url else 0
    before, _, behind = url[start:].rpartition("@")
    # An @ among the parameters may be part of a password, too.
    shown = "…" if "?" in before else re.split("[?#]", behind)[0]
    user = re.split("[:/?#@]", before)[0]
    return url[:start] + (f"{user}@" if user else "") + shown


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


# Python's json has no way to write a number that is neither int nor float. So a Decimal goes through it as a
# text that begins with this mark, and loses mark and quotes afterwards. Nobody else can have put the mark
# there: it is random, and never leaves the process.
_MARK = f"number-{secrets.token_hex(16)}:"
_MARKED = re.compile(f'"{_MARK}([^"]*)"')


def _plain_or_number(value: Any) -> Any:
    if not isinstance(value, Decimal):
        return plain(value)
    if not value.is_finite() and not isinstance(value, _Beyond):
        raise ValueError(f"{value} cannot be written as JSON")
    return f"{_MARK}{value!s}"


def _encoder_with(**layout: Any) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain_or_number, **layout)


_encoder = _encoder_with(separators=(",", ":"))
_encoders_for_people = {indent: _encoder_with(indent=indent) for indent in (None, 2)}


# A text as JSON has it.
quoted: Callable[[str], str] = json.encoder.encode_basestring


def encode(value: Any) -> bytes:
    """JSON in UTF-8; TypeError or ValueError for what JSON does not have (NaN, lone surrogates, sets)."""
    return _written(_encoder, value).encode()


def encode_for_people(value: Any, indent: int | None = None) -> str:
    """The same with some room: a space after comma and colon, or a line for each member."""
    return _written(_encoders_for_people[indent], value)


def _written(encoder: json.JSONEncoder, value: Any) -> str:
    text = encoder.encode(value)
    return _MARKED.sub(r"\1", text) if _MARK in text else text


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
