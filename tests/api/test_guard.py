"""Without authentication, web pages of other origins and names that are not ours are refused."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.types import Scope

from app.api.guard import Foreign, Guard
from app.embedded import EmbeddedPostgres
from tests.api.conftest import problem_of
from tests.conftest import Server
from tests.serving import serving

EVIL = "https://evil.example"
CHAT = "https://chat.example"


def scope(method: str = "POST", path: str = "/jobs", **headers: str) -> Scope:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": path, "headers": raw, "http_version": "1.1"}


def is_refused(guard: Guard, asked: Scope) -> bool:
    said = dict(asked["headers"])
    try:
        guard.check(asked, said.get(b"host"), said.get(b"origin"), said.get(b"sec-fetch-site"))
    except Foreign:
        return True
    return False


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8080",
        "localhost.",
        "foreman.localhost:1",
        "127.0.0.1:8080",
        "127.9.8.7",
        "[::1]",
        "[::1]:8080",
        "jobs.example:8080",
        "JOBS.example",
        "127.0.0.1 ",
        "\tlocalhost:8080 \t",
    ],
)
def test_a_loopback_name_or_a_listed_one_is_ours(host: str) -> None:
    assert not is_refused(Guard(["jobs.example"]), scope(host=host))


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evillocalhost",
        "user@localhost",
        "evil.example/localhost",
        "localhost:8080:80",
        "localhost evil.example",
        "evil.example ",
        "local host",
        "2130706433",
        "127.1",
        "0.0.0.0",
        "[::]",
        "[::ffff:10.0.0.1]",
        "192.168.1.5",
        "other.jobs.example",
    ],
)
def test_any_other_name_is_not(host: str) -> None:
    guard = Guard(["jobs.example"])
    assert is_refused(guard, scope(host=host))
    assert is_refused(guard, scope("GET", "/jobs/x", host=host))
    # Health checks come by whatever name; nothing of a job is told there.
    assert not is_refused(guard, scope("GET", "/healthz", host=host))
    assert is_refused(guard, scope("POST", "/healthz", host=host))


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, False),
        ({"origin": "http://localhost:8080"}, False),
        ({"origin": "https://localhost:8080"}, False),
        ({"origin": "https://chat.example"}, False),
        ({"origin": "http://localhost:3000"}, True),
        ({"origin": "http://localhost"}, True),
        ({"origin": "http://127.0.0.1:8080"}, True),
        ({"origin": "https://evil.example"}, True),
        ({"origin": "https://chat.example.evil.example"}, True),
        ({"origin": "null"}, True),
        ({"origin": ""}, True),
        ({"sec_fetch_site": "none"}, False),
        ({"sec_fetch_site": "same-origin"}, False),
        ({"sec_fetch_site": "same-site"}, True),
        ({"sec_fetch_site": "cross-site"}, True),
        ({"sec_fetch_site": "cross-site", "origin": "https://chat.example"}, False),
        ({"sec_fetch_site": "cross-site", "origin": "https://evil.example"}, True),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_what_a_foreign_page_asks_for_is_refused(method: str, headers: dict[str, str], refused: bool) -> None:
    asked = scope(method, "/jobs/x", host="localhost:8080", **headers)
    assert is_refused(Guard(cors_origins=[CHAT]), asked) is refused


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({"origin": "http://localhost:8080 "}, False),
        ({"origin": CHAT + "\t"}, False),
        ({"origin": EVIL + " "}, True),
        ({"sec_fetch_site": "same-origin "}, False),
        ({"sec_fetch_site": "cross-site "}, True),
    ],
)
def test_blanks_around_a_value_are_not_part_of_it(headers: dict[str, str], refused: bool) -> None:
    asked = scope("GET", "/jobs/x", host="localhost:8080 ", **headers)
    assert is_refused(Guard(cors_origins=[CHAT]), asked) is refused


def test_the_greeting_and_health_are_open_to_everybody() -> None:
    for path in ("/", "/healthz", "/readyz", "/version"):
        assert not is_refused(Guard(), scope("GET", path, host="localhost", origin=EVIL))
        assert not is_refused(Guard(), scope("HEAD", path, host="localhost", sec_fetch_site="cross-site"))
    for path in ("/metrics", "/api/tags", "/usage", "/openapi.json", "/ui"):
        assert is_refused(Guard(), scope("GET", path, host="localhost", origin=EVIL))


def test_a_link_to_the_dashboard_can_be_followed_but_not_framed() -> None:
    visit = {"host": "localhost", "sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert not is_refused(Guard(), scope("GET", "/ui/jobs/x", sec_fetch_dest="document", **visit))
    assert is_refused(Guard(), scope("GET", "/ui/jobs/x", sec_fetch_dest="iframe", **visit))
    assert is_refused(Guard(), scope("POST", "/ui/jobs/x", sec_fetch_dest="document", **visit))
    assert is_refused(Guard(), scope("GET", "/jobs/x", sec_fetch_dest="document", **visit))
    assert is_refused(Guard(), scope("GET", "/uix", sec_fetch_dest="document", **visit))


@pytest.mark.parametrize("origin", ["http://localhost", CHAT])
@pytest.mark.parametrize(
    ("content_type", "refused"),
    [
        ("application/json", False),
        ("application/json; charset=utf-8", False),
        ("text/plain", True),
        ("Text/Plain;charset=UTF-8", True),
        ("application/x-www-form-urlencoded", True),
        ("multipart/form-data; boundary=x", True),
        (None, True),
    ],
)
def test_a_page_s_body_says_that_it_is_json(origin: str, content_type: str | None, refused: bool) -> None:
    headers = {"host": "localhost", "origin": origin, "content_length": "2"}
    if content_type is not None:
        headers["content_type"] = content_type
    assert is_refused(Guard(cors_origins=[CHAT]), scope(**headers)) is refused
    # Without a body there is nothing to be taken for something else.
    assert not is_refused(Guard(cors_origins=[CHAT]), scope(**{**headers, "content_length": "0"}))
    # And whoever is not a page may be lazy: this is what `curl -d` sends.
    del headers["origin"]
    assert not is_refused(Guard(), scope(**headers))


# -- over HTTP -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def open_to_chat(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(
        postgres,
        tmp_path_factory.mktemp("guard"),
        FOREMAN_ALLOWED_HOSTS="jobs.example, other.example",
        FOREMAN_CORS_ORIGINS=CHAT,
        FOREMAN_ROLE="api",
    ) as server:
        yield server


JOB: dict[str, Any] = {"kind": "noop"}


def test_a_page_cannot_submit_a_job_as_plain_text(client: httpx.Client) -> None:
    headers = {"origin": EVIL, "content-type": "text/plain", "sec-fetch-site": "cross-site"}
    problem_of(client.post("/jobs", json=JOB, headers=headers), 403, "forbidden")
    # As curl sends it, without an Origin.
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert client.post("/jobs", content=b'{"kind":"noop"}', headers=headers).status_code == 202


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/jobs"),
        ("POST", "/jobs/batch"),
        ("POST", "/claims"),
        ("POST", "/settlements"),
        ("GET", "/jobs"),
        ("GET", "/events"),
        ("GET", "/metrics"),
        ("PUT", "/queues/x"),
        ("PUT", "/targets/x"),
        ("DELETE", "/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        ("OPTIONS", "/jobs"),
        ("GET", "/nowhere"),
    ],
)
@pytest.mark.parametrize(
    "headers",
    [{"origin": EVIL}, {"sec-fetch-site": "cross-site"}, {"host": "rebound.example:8080"}],
    ids=["origin", "cross-site", "host"],
)
def test_nothing_is_done_or_told(
    client: httpx.Client, method: str, path: str, headers: dict[str, str]
) -> None:
    accept = {"accept": "text/event-stream"} if path == "/events" else {}
    problem_of(client.request(method, path, headers=headers | accept), 403, "forbidden")


def test_each_surface_refuses_in_its_own_shape(client: httpx.Client) -> None:
    ollama = client.post("/api/chat", json={"model": "echo"}, headers={"origin": EVIL})
    assert (ollama.status_code, type(ollama.json()["error"])) == (403, str)
    openai = client.post("/v1/chat/completions", json={"model": "echo"}, headers={"origin": EVIL})
    assert (openai.status_code, openai.json()["error"]["code"]) == (403, "forbidden")


def test_a_person_at_a_browser_gets_to_the_dashboard(client: httpx.Client) -> None:
    for site in ("none", "cross-site", "same-origin"):
        answer = client.get("/", headers={"accept": "text/html", "sec-fetch-site": site})
        assert (answer.status_code, answer.headers["location"]) == (307, "/ui")


def test_our_own_pages_may_do_all_that_they_say_is_json(client: httpx.Client, api: Server) -> None:
    headers = {"origin": api.url, "sec-fetch-site": "same-origin"}
    assert client.post("/jobs", json=JOB, headers=headers).status_code == 202
    refused = client.post(
        "/jobs", content=b'{"kind":"noop"}', headers=headers | {"content-type": "text/plain"}
    )
    problem_of(refused, 403, "forbidden")


def test_a_listed_origin_may_call_and_hears_the_answer(open_to_chat: Server) -> None:
    url = f"{open_to_chat.url}/jobs"
    headers = {"origin": CHAT, "sec-fetch-site": "cross-site"}
    asked = httpx.options(url, headers={**headers, "access-control-request-method": "POST"})
    assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, CHAT)
    answer = httpx.post(url, json=JOB, headers=headers)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (202, CHAT)
    assert httpx.post(url, json=JOB, headers={**headers, "origin": EVIL}).status_code == 403


def test_a_listed_name_is_ours(open_to_chat: Server) -> None:
    url = f"{open_to_chat.url}/jobs"
    assert httpx.post(url, json=JOB, headers={"host": "jobs.example:443"}).status_code == 202
    own = {"host": "jobs.example", "origin": "https://jobs.example"}
    assert httpx.post(url, json=JOB, headers=own).status_code == 202
    assert httpx.post(url, json=JOB, headers={"host": "evil.example"}).status_code == 403
