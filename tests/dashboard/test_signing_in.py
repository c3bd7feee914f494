"""Who gets in by which door, and that no other site gets anything done by a browser that is signed in."""

import httpx
import pytest

from app.api.routes import Access, Route
from app.identity.scopes import ALL_SCOPES, Scope
from app.main import PAGES
from tests.conftest import Server, wait_until
from tests.dashboard.visitor import FORM, Visitor, text_of
from tests.identity.test_route_matrix import NOTHING, path_of

CLOSED = [route for route in PAGES if route.scope is not Access.OPEN]
THINGS = {**NOTHING, "group": "nothing", "number": "1"}


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_only_these_are_open() -> None:
    is_open = {route.path for route in PAGES if route.scope is Access.OPEN}
    assert {path for path in is_open if not path.startswith("/ui/static/")} == {"/ui/sign-in"}


@pytest.mark.parametrize("route", CLOSED, ids=name_of)
def test_without_a_session_every_page_leads_to_where_one_signs_in(guarded: Server, route: Route) -> None:
    path = path_of(route, THINGS)
    headers = {"accept": "text/event-stream" if route.stream else "text/html"}
    for cookies in ({}, {"foreman_session": "no-such-session"}, {"foreman_session": guarded.admin_key}):
        with httpx.Client(base_url=guarded.url, cookies=cookies) as client:
            answer = client.request(route.method, path, headers=headers)
        assert answer.status_code == 303, answer.text
        assert answer.headers["location"].startswith("/ui/sign-in?next=%2F")


@pytest.mark.parametrize("route", CLOSED, ids=name_of)
def test_a_page_asks_for_the_scope_that_it_declares(guarded: Server, route: Route) -> None:
    path = path_of(route, THINGS)
    for scope in ALL_SCOPES if isinstance(route.scope, Scope) else ():
        if scope is route.scope or route.stream:
            continue
        with guarded.client(guarded.key("default", scope)) as client:
            answer = client.request(route.method, path, headers={"accept": "text/html"})
        assert answer.status_code == 403, (scope, answer.text)
        assert str(route.scope) in answer.text


def test_signing_in_leads_back_to_the_page_that_was_asked_for(guarded: Server, stranger: Visitor) -> None:
    answer = stranger.http.get("/ui/workers?x=1")
    assert answer.headers["location"] == "/ui/sign-in?next=%2Fui%2Fworkers%3Fx%3D1"
    stranger.get(answer.headers["location"])
    answer = stranger.post("/ui/sign-in", {"key": guarded.admin_key, "next": "/ui/workers?x=1"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/ui/workers?x=1"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert guarded.admin_key not in cookie
    assert "Workers" in stranger.get("/ui/workers")


@pytest.mark.parametrize(
    "elsewhere",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "/ui/\\..//evil", "javascript:x"],
)
def test_signing_in_leads_nobody_elsewhere(guarded: Server, stranger: Visitor, elsewhere: str) -> None:
    stranger.get("/ui/sign-in")
    answer = stranger.post("/ui/sign-in", {"key": guarded.admin_key, "next": elsewhere})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/ui"


def test_a_wrong_key_is_told_what_is_wrong_with_it(stranger: Visitor) -> None:
    stranger.get("/ui/sign-in")
    for key in ("", "something", "fmn_" + "0" * 36, "ключ", "x" * 5000):
        answer = stranger.post("/ui/sign-in", {"key": key})
        assert answer.status_code == 401
        assert "API key" in text_of(answer.text)
        assert "foreman_session" not in answer.headers.get("set-cookie", "")


def test_signing_out_ends_the_session_for_whoever_has_the_cookie(guarded: Server, admin: Visitor) -> None:
    admin.get("/ui/workers")
    token = admin.http.cookies["foreman_session"]
    assert admin.post("/ui/sign-out").status_code == 303
    stolen = httpx.get(f"{guarded.url}/ui/workers", cookies={"foreman_session": token})
    assert stolen.status_code == 303


def test_a_session_ends_with_its_key(guarded: Server, stranger: Visitor) -> None:
    with guarded.client() as root:
        made = root.post("/keys", json={"name": "short", "scopes": ["admin:read"]}).json()
        stranger.sign_in(made["key"])
        stranger.get("/ui/workers")
        root.delete(f"/keys/{made['key_id']}")
    wait_until(lambda: stranger.http.get("/ui/workers").status_code == 303, 30)


def test_a_session_is_good_for_pages_alone(guarded: Server, admin: Visitor) -> None:
    """Another site may have a browser send the cookie along; the API must not listen to it."""
    for path in ("/jobs", "/queues", "/keys", "/api/tags", "/metrics"):
        assert admin.http.get(path).status_code == 401
    token = admin.http.cookies["foreman_session"]
    for scheme in ("Bearer", "Session", "Cookie"):
        answer = httpx.get(f"{guarded.url}/jobs", headers={"Authorization": f"{scheme} {token}"})
        assert answer.status_code == 401


def test_a_form_without_the_token_of_its_page_does_nothing(admin: Visitor, guarded: Server) -> None:
    admin.get("/ui/workers")
    for token in ("", "0" * 64, "ü"):
        answer = admin.post("/ui/sign-out", token=token)
        assert answer.status_code == 403
        assert "Reload" in answer.text
    other = Visitor(guarded.url)
    with other.http:
        other.sign_in(guarded.admin_key)
        other.get("/ui/workers")
    assert admin.post("/ui/sign-out", token=other.token).status_code == 403
    admin.get("/ui/workers")


def test_what_no_form_sends_is_refused(admin: Visitor) -> None:
    admin.get("/ui/workers")
    for body in (b"\xff\xfe", b"a", b"&".join(b"a=%d" % each for each in range(6000))):
        answer = admin.http.post("/ui/sign-out", content=body, headers=FORM)
        assert answer.status_code in (400, 403), answer.text


def test_without_authentication_other_sites_get_nothing_done(opened: Server, visitor: Visitor) -> None:
    visitor.get("/ui/workers")
    own = opened.url
    assert visitor.post("/ui/sign-out", Origin=own).status_code == 303
    for origin in ("https://evil.example", "http://localhost:1", "null"):
        answer = visitor.post("/ui/sign-out", Origin=origin)
        assert answer.status_code == 403
    assert visitor.http.get("/ui/workers", headers={"Host": "evil.example"}).status_code == 403


def test_an_open_page_whose_session_has_ended_is_told_so_and_not_led_into_its_own_region(
    stranger: Visitor,
) -> None:
    answer = stranger.http.get("/ui/workers", headers={"HX-Request": "true"})
    assert answer.status_code == 401
    assert answer.text == ""


def test_pages_are_sent_with_what_keeps_others_out_of_them(visitor: Visitor) -> None:
    answer = visitor.http.get("/ui/workers")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_browser_that_opens_the_address_sees_the_dashboard_and_ollama_clients_do_not(
    opened: Server,
) -> None:
    answer = httpx.get(opened.url, headers={"accept": "text/html,*/*"})
    assert answer.status_code == 307
    assert answer.headers["location"] == "/ui"
    assert httpx.get(opened.url).text == "Ollama is running"
