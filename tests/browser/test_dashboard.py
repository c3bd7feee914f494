"""The dashboard as a person uses it, in a real browser."""

import httpx
from playwright.sync_api import Page, expect

from app.dashboard.navigation import PAGES
from tests.conftest import Server, wait_until


def submitted(server: Server, **job: object) -> str:
    answer = httpx.post(f"{server.url}/jobs", json=job)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job_id"])


def ended(server: Server, **job: object) -> str:
    job_id = submitted(server, **job)
    wait_until(lambda: httpx.get(f"{server.url}/jobs/{job_id}").json()["completed_at"] is not None, 60)
    return job_id


def failed(server: Server, kind: str) -> str:
    """A dead letter, by a worker over HTTP."""
    job_id = submitted(server, kind=kind, payload={})
    claimed = httpx.post(
        f"{server.url}/claims", json={"worker": "test", "kinds": [kind], "wait_seconds": 30}
    ).json()
    token = claimed["jobs"][0]["lease_token"]
    body = {"lease_token": token, "error": {"code": "broken", "message": "It broke."}, "retryable": False}
    assert httpx.post(f"{server.url}/jobs/{job_id}/fail", json=body).status_code == 200
    return job_id


def test_a_newcomer_who_opens_the_address_sees_the_product(page: Page) -> None:
    page.goto("/")
    expect(page).to_have_title("Overview · Foreman")
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name="Jobs")).to_be_visible()


def test_every_page_is_reached_from_the_menu_and_by_its_key(page: Page) -> None:
    page.goto("/ui/jobs")
    for entry in PAGES:
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=entry.label, exact=True).click()
        expect(page.locator("nav.pages a[aria-current]")).to_have_text(entry.label)
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page).to_have_title("Queues · Foreman")
