"""The payload of a job of kind `http`: one HTTP call, checked field by field. Pure."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from app.errors import InvalidRequest
from app.jobs import verbatim
from app.jobs.explain import explain
from app.jobs.submission import invalid
from app.outbound.headers import METHODS, check_headers

DEFAULT_TIMEOUT_SECONDS = 60.0
MAX_TIMEOUT_SECONDS = 3600.0
# Written by Foreman on every call: the receiver must be able to rely on them.
OWN_HEADERS = frozenset({"idempotency-key", "traceparent", "tracestate", "x-foreman-timeout"})

Status = Annotated[int, Meta(ge=200, le=599)]


class HttpCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: Annotated[str, Meta(min_length=1, max_length=2048)]
    method: str | None = None
    headers: Annotated[dict[str, str], Meta(max_length=100)] = {}
    # Text goes out as it is; any other JSON as JSON, byte for byte as it came in.
    body: msgspec.Raw = msgspec.Raw(b"null")
    timeout_seconds: Annotated[float, Meta(ge=0.1, le=MAX_TIMEOUT_SECONDS)] = DEFAULT_TIMEOUT_SECONDS
    success: Annotated[list[Status], Meta(min_length=1, max_length=100)] | None = None

    @property
    def verb(self) -> str:
        """GET, or POST when there is something to send."""
        return self.method or ("GET" if self.content is None else "POST")

    @property
    def content(self) -> bytes | None:
        raw = bytes(self.body)
        if raw == b"null":
            return None
        return msgspec.json.decode(raw, type=str).encode() if raw.startswith(b'"') else raw

    @property
    def content_type(self) -> str | None:
        """The type to name when the caller named none."""
        raw = bytes(self.body)
        if raw == b"null":
            return None
        return "text/plain; charset=utf-8" if raw.startswith(b'"') else "application/json"

    def is_success(self, status: int) -> bool:
        return 200 <= status < 300 if self.success is None else status in self.success


_decode = msgspec.json.Decoder(HttpCall).decode


def parse_call(payload: str) -> HttpCall:
    """The call that a payload describes. Raises InvalidRequest naming every wrong field as `payload.…`."""
    try:
        call = _decode(payload.encode())
    except msgspec.ValidationError as problem:
        raise _explain(payload) from problem
    if call.method is not None and call.method not in METHODS:
        raise invalid("payload.method", f"must be one of {', '.join(sorted(METHODS))}")
    own = sorted(name for name in call.headers if name.lower() in OWN_HEADERS)
    if own:
        raise invalid("payload.headers", f"{', '.join(own)} is set by Foreman itself")
    reason = check_headers(call.headers)
    if reason is not None:
        raise invalid("payload.headers", reason)
    if call.content is not None and call.verb in ("GET", "HEAD"):
        raise invalid("payload.body", f"cannot be sent with {call.verb}")
    return call


def _explain(payload: str) -> InvalidRequest:
    parts = verbatim.members(payload.encode())
    unknown = sorted(parts.keys() - set(HttpCall.__struct_fields__))
    if unknown:
        return invalid(f"payload.{unknown[0]}", "is not a known field")
    problem = explain(parts, HttpCall)
    errors: list[dict[str, Any]] = [
        {**each, "field": f"payload.{each['field']}"} for each in problem.extra.get("errors", [])
    ]
    named = "; ".join(f"{each['field']}: {each['message']}" for each in errors)
    return InvalidRequest(f"{named or problem.detail}.", errors=errors)
