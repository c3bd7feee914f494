"""The request headers that mean something to a job: Idempotency-Key, Prefer, trace context."""

import random
import re
from dataclasses import dataclass

from starlette.requests import Request

from app.errors import InvalidRequest

MAX_WAIT_SECONDS = 300
MAX_KEY_LENGTH = 255
_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
    r"(?P<more>-[\x21-\x7e]{0,200})?"
)
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d+)\"?", re.IGNORECASE)
_PRINTABLE = re.compile(r"^[\x20-\x7e]+$")
MAX_TRACESTATE = 512


def header(request: Request, name: bytes) -> str | None:
    """The first header of this (lower-case) name; the framework's mapping costs ten times as much."""
    for key, value in request.scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None


@dataclass(slots=True)
class Trace:
    request_id: str
    traceparent: str
    tracestate: str | None


def trace_of(request: Request) -> Trace:
    """The caller's trace context, or a fresh one: no job is without."""
    request_id = request.scope["state"]["request_id"]
    given = header(request, b"traceparent")
    if given is not None and _is_traceparent(given):
        state = header(request, b"tracestate")
        usable = state is not None and len(state) <= MAX_TRACESTATE and _PRINTABLE.match(state)
        return Trace(request_id, given, state if usable else None)
    # Unique is enough: nobody is let in by a trace id.
    dice = f"{random.getrandbits(192):048x}"
    return Trace(request_id, f"00-{dice[:32]}-{dice[32:]}-01", None)


def _is_traceparent(given: str) -> bool:
    found = _TRACEPARENT.fullmatch(given)
    # Later versions may append fields; version 00 has exactly these four.
    return found is not None and (found["more"] is None or found["version"] != "00")


def idempotency_key(request: Request) -> str | None:
    """Quoted (RFC draft) or bare."""
    given = header(request, b"idempotency-key")
    if given is None:
        return None
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
