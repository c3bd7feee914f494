"""The synchronous surfaces: Foreman's own errors in the shape that the clients of each one know."""

import math

import msgspec
from starlette.responses import Response

from app.api.direct import json_response
from app.dialects import DIALECTS
from app.dialects.protocol import Dialect
from app.errors import ForemanError


def of_path(path: str) -> Dialect | None:
    """The dialect of the surface that a path belongs to; None for Foreman's own."""
    return next((each for each in DIALECTS.values() if path.startswith(each.path_prefix)), None)


def error_response(
    dialect: Dialect,
    status: int,
    message: str,
    *,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    return json_response(msgspec.json.encode(dialect.error(status, message, code=code)), status, headers)


def refusal(dialect: Dialect, error: ForemanError) -> Response:
    """Our own errors in the shape of the surface. What is wrong with a request is 400 there, never 422."""
    status = 400 if error.status == 422 else error.status
    return error_response(dialect, status, error.detail, code=error.code, headers=advice(error))


def advice(error: ForemanError) -> dict[str, str]:
    """What the headers say of an error, on every surface."""
    headers = dict(error.headers or {})
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if error.closes:
        headers["connection"] = "close"
    return headers


def unknown_model(dialect: Dialect, model: str) -> Response:
    return json_response(msgspec.json.encode(dialect.model_not_found(model)), 404)
