"""Errors as RFC 9457 problem documents: one shape for ours, the framework's and the unforeseen.

On the paths of the synchronous surfaces the same errors wear the shape that their clients know.
"""

from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from app.api import surfaces
from app.api.pages import Pages
from app.errors import (
    Forbidden,
    ForemanError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Unauthorized,
    Unparsable,
)
from app.jobs.submission import shown

MEDIA_TYPE = "application/problem+json"

_BY_STATUS: dict[int, type[ForemanError]] = {
    400: Unparsable,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    422: InvalidRequest,
}


def problem_body(error: ForemanError) -> bytes:
    document: dict[str, Any] = {
        "type": f"urn:foreman:problem:{error.code}",
        "title": error.title,
        "status": error.status,
        "code": error.code,
        "detail": error.detail,
        **error.extra,
    }
    return orjson.dumps(document, default=str)


def problem_response(error: ForemanError) -> Response:
    return Response(problem_body(error), error.status, surfaces.advice(error), media_type=MEDIA_TYPE)


def error_response(path: str, error: ForemanError) -> Response:
    """What a request to this path is answered."""
    dialect = surfaces.of_path(path)
    return problem_response(error) if dialect is None else surfaces.refusal(dialect, error)


def refusal(scope: Scope, error: ForemanError) -> Response:
    """What this request is answered: a person, with a page."""
    pages: Pages | None = scope["state"].get("pages")
    return error_response(scope["path"], error) if pages is None else pages.refuse(scope, error)


async def handle_foreman_error(request: Request, error: Exception) -> Response:
    """And everything else, which is a bug."""
    return refusal(request.scope, error if isinstance(error, ForemanError) else ForemanError())


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """The framework's own refusals: unknown path, wrong method."""
    known = _BY_STATUS.get(int(getattr(error, "status_code", 500)), ForemanError)
    dialect = surfaces.of_path(request.scope["path"])
    # On the surfaces whatever is not offered is unknown, a method as well as a path.
    if dialect is not None and known in (NotFound, MethodNotAllowed):
        return surfaces.not_offered(dialect, request.method, request.scope["path"])
    response = refusal(request.scope, known())
    if response.status_code == MethodNotAllowed.status:
        response.headers["allow"] = ", ".join(_methods_of(request))
    return response


def _methods_of(request: Request) -> list[str]:
    """Of all routes of this path; the framework's own error knows the first of them only."""
    routes = [route for route in request.app.routes if isinstance(route, APIRoute)]
    found = next((each.path for each in routes if each.matches(request.scope)[0] is not Match.NONE), None)
    return sorted({method for each in routes if each.path == found for method in each.methods or ()})


async def handle_invalid_parameters(request: Request, error: Exception) -> Response:
    """What FastAPI found wrong with a path, a query or a header, named as we name it."""
    found = error.errors() if isinstance(error, RequestValidationError) else []
    named = [{"field": str(each["loc"][-1]), "message": _plain(each["msg"])} for each in found]
    detail = "; ".join(f"{shown(each['field'])}: {each['message']}" for each in named)
    return refusal(request.scope, InvalidRequest(f"{detail}.", errors=named))


def _plain(message: str) -> str:
    """pydantic's messages, as ours are: behind the name of the field."""
    return (message[:1].lower() + message[1:]).replace("input should be", "must be")
