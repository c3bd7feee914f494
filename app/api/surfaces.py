"""The synchronous surfaces: Foreman's own errors in the shape that the clients of each one know."""

import math

import msgspec
from starlette.responses import Response

from app.api.direct import json_response
from app.api.webhook_headers import by_header
from app.dialects import DIALECTS
from app.dialects.protocol import Dialect
from app.errors import ForemanError, InvalidRequest

# By the beginning of a path: where clients of that surface look for the id of a request.
_REQUEST_IDS = [
    (dialect.path_prefix, dialect.request_id_header)
    for dialect in DIALECTS.values()
    if dialect.request_id_header is not None
]


def of_path(path: str) -> Dialect | None:
    """The dialect of the surface that a path belongs to; None for Foreman's own.

    Also of `//api/chat` and `/api`, which are asked for by clients whose base URL has a slash too many, or
    nothing behind it.
    """
    asked = f"/{path.strip('/')}/"
    found = [each for each in DIALECTS.values() if asked.startswith(each.path_prefix)]
    return max(found, key=lambda each: len(each.path_prefix), default=None)


def error_response(
    dialect: Dialect,
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    error = dialect.error(status, message, param=param, code=code)
    return json_response(msgspec.json.encode(error), status, headers)


def refusal(dialect: Dialect, error: ForemanError) -> Response:
    """Our own errors in the shape of the surface. What is wrong with a request is 400 there, never 422."""
    status = 400 if error.status == 422 else error.status
    if isinstance(error, InvalidRequest):
        error = by_header(error)
    # Where the dialect has its own word for it.
    code, param = error.extra.get("code", error.code), error.extra.get("param")
    named = error.extra.get("errors")
    if param is None and named:
        param = named[0]["field"]
    return error_response(dialect, status, error.detail, code=code, param=param, headers=advice(error))


def advice(error: ForemanError) -> dict[str, str]:
    """What the headers say of an error, on every surface."""
    headers = dict(error.headers or {})
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if error.closes:
        headers["connection"] = "close"
    return headers


def not_offered(dialect: Dialect, method: str, path: str) -> Response:
    message = f"{method} {path} is not offered here"
    if "//" in path or path.endswith("/"):
        message += ": it has a slash too many"
    return error_response(dialect, 404, message, code="unknown_url")


def unknown_model(dialect: Dialect, model: str) -> Response:
    return json_response(msgspec.json.encode(dialect.model_not_found(model)), 404)


def request_id_headers(path: str, request_id: bytes) -> list[tuple[bytes, bytes]]:
    """The id of a request under every name that its caller may look for."""
    named = [(b"x-request-id", request_id)]
    for prefix, header in _REQUEST_IDS:
        if path.startswith(prefix):
            named.append((header, request_id))
    return named
