"""/ui/workers: who is about and what each has, and what nobody claims."""

import re
import uuid
from typing import Any

import asyncpg
import httpx
import pytest

from app.identity.scopes import ALL_SCOPES, Scope
from tests.conftest import Server, wait_until
from tests.dashboard.visitor import Visitor, text_of

HOSTILE = "<script>alert('w')</script>\"&\u202e" + "w" * 100


@pytest.fixture
def person(guarded: Server, stranger: Visitor, tenant: str) -> Visitor:
    """Who looks at the same tenant."""
    stranger.sign_in(guarded.key(tenant, Scope.ADMIN_READ, Scope.JOBS_READ))
    return stranger


def claim(caller: httpx.Client, worker: str, **more: Any) -> list[dict[str, Any]]:
    """And wait until it is written down who asked."""
    answer = caller.post("/claims", json={"worker": worker, **more})
    assert answer.status_code == 200, answer.text
    wait_until(lambda: any(each["name"] == worker for each in caller.get("/workers").json()["workers"]))
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


def submit(caller: httpx.Client, kind: str, count: int = 1) -> None:
    answer = caller.post("/jobs/batch", json={"jobs": [{"kind": kind, "payload": {}}] * count})
    assert answer.status_code == 202, answer.text


def row_of(page: str, worker: str) -> str:
    found = [row for row in re.findall(r"<tr data-row.*?</tr>", page, re.DOTALL) if worker in text_of(row)]
    assert len(found) == 1, text_of(page)
    return str(found[0])


def test_a_worker_is_shown_with_what_it_claims_and_what_it_has(caller: httpx.Client, person: Visitor) -> None:
    submit(caller, "render", 7)
    jobs = claim(caller, "studio", kinds=["render", "cut"], limit=7, concurrency=9, version="2.4")
    row = row_of(person.get("/ui/workers"), "studio")
    said = text_of(row)
    for part in ("● here", "over HTTP", "7 of 9", "default", "render, cut", "2.4", "and 2 others"):
        assert part in said, part
    shown = re.findall(r'href="/ui/jobs/(\w+)"', row)
    assert shown == [each["job_id"] for each in jobs[:5]]
    assert 'href="/ui/jobs?worker=studio"' in row


def test_the_api_names_the_jobs_that_a_worker_has(caller: httpx.Client) -> None:
    submit(caller, "render", 2)
    [first] = claim(caller, "one", kinds=["render"])
    [second] = claim(caller, "two", kinds=["render"])
    known = {each["name"]: each for each in caller.get("/workers").json()["workers"]}
    assert {name: (each["running"], each["job_ids"]) for name, each in known.items()} == {
        "one": (1, [first["job_id"]]),
        "two": (1, [second["job_id"]]),
    }
    done = caller.post(f"/jobs/{first['job_id']}/complete", json={"lease_token": first["lease_token"]})
    assert done.status_code == 200, done.text
    known = {each["name"]: each for each in caller.get("/workers").json()["workers"]}
    assert (known["one"]["running"], known["one"]["job_ids"]) == (0, [])


def test_foremans_own_worker_is_told_apart(visitor: Visitor) -> None:
    def own() -> str:
        return text_of(visitor.get("/ui/workers"))

    said = wait_until(lambda: text if "of Foreman" in (text := own()) else "")
    assert re.search(r"process \d+ of Foreman", said)
    assert "http, noop, chat and 3 others" in said
    assert "Write a worker" in said


async def age(server: Server, tenant: str) -> None:
    connection = await asyncpg.connect(server.database_url)
    try:
        await connection.execute(
            "UPDATE workers SET last_seen_at = now() - interval '10 minutes' WHERE tenant = $1", tenant
        )
    finally:
        await connection.close()


async def test_who_was_not_seen_for_long_is_gone_unless_it_has_a_job(
    guarded: Server, caller: httpx.Client, person: Visitor, tenant: str
) -> None:
    submit(caller, "render")
    claim(caller, "a-idle", kinds=["other"])
    claim(caller, "b-busy", kinds=["render"], lease_seconds=3600)
    await age(guarded, tenant)
    page = person.get("/ui/workers")
    assert "○ gone" in text_of(row_of(page, "a-idle"))
    assert "10 min ago" in text_of(row_of(page, "a-idle"))
    assert "◑ busy" in text_of(row_of(page, "b-busy"))
    assert page.index("b-busy") < page.index("a-idle"), "those that are gone come last"
    assert "1 worker is about, with 1 job between them. 1 other was seen within a day." in text_of(page)


def test_kinds_that_nobody_claims_are_named_until_somebody_does(
    caller: httpx.Client, person: Visitor
) -> None:
    submit(caller, "lonely", 2)
    page = person.get("/ui/workers")
    assert "Nobody claims these" in text_of(page)
    assert 'href="/ui/jobs?state=queued&amp;kind=lonely&amp;queue=default"' in page
    assert '@worker.task("lonely")' in text_of(page)
    claim(caller, "friend", kinds=["lonely"])
    # What is known of workers is remembered for a moment.
    wait_until(lambda: "Nobody claims these" not in text_of(person.get("/ui/workers")))


def test_a_page_without_workers_teaches_to_write_one(guarded: Server, person: Visitor) -> None:
    said = text_of(person.get("/ui/workers"))
    assert "No worker has been seen within a day." in said
    assert f'worker = Worker("{guarded.url}", api_key="fmn_…") @worker.task("greet")' in said


def test_names_of_workers_are_shown_as_text(caller: httpx.Client, person: Visitor) -> None:
    claim(caller, HOSTILE, version=HOSTILE, queues=[f"q{number}" for number in range(100)])
    page = person.get("/ui/workers")
    assert "<script>alert" not in page
    assert HOSTILE in text_of(page)
    assert "q0, q1, q2 and 97 others" in text_of(page)


def test_workers_of_other_tenants_are_not_seen(
    guarded: Server, caller: httpx.Client, person: Visitor
) -> None:
    name = f"theirs-{uuid.uuid4().hex}"
    with guarded.client(guarded.key(f"t-{uuid.uuid4().hex[:12]}", *ALL_SCOPES)) as other:
        submit(other, "theirs-alone")
        claim(other, name, kinds=["other"])
    page = person.get("/ui/workers")
    assert name not in page
    assert "theirs-alone" not in page


def test_of_many_workers_the_first_hundred_are_shown(caller: httpx.Client, person: Visitor) -> None:
    for number in range(103):
        assert caller.post("/claims", json={"worker": f"w{number:03}"}).status_code == 200
    wait_until(lambda: len(caller.get("/workers").json()["workers"]) == 103)
    page = person.get("/ui/workers")
    assert page.count("<tr data-row") == 100
    assert "Show all 103" in text_of(page)
    assert person.get("/ui/workers?all=1").count("<tr data-row") == 103


def test_an_unknown_filter_is_said_so(person: Visitor) -> None:
    assert "quue: is not a known filter" in text_of(person.get("/ui/workers?quue=a", 422))
