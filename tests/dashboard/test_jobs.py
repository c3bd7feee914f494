"""/ui/jobs: the list, its filters and search, and what is done to many of them."""

import asyncio
import re
from collections.abc import Iterator

import asyncpg
import pytest

from app.embedded import EmbeddedPostgres
from app.jobs.ids import new_id
from app.store.read import MAX_LOOKED
from tests.conftest import wait_until
from tests.dashboard.job_pages import (
    Visitor,
    csrf_of,
    hidden,
    links,
    rows,
    shared_server,
    visiting,
)
from tests.dashboard.visitor import text_of
from tests.sharing import FolderShare

HOSTILE = "<script>alert(1)</script>\"'><img src=x> \u202eevil"


@pytest.fixture
def visitor(
    share: FolderShare, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Visitor]:
    with visiting(shared_server(share, postgres, tmp_path_factory)) as visitor:
        yield visitor


def test_an_empty_list_teaches_how_to_fill_it(visitor: Visitor) -> None:
    page = visitor.open("/ui/jobs")
    assert "No job has been submitted yet" in page
    assert "curl http://127.0.0.1" in page
    assert "/ui/submit" in links(page)


def test_a_line_tells_what_a_job_is_and_how_it_fares(visitor: Visitor) -> None:
    waiting = visitor.submit(queue="reports", metadata={"customer": "acme", "team": "x"}, max_attempts=3)
    [failed] = visitor.fail(code="timeout", message="No answer.")
    page = visitor.open("/ui/jobs")
    assert rows(page) == [failed, waiting]
    text = text_of(page)
    assert "queued no worker" in text
    assert "0/3" in text
    # Whose key submitted it, and what it says of itself.
    assert "test customer acme" in text
    assert 'title="customer=acme\nteam=x"' in page
    assert 'title="No answer.">timeout</a>' in page
    assert f"/ui/jobs/{failed}" in links(page)


def test_newest_come_first_and_older_ones_by_a_link(visitor: Visitor) -> None:
    body = {"jobs": [{"kind": "work"}] * 60}
    ids = [each["job_id"] for each in visitor.http.post("/jobs/batch", json=body).json()["jobs"]]
    page = visitor.open("/ui/jobs")
    assert rows(page) == sorted(ids, reverse=True)[:50]
    [older] = [each for each in links(page) if "cursor=" in each]
    further = visitor.open(older)
    assert rows(further) == sorted(ids, reverse=True)[50:]
    assert "« Newest" in further


def test_filters_are_the_address(visitor: Visitor) -> None:
    a = visitor.submit(queue="a", metadata={"customer": "acme corp"})
    b = visitor.submit(queue="b", kind="other")
    chat = visitor.submit(kind="chat", model="m1", messages=[], delay_seconds=600)
    [failed] = visitor.fail(queue="c", code="out_of_memory")
    for query, found in {
        "queue=a": [a],
        "kind=other": [b],
        "model=m1": [chat],
        "metadata.customer=acme+corp": [a],
        "state=failed": [failed],
        "state=failed,queued&queue=c": [failed],
        "state=failed&state=queued&kind=work": [failed, a],
        "error=out_of_memory": [failed],
        "worker=w": [failed],
        "since=1h": [failed, chat, b, a],
        "until=1h": [],
        "since=2001-01-01&until=2001-02-01": [],
        f"id_prefix={a[:20].lower()}": [a] if a[:20] != b[:20] else [b, a],
    }.items():
        assert rows(visitor.open(f"/ui/jobs?{query}")) == found, query
    page = visitor.open("/ui/jobs?queue=a&metadata.customer=acme+corp")
    assert "/ui/jobs?queue=a" in links(page), "a chip is the list without it"
    assert "/ui/jobs?metadata.customer=acme+corp" in links(page)


def test_what_is_no_filter_is_said_and_the_rest_still_shown(visitor: Visitor) -> None:
    job_id = visitor.submit(queue="a")
    for query, words in {
        "color=red": "“color” is not a filter",
        "state=sleeping": "state=sleeping is none of the states",
        "since=yesterday": "since=yesterday is neither a time",
        "until=" + "9" * 400: "is neither a time",
        "cursor=nonsense": "The place to go on from is not one of ours",
        "id_prefix=hello": "must be the beginning of a job id",
        "kind=%00": "has a NUL character",
        "metadata_key=customer": "Which value of the metadata",
        "metadata.=x": "is not a filter",
    }.items():
        page = visitor.open(f"/ui/jobs?queue=a&{query}")
        assert words in text_of(page), query
        assert rows(page) == [job_id], query
    assert rows(visitor.open("/ui/jobs?queue=%ff%fe&since=999999d")) == []
    many = "&".join(f"metadata.k{number}=v" for number in range(2000))
    assert "more than 50 filters" in visitor.open(f"/ui/jobs?{many}")


def test_the_form_becomes_a_short_address(visitor: Visitor) -> None:
    visitor.submit(metadata={"customer": "acme"})
    answer = visitor.http.get("/ui/jobs?queue=&kind=work&since=&metadata_key=customer&metadata_value=acme")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/ui/jobs?kind=work&metadata.customer=acme"
    assert len(rows(visitor.open(answer.headers["location"]))) == 1


def test_a_search_finds_ids_kinds_models_and_metadata(visitor: Visitor) -> None:
    work = visitor.submit(metadata={"customer": "acme corp"})
    chat = visitor.submit(kind="chat", model="m2:q4", messages=[], delay_seconds=600)
    found = visitor.http.get(f"/ui/jobs?q={work.lower()}")
    assert (found.status_code, found.headers["location"]) == (303, f"/ui/jobs/{work}")
    assert set(rows(visitor.open(f"/ui/jobs?q={work[:8]}"))) == {work, chat}
    assert rows(visitor.open("/ui/jobs?q=m2:q4")) == [chat]
    assert "Model m2:q4" in text_of(visitor.open("/ui/jobs?q=m2:q4"))
    assert rows(visitor.open("/ui/jobs?q=work")) == [work]
    assert rows(visitor.open("/ui/jobs?q=chat")) == [chat]
    assert rows(visitor.open('/ui/jobs?q=customer="acme corp"')) == [work]
    assert rows(visitor.open("/ui/jobs?q=customer=acme")) == []
    assert "No job matches" in visitor.open(f"/ui/jobs?q={new_id()}")
    assert "One kind or model at a time" in visitor.open("/ui/jobs?q=work other")
    assert 'value="work"' in visitor.open("/ui/jobs?q=work"), "and the search stays to be read"
    for odd in ('"', "'", "=", "==", "%20", "a" * 5000):
        visitor.open("/ui/jobs", params={"q": f"x {odd}"})


def test_a_page_that_did_not_look_to_the_end_says_how_far_it_looked(visitor: Visitor) -> None:
    [rare] = visitor.fail(code="rare")
    asyncio.run(fill(visitor.server.database_url, visitor.tenant, MAX_LOOKED + 10))
    address = "/ui/jobs?error=rare"
    # How far it looks at once is a matter of time: on a quick machine it comes to the end at the first try.
    while not rows(page := visitor.open(address)):
        assert "There may be more before that" in page
        assert "Look further" in page
        [address] = [each for each in links(page) if "cursor=" in each]
    assert rows(page) == [rare]


async def fill(url: str, tenant: str, number: int) -> None:
    """So many jobs, newer than all there are, whose errors take long to read: one look takes longer than a page
    waits."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "INSERT INTO jobs (id, tenant, queue, lane, kind, state, payload, completed_at, history, error) "
            "SELECT '7' || lpad(n::text, 25, '0'), $1, 'filled', 'noop', 'noop', 'done', '{}', now(), '', "
            """'{"code":"common","message":"' || repeat('x', 15000) || '"}' FROM generate_series(1, $2::int) n""",
            tenant,
            number,
            timeout=600,
        )
    finally:
        await connection.close()


def again(page: str) -> str:
    """What the open page asks for when it is nudged."""
    found = re.search(r'id="live" hx-get="([^"]*)"', page)
    assert found is not None
    return found[1].replace("&amp;", "&")


def test_an_open_page_keeps_its_rows_and_announces_new_ones(visitor: Visitor) -> None:
    script = {"hx-request": "true"}
    shown = [visitor.submit() for _ in range(3)][::-1]
    page = visitor.open("/ui/jobs?state=queued")
    assert rows(page) == shown
    visitor.http.post(f"/jobs/{shown[0]}/cancel")
    visitor.http.post(f"/jobs/{shown[1]}/cancel")
    assert visitor.http.delete(f"/jobs/{shown[1]}").status_code == 204
    newer = [visitor.submit() for _ in range(2)]
    refreshed = visitor.open(again(page), headers=script)
    assert rows(refreshed) == shown, "in their places, whether they still match or not"
    assert "⊘ cancelled" in text_of(refreshed)
    assert "removed" in text_of(refreshed)
    assert '<a class="new" id="new-jobs" href="/ui/jobs?state=queued">2 new' in refreshed
    assert again(refreshed) == again(page)
    assert rows(visitor.open("/ui/jobs?state=queued")) == [*newer[::-1], shown[2]]


def test_an_older_page_announces_nothing(visitor: Visitor) -> None:
    visitor.http.post("/jobs/batch", json={"jobs": [{"kind": "work"}] * 60})
    first = visitor.open("/ui/jobs")
    [older] = [each for each in links(first) if "cursor=" in each]
    second = visitor.open(older)
    visitor.submit()
    assert "new-jobs" in visitor.open(again(first), headers={"hx-request": "true"})
    refreshed = visitor.open(again(second), headers={"hx-request": "true"})
    assert rows(refreshed) == rows(second)
    assert "new-jobs" not in refreshed


def test_counts_are_for_those_who_may_see_the_queues(visitor: Visitor) -> None:
    visitor.submit()
    reader = visitor.other("jobs:read")
    page = reader.open("/ui/jobs")
    assert len(rows(page)) == 1
    assert 'class="count"' not in page
    assert 'class="count"' in visitor.open("/ui/jobs")
    assert 'type="checkbox" name="job"' not in page, "nothing to choose for who may do nothing"
    assert "/ui/submit" not in links(page)


def test_only_keys_that_may_read_jobs_see_them_and_only_their_own(visitor: Visitor) -> None:
    job_id = visitor.submit()
    visitor.other("admin:read").open("/ui/jobs", 403)
    stranger = visitor.stranger()
    assert rows(stranger.open("/ui/jobs")) == []
    assert "No job matches" in stranger.open(f"/ui/jobs?q={job_id}")
    seen = stranger.open(f"/ui/jobs?shown={job_id}", headers={"hx-request": "true"})
    assert "removed" in text_of(seen)
    assert f"/ui/jobs/{job_id}" not in seen


def test_hostile_texts_are_shown_as_texts(visitor: Visitor) -> None:
    visitor.fail(code=HOSTILE, message=HOSTILE * 100, metadata={HOSTILE: HOSTILE + "x" * 1500})
    visitor.submit(kind="chat", model=HOSTILE + "m" * 400, messages=[], delay_seconds=600)
    for path in ("/ui/jobs", "/ui/dead-letters"):
        page = visitor.open(path)
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    page = visitor.open("/ui/jobs", params={"q": HOSTILE, "queue": HOSTILE, HOSTILE: HOSTILE})
    assert "<script>alert" not in page
    assert "<img" not in page


# -- chosen ones --------------------------------------------------------------------------------------------


def test_chosen_jobs_are_counted_before_anything_is_done(visitor: Visitor) -> None:
    queued = [visitor.submit() for _ in range(2)]
    [failed] = visitor.fail(queue="f")
    chosen = [("job", each) for each in [*queued, failed, new_id()]]
    page = visitor.open("/ui/chosen", params=[("action", "cancel"), ("back", "/ui/jobs?queue=x"), *chosen])
    text = text_of(page)
    assert "Cancel 2 jobs?" in text
    assert "2 ○ queued" in text
    assert "Left alone: 1 failed" in text
    assert "1 job of those chosen is not there any more" in text
    assert [visitor.state(each) for each in queued] == ["queued", "queued"]
    answer = visitor.send("/ui/chosen", hidden(page, "/ui/chosen"), page)
    assert answer.headers["location"] == "/ui/jobs?queue=x"
    assert "2 jobs cancelled." in visitor.follow(answer)
    assert [visitor.state(each) for each in (*queued, failed)] == ["cancelled", "cancelled", "failed"]


@pytest.mark.parametrize(
    ("action", "said", "becomes"),
    [
        ("retry", "2 jobs queued again.", "queued"),
        ("dismiss", "2 jobs dismissed.", "dismissed"),
        ("delete", "2 jobs deleted.", "gone"),
    ],
)
def test_chosen_dead_letters(visitor: Visitor, action: str, said: str, becomes: str) -> None:
    ids = visitor.fail(2)
    page = visitor.open("/ui/jobs")
    fields = [("action", action), *(("job", each) for each in ids)]
    assert said in visitor.follow(visitor.send("/ui/chosen", fields, page))
    assert [visitor.state(each) for each in ids] == [becomes, becomes]
    if action != "retry":
        again = visitor.follow(visitor.send("/ui/chosen", fields, page))
        assert "0 jobs" in again
        assert "2 jobs were left alone" in again


def test_running_ones_are_asked_to_stop(visitor: Visitor) -> None:
    visitor.submit()
    [job] = visitor.claim()
    page = visitor.open("/ui/jobs")
    answer = visitor.send("/ui/chosen", {"action": "cancel", "job": job["job_id"]}, page)
    assert "1 worker was asked to stop." in visitor.follow(answer)
    wait_until(lambda: visitor.state(job["job_id"]) == "cancelled")


def test_nothing_is_done_to_what_was_not_chosen_or_is_not_ones_own(visitor: Visitor) -> None:
    job_id = visitor.submit()
    page = visitor.open("/ui/jobs")
    back = visitor.http.get("/ui/chosen?action=cancel&back=https://elsewhere.example/")
    assert (back.status_code, back.headers["location"]) == (303, "/ui/jobs")
    assert visitor.http.get(f"/ui/chosen?action=explode&job={job_id}").status_code == 422
    assert visitor.send("/ui/chosen", {"action": "explode", "job": job_id}, page).status_code == 422
    forged = visitor.http.post("/ui/chosen", data={"action": "cancel", "job": job_id, "csrf": "0" * 64})
    assert forged.status_code == 403
    stranger = visitor.stranger()
    their = stranger.open("/ui/jobs")
    assert "0 jobs" in stranger.follow(
        stranger.send("/ui/chosen", {"action": "cancel", "job": job_id}, their)
    )
    assert visitor.state(job_id) == "queued"


def test_what_a_key_may_not_do_it_is_not_offered_and_not_let(visitor: Visitor) -> None:
    [failed] = visitor.fail()
    writer = visitor.other("jobs:read", "jobs:write")
    page = writer.open("/ui/jobs")
    assert 'value="retry"' in page
    assert 'value="dismiss"' not in page
    assert "/ui/bulk-operations/new" not in page
    assert writer.send("/ui/chosen", {"action": "dismiss", "job": failed}, page).status_code == 403
    writer.open("/ui/bulk-operations/new?action=retry", 403)
    assert writer.send("/ui/bulk-operations", {"action": "retry"}, page).status_code == 403
    reader = visitor.other("jobs:read")
    page = reader.open("/ui/jobs")
    assert reader.send("/ui/chosen", {"action": "retry", "job": failed}, page).status_code == 403
    assert visitor.state(failed) == "failed"


# -- all that match -----------------------------------------------------------------------------------------


def test_all_that_match_are_counted_by_state_then_done_with_progress(visitor: Visitor) -> None:
    [other] = visitor.fail(queue="other")
    for _ in range(3):
        visitor.submit(queue="many", metadata={"customer": "acme"})
    [running] = visitor.claim(queue="many")
    address = "/ui/jobs?queue=many&metadata.customer=acme"
    fields = hidden(visitor.open(address), "/ui/bulk-operations/new")
    page = visitor.open("/ui/bulk-operations/new", params=[("action", "cancel"), *fields])
    text = text_of(page)
    assert "Cancel 3 jobs?" in text
    assert "2 ○ queued" in text
    assert "1 ◔ loading" in text
    assert address in links(page), "and they can be looked at"
    done = visitor.send("/ui/bulk-operations", hidden(page, "/ui/bulk-operations"), page)
    assert done.status_code == 303
    path = done.headers["location"]
    wait_until(lambda: "done, 3 jobs" in text_of(visitor.open(path)))
    assert "customer acme" in text_of(visitor.open(path))
    assert visitor.state(other) == "failed"
    wait_until(lambda: visitor.state(running["job_id"]) == "cancelled")
    assert path in links(visitor.open("/ui/bulk-operations"))
    stopped = visitor.follow(visitor.send(f"{path}/stop", {}, page))
    assert "This operation is done already." in stopped


def test_a_filter_that_is_not_understood_is_never_left_out_of_an_operation(visitor: Visitor) -> None:
    job_id = visitor.submit()
    page = visitor.open("/ui/jobs")
    for query in ("color=red", "state=sleeping", "since=soon", "q=work", "kind=\0"):
        name, _, value = query.partition("=")
        refused = visitor.http.get("/ui/bulk-operations/new", params={"action": "cancel", name: value})
        assert refused.status_code == 422, query
        sent = visitor.send("/ui/bulk-operations", {"action": "cancel", name: value}, page)
        assert sent.status_code in {400, 422}, query
    assert visitor.http.get("/ui/bulk-operations/new?action=explode").status_code == 422
    assert visitor.state(job_id) == "queued"
    assert "/ui/bulk-operations/new" not in visitor.open("/ui/jobs?color=red"), "nor is one offered"


def test_an_operation_that_has_nothing_to_do_says_so(visitor: Visitor) -> None:
    visitor.submit()
    page = visitor.open("/ui/bulk-operations/new?action=retry&state=queued")
    assert "No job that matches can be queued again." in text_of(page)
    assert 'action="/ui/bulk-operations"' not in page
    sent = visitor.send("/ui/bulk-operations", {"action": "retry", "state": "queued"}, page)
    assert "retry works on jobs that are failed" in visitor.follow(sent)


def test_an_operation_of_another_tenant_is_not_there(visitor: Visitor) -> None:
    page = visitor.open("/ui/jobs")
    path = visitor.send("/ui/bulk-operations", {"action": "delete"}, page).headers["location"]
    stranger = visitor.stranger()
    stranger.open(path, 404)
    assert stranger.send(f"{path}/stop", {}, stranger.open("/ui/jobs")).status_code == 404
    stranger.open("/ui/bulk-operations/nonsense", 404)
    assert path not in stranger.open("/ui/bulk-operations")
    assert csrf_of(page)
