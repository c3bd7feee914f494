"""Every route against every kind of caller: deny by default, and nothing slips."""

import re
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from app.api.routes import Access, Route
from app.identity.scopes import ALL_SCOPES, Scope
from app.main import ROUTES
from tests.conftest import Server
from tests.sharing import FolderShare

MISSING = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
# What every route's parameters are called by, of things that there are not.
NOTHING = {
    "job_id": MISSING,
    "name": "nothing",
    "key": "nothing",
    "key_id": MISSING,
    "operation_id": MISSING,
    "delivery_id": f"{MISSING}-1",
    "model": "nothing",
    "file_id": f"file-{MISSING}",
    "batch_id": f"batch_{MISSING}",
    "rest": "nothing",
    "response_id": f"resp_{MISSING}",
}
# Of the whole server, and so only for who may administer it; or of nobody.
SERVER_WIDE = re.compile(
    r"/(queues|targets|keys)(/\{(name|key_id)\})?(/pause|/resume)?$|/metrics$|/(api|v1)/"
)
CALLS = [(method, route) for route in ROUTES for method in (route.method, *route.also)]
CLOSED = [(method, route) for method, route in CALLS if route.scope is not Access.OPEN]


def path_of(route: Route, things: dict[str, str]) -> str:
    return re.sub(r"{(\w+)(?::\w+)?}", lambda found: things[found[1]], route.path)


def name_of(call: tuple[str, Route]) -> str:
    return f"{call[0]} {call[1].path}"


@dataclass
class Callers:
    server: Server
    scoped: dict[Scope, str]
    revoked: str
    expired: str

    def call(self, method: str, path: str, key: str | None, **more: Any) -> httpx.Response:
        headers = {"Accept": "*/*"} | ({"Authorization": f"Bearer {key}"} if key else {})
        if "json" not in more and method in {"POST", "PUT", "PATCH"}:
            more["json"] = {}
        return httpx.request(method, self.server.url + path, headers=headers, timeout=60, **more)


@pytest.fixture
def callers(share: FolderShare, guarded: Server) -> Callers:
    return share.get("callers", lambda: nullcontext(make_callers(guarded)))


def make_callers(server: Server) -> Callers:
    with server.client() as admin:
        doomed = admin.post("/keys", json={"name": "doomed", "scopes": list(ALL_SCOPES)}).json()
        assert httpx.get(f"{server.url}/jobs", headers=bearer(doomed["key"])).status_code == 200
        assert admin.delete(f"/keys/{doomed['key_id']}").status_code == 204
    short = server.key("default", *ALL_SCOPES, expires_in_seconds=0.001)
    scoped = {scope: server.key("default", scope) for scope in ALL_SCOPES}
    return Callers(server, scoped, doomed["key"], short)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_the_document_has_every_route() -> None:
    assert [route.path for _, route in CALLS if not route.documented] == []


def test_only_these_are_open() -> None:
    assert {name_of(call) for call in CALLS if call not in CLOSED} == {
        "GET /",
        "HEAD /",
        "GET /healthz",
        "HEAD /healthz",
        "GET /readyz",
        "HEAD /readyz",
        "GET /version",
        "HEAD /version",
    }


@pytest.mark.parametrize("call", CLOSED, ids=name_of)
def test_without_a_valid_key_nothing_is_done(callers: Callers, call: tuple[str, Route]) -> None:
    method, route = call
    path = path_of(route, NOTHING)
    misspelt = callers.scoped[Scope.ADMIN_READ][:-1] + "!"
    for key, words in {
        None: "needs an API key",
        "": "needs an API key",
        misspelt: "not an API key",
        "sk-proj-something": "not an API key",
        callers.revoked: "was revoked",
        callers.expired: "expired",
    }.items():
        answer = callers.call(method, path, key)
        assert answer.status_code == 401, (key, answer.text)
        assert answer.headers["www-authenticate"].startswith('Bearer realm="foreman"')
        assert method == "HEAD" or words in answer.text
    # Neither from the query nor from a cookie.
    good = callers.scoped[route.needs or Scope.ADMIN_READ]
    answer = callers.call(method, f"{path}?api_key={good}&access_token={good}&key={good}", None)
    assert answer.status_code == 401
    answer = callers.call(method, path, None, cookies={"key": good, "Authorization": f"Bearer {good}"})
    assert answer.status_code == 401


@pytest.mark.parametrize("call", CLOSED, ids=name_of)
def test_a_key_may_do_what_its_scope_says_and_nothing_else(callers: Callers, call: tuple[str, Route]) -> None:
    method, route = call
    path = path_of(route, NOTHING)
    for scope, key in callers.scoped.items():
        answer = callers.call(method, path, key)
        if route.needs in (None, scope):
            assert answer.status_code not in (401, 403), answer.text
            assert answer.status_code < 500, answer.text
        else:
            assert answer.status_code == 403, (scope, answer.text)
            assert f'scope="{route.needs}"' in answer.headers["www-authenticate"]
            assert method == "HEAD" or str(route.needs) in answer.text


def test_what_is_no_route_needs_a_key_too(callers: Callers) -> None:
    for method, path in [
        ("GET", "/nothing"),
        ("PUT", "/jobs"),
        ("GET", "/jobs/"),
        ("GET", "//jobs"),
        ("OPTIONS", "/jobs"),
    ]:
        assert callers.call(method, path, None).status_code == 401, path
        assert callers.call(method, path, callers.scoped[Scope.JOBS_READ]).status_code in (404, 405), path


@dataclass
class Belongings:
    """What a tenant has, one of each."""

    things: dict[str, str]
    ids: set[str]
    texts: set[str]


@dataclass
class Tenants:
    """What one has, its key, and the key of another who may do everything."""

    belongings: Belongings
    owner: str
    stranger: str


def make_belongings(server: Server, key: str) -> Belongings:
    """With a job in each state that a route asks about."""
    with server.client(key) as client:
        put = client.put("/queues/keyed", json={"key": ["k", "/k"], "max_queued": 5})
        assert put.status_code in (200, 201), put.text
        job = {
            "kind": "secret-kind",
            "payload": {"marker": "secret-payload"},
            "metadata": {"m": "secret-metadata"},
        }
        running = client.post("/jobs", json=job | {"state_webhook_url": "http://127.0.0.1:9/hook"}).json()[
            "job_id"
        ]
        claim = {"worker": "secret-worker", "queues": ["default"], "kinds": ["secret-kind"], "limit": 1}
        token = client.post("/claims", json=claim).json()["jobs"][0]["lease_token"]
        headers = {"X-Foreman-Lease-Token": token, "Content-Type": "text/plain"}
        stored = client.put(f"/jobs/{running}/artifacts/secret-artifact", content=b"x", headers=headers)
        assert stored.status_code == 201, stored.text
        keyed = client.post("/jobs", json=job | {"queue": "keyed", "payload": {"k": "secret"}}).json()[
            "job_id"
        ]
        schedule = {"cron": "0 3 * * *", "job": {"kind": "secret-kind", "payload": {}}}
        assert client.put("/schedules/secret-schedule", json=schedule).status_code in (200, 201)
        bulk = client.post("/bulk-operations", json={"action": "delete", "filter": {"kind": "nothing"}})
        operation = bulk.json()["operation_id"]
    things = NOTHING | {
        "job_id": running,
        "operation_id": operation,
        "delivery_id": f"{running}-1",
    }
    return Belongings(things, {running, keyed, operation}, {"secret-"})


@pytest.fixture
def tenants(share: FolderShare, callers: Callers) -> Tenants:
    return share.get("tenants", lambda: nullcontext(make_tenants(callers.server)))


def make_tenants(server: Server) -> Tenants:
    owner = server.key("acme", *ALL_SCOPES)
    return Tenants(make_belongings(server, owner), owner, server.key("other", *ALL_SCOPES))


def comparable(answer: httpx.Response, path: str) -> tuple[Any, ...]:
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name not in {"date", "x-request-id", "ratelimit"}
    }
    return answer.status_code, answer.text.replace(path, ""), headers


BODIES: dict[str, Any] = {
    "/jobs/{job_id}/events": {"type": "note", "payload": {}},
    **{
        f"/jobs/{{job_id}}/{verb}": {"lease_token": "0" * 36}
        for verb in ("start", "heartbeat", "progress", "release", "defer")
    },
    "/jobs/{job_id}/complete": {"lease_token": "0" * 36, "result": 1},
    "/jobs/{job_id}/logs": {"lease_token": "0" * 36, "entries": [{"level": "info", "message": "x"}]},
    "/jobs/{job_id}/fail": {"lease_token": "0" * 36, "error": {"code": "x", "message": "y"}},
}


@pytest.mark.parametrize(
    "call",
    [each for each in CLOSED if "{" in each[1].path and not SERVER_WIDE.search(each[1].path)],
    ids=name_of,
)
def test_what_another_tenant_has_is_as_if_it_were_not(
    callers: Callers, tenants: Tenants, call: tuple[str, Route]
) -> None:
    method, route = call
    belongings, owner, stranger = tenants.belongings, tenants.owner, tenants.stranger
    before = callers.call("GET", f"/jobs/{belongings.things['job_id']}", owner)
    paths = path_of(route, belongings.things), path_of(route, NOTHING)
    more: dict[str, Any] = {"json": BODIES[route.path]} if route.path in BODIES else {}
    theirs, nobodys = (callers.call(method, path, stranger, **more) for path in paths)
    assert comparable(theirs, paths[0]) == comparable(nobodys, paths[1])
    if "job_id" in route.path:
        assert theirs.status_code in (404, 422), theirs.text
    after = callers.call("GET", f"/jobs/{belongings.things['job_id']}", owner)
    assert after.json()["seq"] == before.json()["seq"], "and nothing was done to it"


@pytest.mark.parametrize(
    "path",
    [
        route.path
        for method, route in CLOSED
        if method == "GET" and "{" not in route.path and not route.path.startswith(("/api", "/v1"))
    ],
)
def test_no_list_has_what_another_tenant_has(callers: Callers, tenants: Tenants, path: str) -> None:
    belongings = tenants.belongings
    answer = callers.call("GET", path, tenants.stranger)
    assert answer.status_code == 200, answer.text
    # Metrics are of the whole server, by queue and kind, whoever has named them.
    shown = answer.text.replace('kind="secret-kind"', "") if path == "/metrics" else answer.text
    assert not [word for word in belongings.ids | belongings.texts if word in shown]
