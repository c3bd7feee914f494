"""What is derived from the declaration of a route."""

from typing import Annotated, Any

import httpx
import msgspec
import pytest
from fastapi import Depends, FastAPI, Query
from fastapi.exceptions import RequestValidationError
from msgspec import Meta, Raw
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as Scope_

from app.api.document import describe
from app.api.mount import mounted
from app.api.parameters import KnownFilters
from app.api.problems import handle_foreman_error, handle_invalid_parameters
from app.api.routes import ETAG, Access, Answer, Content, Reply, Route, Routes
from app.errors import ForemanError
from app.identity.account import EVERYBODY
from app.identity.scopes import Scope
from app.main import ROUTES

routes = Routes("things")


class Thing(msgspec.Struct):
    name: Annotated[str, Meta(pattern=r"^[a-z]+\Z")]
    # Not as a plain default: msgspec cannot describe one that is raw.
    data: Raw = msgspec.field(default_factory=lambda: Raw(b"null"))


class Things(msgspec.Struct):
    things: list[Thing]


@routes.get("/things", Scope.ADMIN_READ, "All", "All", errors=(422,))
async def things(
    _known: Annotated[None, Depends(KnownFilters(prefix="metadata."))],
    limit: Annotated[int, Query(ge=1, le=9)] = 1,
) -> Things:
    return Things([Thing("a", Raw(b'{"b": 1.0e2}'))] * limit)


@routes.put(
    "/things/{name:path}",
    Scope.ADMIN_WRITE,
    "Make",
    {200: Reply("Changed", Thing, (ETAG,)), 201: Reply("Made", Thing)},
    request=Content(Thing),
)
async def put(name: str) -> Answer[Thing]:
    return Answer(Thing(name), 201, {"etag": '"1"'})


@routes.delete("/things/{name}", Scope.ADMIN_WRITE, "Remove", {204: Reply("Gone")})
async def delete(name: str) -> None:
    assert name


def _of_hot(prefer: Annotated[str | None, Query(description="Said twice?")] = None) -> None:
    """For the document."""


@routes.post(
    "/hot",
    Scope.JOBS_WRITE,
    "Hot",
    {202: Reply("Taken", Thing)},
    parameters=_of_hot,
    also=("PATCH",),
    hot=True,
)
async def hot(request: Request) -> Response:
    return Response(await request.body(), 202)


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI(
        exception_handlers={
            ForemanError: handle_foreman_error,
            RequestValidationError: handle_invalid_parameters,
        }
    )
    app.router.routes.extend(mounted(routes))
    return app


@pytest.fixture
def caller(app: FastAPI) -> httpx.AsyncClient:
    async def let_in(scope: Scope_, receive: Receive, send: Send) -> None:
        """As the edge would: here everybody is."""
        scope["state"] = {"account": EVERYBODY}
        await app(scope, receive, send)

    return httpx.AsyncClient(transport=httpx.ASGITransport(let_in), base_url="http://localhost")


@pytest.fixture
def document(app: FastAPI) -> dict[str, Any]:
    document = app.openapi()
    describe(document, routes)
    return document


async def test_what_a_handler_returns_goes_out_as_its_shape(caller: httpx.AsyncClient) -> None:
    listed = await caller.get("/things", params={"limit": 2, "metadata.a": "b"})
    made = await caller.put("/things/a/b")
    gone = await caller.delete("/things/a")
    assert listed.content == b'{"things":[%b,%b]}' % ((b'{"name":"a","data":{"b": 1.0e2}}',) * 2)
    assert (made.status_code, made.headers["etag"], made.json()["name"]) == (201, '"1"', "a/b")
    assert (gone.status_code, gone.content) == (204, b"")


async def test_a_hot_route_has_the_bare_request_and_its_other_methods(caller: httpx.AsyncClient) -> None:
    for method in ("POST", "PATCH"):
        answer = await caller.request(method, "/hot", content=b"bytes", params={"prefer": "anything"})
        assert (answer.status_code, answer.content) == (202, b"bytes")


@pytest.mark.parametrize(
    ("query", "field", "message"),
    [
        ({"limit": "0"}, "limit", "must be greater than or equal to 1"),
        ({"limit": "many"}, "limit", "must be a valid integer, unable to parse string as an integer"),
        ({"limits": "1"}, "limits", "is not a known filter"),
        ({"limit": "1\0"}, "limit", "has a NUL character"),
    ],
)
async def test_a_wrong_parameter_is_named_in_a_problem(
    caller: httpx.AsyncClient, query: dict[str, str], field: str, message: str
) -> None:
    answer = await caller.get("/things", params=query)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["errors"] == [{"field": field, "message": message}]
    assert (problem["code"], problem["detail"]) == ("invalid_request", f"{field}: {message}.")


def test_the_document_has_what_is_declared_and_nothing_else(document: dict[str, Any]) -> None:
    made = document["paths"]["/things/{name}"]["put"]
    thing = {"$ref": "#/components/schemas/Thing"}
    assert made["requestBody"] == {"required": True, "content": {"application/json": {"schema": thing}}}
    # Its own answers, and what any route with a body that is not open may answer.
    assert list(made["responses"]) == ["200", "201", "400", "401", "403", "413", "422", "429", "503"]
    assert made["responses"]["200"]["headers"] == {"ETag": {"schema": {"type": "string"}}}
    assert list(document["paths"]["/things"]["get"]["responses"]) == [
        "200",
        "401",
        "403",
        "422",
        "429",
        "503",
    ]
    assert list(document["paths"]["/hot"]) == ["post"]
    assert document["components"]["schemas"]["Thing"] == {
        "type": "object",
        "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}, "data": {}},
        "required": ["name"],
    }


def test_parameters_of_a_hot_route_are_described_and_may_be_absent(document: dict[str, Any]) -> None:
    assert document["paths"]["/hot"]["post"]["parameters"] == [
        {
            "name": "prefer",
            "in": "query",
            "required": False,
            "schema": {"type": "string"},
            "description": "Said twice?",
        }
    ]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_has_a_scope_a_summary_and_answers(route: Route) -> None:
    assert isinstance(route.scope, Scope | Access)
    assert route.summary
    assert route.responses or not route.documented
    assert not (route.hot and route.stream)
    assert (route.scope is Access.OPEN) == (route.path in OPEN)


OPEN = {"/", "/healthz", "/readyz", "/version"}
