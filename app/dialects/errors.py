"""The error shapes of both surfaces, and the message out of whatever shape a target answered with."""

from typing import Any

from app.dialects.shapes import Dialect, Frame, as_dict, as_text

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}


def ollama_error(message: str) -> Frame:
    return {"error": message}


def openai_error(
    status: int,
    message: str,
    type: str | None = None,
    param: str | None = None,
    code: str | None = None,
) -> Frame:
    kind = type or _OPENAI_TYPES.get(status, "invalid_request_error" if 400 <= status < 500 else "api_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def surface_error(dialect: Dialect, status: int, message: str, code: str | None = None) -> Frame:
    """The error body, or the in-band error frame, of that surface."""
    if dialect == "ollama":
        return ollama_error(message)
    return openai_error(status, message, code=code)


def model_not_found(dialect: Dialect, model: str) -> Frame:
    """Ollama's own words for a 404, in the shape of the surface."""
    message = f"model '{model}' not found"
    if dialect == "ollama":
        return ollama_error(message)
    return openai_error(404, message, param="model", code="model_not_found")


def error_message(body: Any) -> str | None:
    """What went wrong, if this frame or HTTP body is an error; None if it is none."""
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if error:
        if isinstance(error, str):
            return error
        return as_text(as_dict(error).get("message")) or "the target reported an error without a message"
    if body.get("object") == "error":
        return as_text(body.get("message")) or "the target reported an error without a message"
    return None
