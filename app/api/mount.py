"""From the declaration of a route to what serves it."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from fastapi import Depends
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.direct import encode, json_response
from app.api.routes import Answer, Route


def mounted(routes: Iterable[Route]) -> list[APIRoute]:
    """All of them as routes of the framework, in their order."""
    found: list[APIRoute] = []
    for route in routes:
        kind = _DirectRoute if route.is_direct else _OrdinaryRoute
        found.append(kind(route, [route.method], documented=route.documented))
        if route.also:
            found.append(kind(route, list(route.also), documented=False))
    return found


class _OrdinaryRoute(APIRoute):
    """FastAPI solves the parameters; what the handler returns is encoded here."""

    def __init__(self, route: Route, methods: list[str], *, documented: bool) -> None:
        super().__init__(
            route.path,
            self._endpoint(route),
            methods=methods,
            name=route.endpoint.__name__,
            tags=[route.tag],
            summary=route.summary,
            description=" ",
            include_in_schema=documented,
            status_code=route.status,
            response_model=None,
            response_class=Response,
            dependencies=[Depends(route.parameters)] if route.parameters else None,
        )
        self.query_names = frozenset(
            each.alias for each in get_flat_params(self.dependant) if isinstance(each.field_info, Query)
        )
        self.app = _asked_first(route, self.app)

    def _endpoint(self, route: Route) -> Callable[..., Any]:
        handle = route.endpoint

        @wraps(handle)
        async def endpoint(*args: Any, **given: Any) -> Response:
            return as_response(await handle(*args, **given), route.status)

        return endpoint


class _DirectRoute(_OrdinaryRoute):
    """The handler takes the request as it is; of the framework only the look-up by path is left."""

    def __init__(self, route: Route, methods: list[str], *, documented: bool) -> None:
        super().__init__(route, methods, documented=documented)
        handle = route.endpoint

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await handle(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = _asked_first(route, app)

    def _endpoint(self, route: Route) -> Callable[..., Any]:
        return route.endpoint


def _asked_first(route: Route, app: ASGIApp) -> ASGIApp:
    """Whether the caller may is asked before parameters are looked at or a body is read."""
    needs = route.needs

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["account"].require(needs)
        await app(scope, receive, send)

    return asked


def as_response(answered: Any, status: int) -> Response:
    """What a handler returned, as it goes out: nothing, a document, one with more, or a ready response."""
    match answered:
        case Response():
            return answered
        case None:
            return Response(status_code=status)
        case Answer():
            return json_response(encode(answered.document), answered.status or status, answered.headers)
    return json_response(encode(answered), status)
