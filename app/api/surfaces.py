"""The two synchronous surfaces: how each writes errors, frames and signs of life."""

import math
from typing import Any

import msgspec
from starlette.responses import Response

from app.dialects import (
    SSE_DONE,
    SSE_KEEP_ALIVE,
    Dialect,
    Frame,
    encode_frame,
    model_not_found,
    surface_error,
)
from app.errors import ForemanError

JOB_ID_HEADER = "x-foreman-job-id"
_STREAM_TYPES: dict[Dialect, bytes] = {"ollama": b"application/x-ndjson", "openai": b"text/event-stream"}


def of_path(path: str) -> Dialect | None:
    """The surface that a path belongs to; None for Foreman's own."""
    if path.startswith("/api/"):
        return "ollama"
    return "openai" if path.startswith("/v1/") else None


def error_body(dialect: Dialect, status: int, message: str, code: str | None = None) -> Frame:
    return surface_error(dialect, status, message, code)


def error_response(
    dialect: Dialect,
    status: int,
    message: str,
    *,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    body = msgspec.json.encode(error_body(dialect, status, message, code))
    return Response(body, status, headers, media_type="application/json")


def refusal(dialect: Dialect, error: ForemanError) -> Response:
    """Our own errors in the shape of the surface. What is wrong with a request is 400 there, never 422."""
    status = 400 if error.status == 422 else error.status
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if error.closes:
        headers["connection"] = "close"
    return error_response(dialect, status, error.detail, code=error.code, headers=headers)


def unknown_model(dialect: Dialect, model: str) -> Response:
    return Response(msgspec.json.encode(model_not_found(dialect, model)), 404, media_type="application/json")


def stream_type(dialect: Dialect) -> bytes:
    return _STREAM_TYPES[dialect]


def frames_bytes(dialect: Dialect, frames: list[Frame]) -> bytes:
    return b"".join([encode_frame(frame, dialect) for frame in frames])


def sign_of_life(dialect: Dialect, silence: Frame) -> bytes:
    return SSE_KEEP_ALIVE if dialect == "openai" else encode_frame(silence, dialect)


def end_of_stream(dialect: Dialect) -> bytes:
    return SSE_DONE if dialect == "openai" else b""


def error_frame(dialect: Dialect, status: int, message: str, code: str | None = None) -> bytes:
    return encode_frame(error_body(dialect, status, message, code), dialect)


def json_bytes(document: Any) -> bytes:
    return msgspec.json.encode(document)
