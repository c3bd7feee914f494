"""The overview: figures that lead to what explains them, charts, and what needs a person."""

import re
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.conftest import MakeServer, Server, wait_until
from tests.dashboard.visitor import Visitor, text_of


def test_an_overview_has_its_figures_charts_and_columns(visitor: Visitor) -> None:
    page = visitor.get("/ui")
    text = text_of(page)
    for label in ("waiting", "running", "done / min", "failed / min", "oldest waiting"):
        assert label in text
    assert page.count('class="chart"') == 4
    assert "Needs attention" in text
    assert "Running now" in text
    for address in ("/ui/jobs?state=queued", "/ui/jobs?state=done", "/ui/queues"):
        assert f'href="{address}"' in page


def test_the_window_stands_in_the_address_and_another_is_none(visitor: Visitor) -> None:
    for window in ("15m", "6h", "7d"):
        assert f'href="/ui?window={window}" aria-current="true"' in visitor.get(f"/ui?window={window}")
    visitor.get("/ui?window=1y", 404)


def test_a_new_server_teaches_how_to_fill_it(make_server: MakeServer) -> None:
    page = httpx.get(f"{make_server().url}/ui").text
    assert "Nothing has happened here yet" in page
    assert re.search(r"curl -s http://127\.0\.0\.1:\d+/jobs -d", page)
    assert "All well" in text_of(page)


def test_what_needs_a_person_is_said_on_every_page_with_what_to_do(opened: Server, visitor: Visitor) -> None:
    with httpx.Client(base_url=opened.url) as api:
        api.put("/queues/stopped", json={})
        api.post("/queues/stopped/pause")
        api.post("/jobs", json={"kind": "nobody-claims-this", "payload": {}})
        api.post("/jobs", json={"kind": "noop", "payload": {}, "queue": "stopped"})
    wait_until(lambda: "Queue stopped is paused" in text_of(visitor.get("/ui")), 60)
    text = text_of(visitor.get("/ui"))
    assert re.search(r"Nobody claims jobs of kind [^.]*nobody-claims-this", text)
    assert re.search(r"\d+ needs? attention", text_of(visitor.get("/ui/workers")))


def test_open_overviews_that_ask_together_are_given_the_same(opened: Server) -> None:
    def ask(_: int) -> str:
        answer = httpx.get(f"{opened.url}/ui", headers={"HX-Request": "true"}, timeout=60)
        assert answer.status_code == 200
        assert "csrf" not in answer.text, "it is for everybody"
        return answer.text

    with ThreadPoolExecutor(8) as threads:
        pages = set(threads.map(ask, range(16)))
    assert all('id="live"' in page for page in pages)
    assert len(pages) <= 3


def test_a_key_that_may_not_see_the_overview_is_led_to_what_it_may(
    guarded: Server, stranger: Visitor
) -> None:
    for scopes, address in ((("jobs:read",), "/ui/jobs"), (("jobs:work",), "/docs")):
        stranger.sign_in(guarded.key("default", *scopes))
        assert stranger.http.get("/ui").headers["location"] == address
        stranger.get(address)
        stranger.http.cookies.clear()
