"""The dashboard as a person uses it, in a real browser."""

import re
import uuid

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from app.dashboard.navigation import PAGES
from tests.browser.conftest import Watched
from tests.conftest import Server, wait_until

SIGN_IN = re.compile(r".*/ui/sign-in\?next=.*")


def submitted(server: Server, **job: object) -> str:
    answer = httpx.post(f"{server.url}/jobs", json=job)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job_id"])


def state_of(server: Server, job_id: str) -> str:
    return str(httpx.get(f"{server.url}/jobs/{job_id}").json()["state"])


def kind() -> str:
    """One that no other test uses."""
    return f"kind-{uuid.uuid4().hex[:10]}"


def dead_letter(server: Server, of_kind: str) -> str:
    """By a worker over HTTP that gives up on it."""
    job_id = submitted(server, kind=of_kind, payload={})
    wanted = {"worker": "tester", "kinds": [of_kind], "wait_seconds": 30}
    [claimed] = httpx.post(f"{server.url}/claims", json=wanted, timeout=60).json()["jobs"]
    error = {"code": "broken", "message": "It broke."}
    body = {"lease_token": claimed["lease_token"], "error": error, "retryable": False}
    assert httpx.post(f"{server.url}/jobs/{job_id}/fail", json=body).status_code == 200
    return job_id


def confirm(page: Page) -> None:
    page.locator("#confirm").get_by_role("button").last.click()


def test_a_newcomer_who_opens_the_address_sees_the_product(page: Page) -> None:
    page.goto("/")
    expect(page).to_have_title("Overview · Foreman")
    expect(page.get_by_role("figure")).to_have_count(4)


def test_every_page_is_reached_from_the_menu_and_by_its_keys(page: Page) -> None:
    page.goto("/ui/jobs")
    menu = page.get_by_role("navigation", name="Pages")
    for entry in PAGES:
        menu.get_by_role("link", name=entry.label, exact=True).click()
        expect(page.locator("nav.pages a[aria-current]")).to_have_text(entry.label)
        expect(page.locator("h1")).to_have_count(1)
    for entry in PAGES:
        page.keyboard.press("g")
        page.keyboard.press(entry.key)
        expect(page.locator("nav.pages a[aria-current]")).to_have_text(entry.label)


def test_a_job_is_submitted_from_the_page_its_tokens_arrive_and_it_is_cancelled(
    page: Page, opened: Server
) -> None:
    page.goto("/ui/submit")
    page.get_by_label("Model").fill("llama3.2")
    page.get_by_label("Message", exact=True).fill(" ".join(f"word{n}" for n in range(400)))
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile(r".*/ui/jobs/[0-9A-Z]{26}"))
    job_id = page.url.rpartition("/")[2]
    said = page.locator("#said")
    # Word by word, while it works: what comes later is not there yet.
    expect(said).to_contain_text("word2")
    assert state_of(opened, job_id) == "working"
    before = said.inner_text()
    expect(said).not_to_have_text(before)
    expect(said).not_to_contain_text("word399")
    expect(page.locator("h1")).to_contain_text("Working")
    page.get_by_role("button", name="Cancel").first.click()
    if page.locator("#confirm").is_visible():
        confirm(page)
    expect(page.locator("#live .crumb")).to_contain_text("cancelled")
    wait_until(lambda: state_of(opened, job_id) == "cancelled", 60)


def test_a_dead_letter_is_replayed(page: Page, opened: Server) -> None:
    name = kind()
    job_id = dead_letter(opened, name)
    page.goto("/ui/dead-letters")
    expect(page.locator("main")).to_contain_text(name)
    page.goto(f"/ui/jobs/{job_id}")
    expect(page.locator("h1")).to_contain_text("Failed")
    page.get_by_role("button", name=re.compile("Retry|Replay")).first.click()
    if page.locator("#confirm").is_visible():
        confirm(page)
    expect(page.locator("#live .crumb")).to_contain_text("queued")
    assert state_of(opened, job_id) == "queued"


def test_many_dead_letters_are_dismissed_together_after_a_dry_run(page: Page, opened: Server) -> None:
    name = kind()
    jobs = [dead_letter(opened, name) for _ in range(3)]
    page.goto(f"/ui/jobs?state=failed&kind={name}")
    expect(page.locator("tr[data-href]")).to_have_count(3)
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("[data-chosen]")).to_have_text("2")
    every = page.locator(".bulk form").last
    every.locator("select").select_option("dismiss") if every.locator("select").count() else None
    every.get_by_role("button").last.click()
    # Says how many before anything is done.
    expect(page.locator("main")).to_contain_text("3")
    assert {state_of(opened, each) for each in jobs} == {"failed"}
    page.locator("main form button.primary, main form button.danger").first.click()
    if page.locator("#confirm").is_visible():
        confirm(page)
    wait_until(lambda: {state_of(opened, each) for each in jobs} == {"dismissed"}, 60)


def test_a_queue_is_paused_and_resumed_and_says_so_elsewhere_by_itself(
    watched: Watched, page: Page, opened: Server
) -> None:
    name = f"queue-{uuid.uuid4().hex[:8]}"
    assert httpx.put(f"{opened.url}/queues/{name}", json={}).status_code == 201
    onlooker = watched.context.new_page()
    onlooker.goto(f"/ui/queues/{name}")
    page.goto(f"/ui/queues/{name}")
    page.get_by_role("switch").click()
    if page.locator("#confirm").is_visible():
        confirm(page)
    expect(page.locator("main")).to_contain_text(re.compile("paused", re.IGNORECASE))
    assert httpx.get(f"{opened.url}/queues/{name}").json()["paused"]
    # Nobody has touched the other page.
    expect(onlooker.locator("main")).to_contain_text(re.compile("paused", re.IGNORECASE))
    # What was done can be taken back where it is said.
    page.locator(".notice form button").click()
    wait_until(lambda: not httpx.get(f"{opened.url}/queues/{name}").json()["paused"], 60)


def test_a_list_that_is_read_does_not_move_when_jobs_come(page: Page, opened: Server) -> None:
    name = kind()
    submitted(opened, kind=name, payload={})
    page.goto(f"/ui/jobs?kind={name}")
    expect(page.locator("tr[data-href]")).to_have_count(1)
    submitted(opened, kind=name, payload={})
    arrivals = page.locator(".arrivals")
    expect(arrivals).to_contain_text("1 new")
    expect(page.locator("tr[data-href]")).to_have_count(1)
    arrivals.get_by_role("link").click()
    expect(page.locator("tr[data-href]")).to_have_count(2)


def test_signing_in_and_out(chromium: Browser, guarded: Server) -> None:
    watched = Watched(chromium, guarded)
    page = watched.page
    page.goto("/ui/queues?x=1")
    expect(page).to_have_url(SIGN_IN)
    page.get_by_label("API key").fill("fmn_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not an API key")
    # The browser itself says that the answer was a 401.
    watched.problems.clear()
    page.get_by_label("API key").fill(guarded.admin_key)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile(r".*/ui/queues\?x=1"))
    cookies = {each["name"]: each for each in watched.context.cookies()}
    assert cookies["foreman_session"]["httpOnly"]
    assert cookies["foreman_session"]["sameSite"] == "Lax"
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(SIGN_IN)
    page.goto("/ui/jobs")
    expect(page).to_have_url(SIGN_IN)
    watched.close()


def test_an_open_page_whose_session_ends_leads_to_where_one_signs_in(
    chromium: Browser, guarded: Server
) -> None:
    watched = Watched(chromium, guarded)
    with guarded.client() as admin:
        made = admin.post("/keys", json={"name": "brief", "scopes": ["admin:read", "jobs:read"]}).json()
        watched.page.goto("/ui/sign-in")
        watched.page.get_by_label("API key").fill(made["key"])
        watched.page.get_by_role("button", name="Sign in").click()
        watched.page.goto("/ui/workers")
        admin.delete(f"/keys/{made['key_id']}")
    expect(watched.page).to_have_url(re.compile(r".*/ui/sign-in\?next=%2Fui%2Fworkers"))
    watched.problems.clear()
    watched.close()


def test_light_and_dark_by_the_system_and_by_the_person(chromium: Browser, opened: Server) -> None:
    watched = Watched(chromium, opened, color_scheme="dark")
    page = watched.page
    page.goto("/ui/jobs")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.keyboard.press("t")
    light = page.evaluate(background)
    assert light != dark
    page.goto("/ui/queues")
    assert page.evaluate(background) == light, "it is remembered"
    watched.close()


@pytest.mark.parametrize("path", [entry.address for entry in PAGES] + ["/ui/submit", "/docs"])
def test_on_a_phone_nothing_is_wider_than_the_screen(chromium: Browser, opened: Server, path: str) -> None:
    watched = Watched(chromium, opened, viewport={"width": 390, "height": 844}, is_mobile=True)
    watched.page.goto(path)
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= 390
    watched.close()


def test_the_keyboard_is_explained_and_leads_to_the_search(page: Page) -> None:
    page.goto("/ui/jobs")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Search jobs")).to_be_focused()
    page.keyboard.type("echo")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r".*/ui/jobs\?q=echo"))


def test_a_page_of_a_server_that_is_away_says_so_and_comes_back_by_itself(
    chromium: Browser, make_server: object
) -> None:
    server: Server = make_server()  # type: ignore[operator]
    watched = Watched(chromium, server)
    page = watched.page
    page.goto("/ui/workers")
    server.kill()
    expect(page.locator("#away")).to_be_visible()
    server.start()
    expect(page.locator("#away")).to_be_hidden()
    watched.problems.clear()
    watched.close()


def test_without_script_everything_but_being_live_works(chromium: Browser, opened: Server) -> None:
    watched = Watched(chromium, opened, java_script_enabled=False)
    page = watched.page
    page.goto("/ui/submit")
    page.get_by_role("radio", name="No-op").check(force=True)
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile(r".*/ui/jobs/[0-9A-Z]{26}"))
    page.goto("/ui/queues")
    expect(page.locator("h1")).to_have_text("Queues")
    watched.close()
