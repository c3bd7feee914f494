"""What a screen reader meets: axe finds nothing serious on any page, light or dark."""

from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser

from app.dashboard.navigation import PAGES
from tests.browser.conftest import Watched
from tests.conftest import Server, wait_until

SERIOUS = {"serious", "critical"}


def found_on(watched: Watched, path: str) -> list[str]:
    watched.page.goto(path)
    results: dict[str, Any] = Axe().run(watched.page).response
    return [
        f"{each['id']}: {each['help']}: {node['html'][:160]}"
        for each in results["violations"]
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(chromium: Browser, opened: Server, scheme: str) -> None:
    job = httpx.post(f"{opened.url}/jobs", json={"kind": "noop", "payload": {}, "queue": "seen"}).json()
    wait_until(lambda: httpx.get(f"{opened.url}/jobs/{job['job_id']}").json()["state"] == "done", 60)
    more = [f"/ui/jobs/{job['job_id']}", "/ui/queues/seen", "/ui/submit", "/docs", "/ui/nothing"]
    watched = Watched(chromium, opened, color_scheme=scheme)
    found = {path: found_on(watched, path) for path in [entry.address for entry in PAGES] + more}
    # The browser itself says that the last of them is a 404.
    watched.problems.clear()
    watched.close()
    assert {path: problems for path, problems in found.items() if problems} == {}


def test_axe_finds_nothing_serious_where_one_signs_in(chromium: Browser, guarded: Server) -> None:
    watched = Watched(chromium, guarded)
    assert found_on(watched, "/ui/sign-in") == []
    watched.close()
