"""/ui/queues: what it shows, what it changes, and what it shows before it changes anything."""

import re
import uuid
from typing import Any

import asyncpg
import httpx
import pytest

from tests.conftest import Server, wait_until
from tests.dashboard.visitor import Visitor, text_of

HOSTILE = ["<script>alert(1)</script>", "\"quoted' & <b>bold</b>", "\u202eltr\u202c", "x" * 900]


@pytest.fixture
def queue() -> str:
    return f"q-{uuid.uuid4().hex[:10]}"


def submit(server: Server, queue: str, payload: dict[str, Any] | None = None, **more: Any) -> str:
    body = {"kind": "nobody-runs-this", "queue": queue, "payload": payload or {}, **more}
    job_id: str = httpx.post(f"{server.url}/jobs", json=body).json()["job_id"]
    return job_id


def configure(server: Server, queue: str, **settings: Any) -> None:
    assert httpx.put(f"{server.url}/queues/{queue}", json=settings).is_success


def settings_of(server: Server, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/queues/{queue}").json()
    return found


def typed_in(page: str) -> dict[str, str]:
    """What the fields of a form hold."""
    fields = dict(re.findall(r'<input id="f-(\w+)" name="\w+" type="text" value="([^"]*)"', page))
    fields |= dict(re.findall(r'<textarea id="f-(\w+)"[^>]*>\n(.*?)</textarea>', page, re.DOTALL))
    for name, options in re.findall(r'<select id="f-(\w+)"[^>]*>(.*?)</select>', page):
        chosen = re.search(r'value="([^"]*)" selected', options)
        fields[name] = chosen[1] if chosen else ""
    return fields


def test_each_queue_is_shown_with_its_counts_and_its_settings_as_a_sentence(
    opened: Server, visitor: Visitor, queue: str
) -> None:
    configure(opened, queue, max_running=4, rate={"limit": 100, "per_seconds": 60}, fair_by="customer")
    submit(opened, queue)
    page = visitor.get(f"/ui/queues?q={queue}")
    assert f"{queue} at most 4 at once, 100 per minute, fair by customer" in text_of(page)
    assert 'aria-checked="true"' in page
    # Counts may be a moment old.
    link = f'href="/ui/jobs?state=queued&amp;queue={queue}">1</a>'
    wait_until(lambda: link in visitor.get(f"/ui/queues?q={queue}"))


def test_the_busiest_come_first_and_the_list_is_searched_and_filtered(
    opened: Server, visitor: Visitor, queue: str
) -> None:
    for name, jobs in (("idle", 0), ("few", 1), ("many", 3)):
        configure(opened, f"{queue}.{name}")
        for _ in range(jobs):
            submit(opened, f"{queue}.{name}")
    assert httpx.post(f"{opened.url}/queues/{queue}.few/pause").is_success

    def shown(query: str) -> list[str]:
        return re.findall(r'id="q-[\w-]+\.(\w+)"', visitor.get(f"/ui/queues?q={queue.upper()}{query}"))

    wait_until(lambda: shown("") == ["many", "few", "idle"])
    assert shown("&show=busy") == ["many", "few"]
    assert shown("&show=paused") == ["few"]
    assert "No queue is like that" in visitor.get("/ui/queues?q=nothing-has-this-name")


def test_what_cannot_be_asked_for_is_said_and_left_out(visitor: Visitor) -> None:
    text = text_of(visitor.get("/ui/queues?colour=red&show=blue&offset=-1&q=" + "x" * 200))
    assert "colour is not a known filter." in text
    assert "There is no part 'blue' of this list." in text
    assert "The offset is not a number of rows." in text
    assert "at most 128 characters" in text
    assert text_of(visitor.get("/ui/queues?offset=٣")).count("The offset is not a number") == 1


async def test_ten_thousand_queues_are_shown_page_by_page(opened: Server, visitor: Visitor) -> None:
    connection = await asyncpg.connect(opened.database_url)
    try:
        await connection.execute(
            "INSERT INTO queues (name) SELECT 'many-' || n FROM generate_series(1, 10000) AS n"
        )
        page = visitor.get("/ui/queues?q=many-")
        assert "1 to 50 of 10 000" in text_of(page)
        assert len(re.findall(r'id="q-many-\d+"', page)) == 50
        assert "offset=50" in page
        last = visitor.get("/ui/queues?q=many-&offset=9990")
        assert len(re.findall(r'id="q-many-\d+"', last)) == 10
        assert "offset=9940" in last
        assert "No queue is like that" in visitor.get("/ui/queues?q=many-&offset=20000")
    finally:
        await connection.execute("DELETE FROM queues WHERE name LIKE 'many-%'")
        await connection.close()


def test_a_queue_is_paused_and_resumed_by_its_switch(opened: Server, visitor: Visitor, queue: str) -> None:
    submit(opened, queue)
    visitor.get(f"/ui/queues/{queue}")
    said = visitor.do(f"/ui/queues/{queue}/pause", {"back": f"/ui/queues?q={queue}"})
    assert f"{queue} is paused: none of its jobs is given out." in said
    assert "Resume it" in said
    assert settings_of(opened, queue)["paused"] is True
    wait_until(lambda: "1 job waits; those that run go on." in text_of(visitor.get(f"/ui/queues/{queue}")))
    assert 'aria-checked="false"' in visitor.get(f"/ui/queues/{queue}")
    assert "gives out jobs again" in visitor.do(
        f"/ui/queues/{queue}/resume", {"back": "https://evil.example"}
    )
    assert settings_of(opened, queue)["paused"] is False


def test_who_paused_a_queue_is_told(guarded: Server, admin: Visitor, queue: str) -> None:
    key = guarded.key("default", "admin:read", "admin:write", name="night watch")
    with guarded.client(key) as http:
        assert http.put(f"/queues/{queue}", json={}).is_success
        assert http.post(f"/queues/{queue}/pause").is_success
    assert "by night watch" in text_of(admin.get(f"/ui/queues/{queue}"))
    assert "by night watch" in text_of(admin.get(f"/ui/queues?q={queue}"))


def test_a_change_is_shown_before_it_is_made_and_can_be_undone(
    opened: Server, visitor: Visitor, queue: str
) -> None:
    configure(opened, queue, max_running=4, rate={"limit": 10, "burst": 2}, retention={"done": 3600})
    fields = typed_in(visitor.get(f"/ui/queues/{queue}/settings"))
    assert (fields["max_running"], fields["rate_burst"], fields["retention_done"]) == ("4", "2", "1 h")

    wanted = fields | {"max_running": "8", "key": "zendesk\r\n/origin", "step": "review"}
    review = visitor.post(f"/ui/queues/{queue}/settings", wanted)
    assert review.status_code == 200
    text = text_of(review.text)
    assert "Running at once at most 4 at once → at most 8 at once" in text
    assert "Key no key → keyed by zendesk/{/origin} one at a time" in text
    assert "Rate" not in text
    assert settings_of(opened, queue)["max_running"] == 4

    sent = {"seen": re.search(r'name="seen" value="(\w+)"', review.text)[1], "step": "apply"}  # type: ignore[index]
    said = visitor.do(f"/ui/queues/{queue}/settings", wanted | sent)
    assert f"The settings of {queue} are changed." in said
    now = settings_of(opened, queue)
    assert (now["max_running"], now["key"]) == (8, ["zendesk", "/origin"])
    # What was not touched is as it was.
    assert (now["rate"], now["retention"]["done"]) == ({"limit": 10, "burst": 2}, 3600)

    page = visitor.do(f"/ui/queues/{queue}/settings/undo", {"settings": '{"max_running":4,"key":null}'})
    assert "are as they were" in page
    assert (settings_of(opened, queue)["max_running"], settings_of(opened, queue)["key"]) == (4, None)


def test_the_undo_of_a_change_is_in_its_message(opened: Server, visitor: Visitor, queue: str) -> None:
    configure(opened, queue, max_running=4)
    visitor.get(f"/ui/queues/{queue}/settings")
    review = visitor.post(f"/ui/queues/{queue}/settings", {"max_running": "5", "step": "review"}).text
    seen = re.search(r'name="seen" value="(\w+)"', review)
    assert seen is not None
    done = visitor.post(
        f"/ui/queues/{queue}/settings", {"max_running": "5", "step": "apply", "seen": seen[1]}
    )
    page = visitor.get(done.headers["location"])
    assert f'action="/ui/queues/{queue}/settings/undo"' in page
    assert "{&#34;max_running&#34;:4}" in page


def test_settings_that_somebody_changed_meanwhile_are_shown_anew(
    opened: Server, visitor: Visitor, queue: str
) -> None:
    configure(opened, queue, max_running=4)
    fields = typed_in(visitor.get(f"/ui/queues/{queue}/settings")) | {"max_running": "8"}
    review = visitor.post(f"/ui/queues/{queue}/settings", fields | {"step": "review"}).text
    seen = re.search(r'name="seen" value="(\w+)"', review)
    assert seen is not None
    configure(opened, queue, max_running=6)
    again = visitor.post(f"/ui/queues/{queue}/settings", fields | {"step": "apply", "seen": seen[1]})
    assert again.status_code == 200
    assert "Somebody changed these settings meanwhile" in again.text
    assert "at most 6 at once → at most 8 at once" in text_of(again.text)
    assert settings_of(opened, queue)["max_running"] == 6


def test_what_the_api_refuses_is_told_at_its_field_and_what_was_typed_stays(
    opened: Server, visitor: Visitor, queue: str
) -> None:
    configure(opened, queue, max_running=4)
    visitor.get(f"/ui/queues/{queue}/settings")
    wrong = {"max_running": "many", "fair_by": "<b>customer", "payload_schema": '{"type": "object"}'}
    answer = visitor.post(f"/ui/queues/{queue}/settings", wrong | {"step": "review"})
    assert answer.status_code == 422
    assert re.search(r'id="f-max_running"[^>]*value="many"[^>]*aria-invalid="true"', answer.text)
    assert re.search(r'<p id="h-max_running" class="help">expected an integer', answer.text)
    kept = typed_in(answer.text)
    assert kept["fair_by"] == "&lt;b&gt;customer"
    assert "object" in kept["payload_schema"]
    # Nor does a button that was never shown lead past the check.
    assert visitor.post(f"/ui/queues/{queue}/settings", wrong | {"step": "apply"}).status_code == 422
    assert settings_of(opened, queue)["max_running"] == 4


@pytest.mark.parametrize("settings", ["", "[]", "{", '{"max_running": "x"}', '{"max_running": 0}'])
def test_an_undo_that_nobody_offered_is_refused(
    opened: Server, visitor: Visitor, queue: str, settings: str
) -> None:
    configure(opened, queue, max_running=4)
    visitor.get(f"/ui/queues/{queue}")
    assert "well-formed but wrong" in visitor.do(f"/ui/queues/{queue}/settings/undo", {"settings": settings})
    assert settings_of(opened, queue)["max_running"] == 4


async def test_settings_of_a_newer_version_are_not_lost(opened: Server, visitor: Visitor, queue: str) -> None:
    configure(opened, queue, max_running=4)
    connection = await asyncpg.connect(opened.database_url)
    try:
        await connection.execute(
            """UPDATE queues SET settings = settings || '{"of_tomorrow": [1]}' WHERE name = $1""", queue
        )
        page = visitor.get(f"/ui/queues/{queue}/settings")
        assert "settings that this version does not know: of_tomorrow" in text_of(page)
        review = visitor.post(f"/ui/queues/{queue}/settings", {"max_running": "5", "step": "review"}).text
        seen = re.search(r'name="seen" value="(\w+)"', review)
        assert seen is not None
        visitor.do(f"/ui/queues/{queue}/settings", {"max_running": "5", "step": "apply", "seen": seen[1]})
        stored = await connection.fetchval("SELECT settings FROM queues WHERE name = $1", queue)
        assert '"of_tomorrow": [1]' in stored
        assert '"max_running": 5' in stored
    finally:
        await connection.close()


def test_a_queue_is_made_after_a_look_at_it(opened: Server, visitor: Visitor, queue: str) -> None:
    visitor.get("/ui/queues/+new")
    assert visitor.post("/ui/queues/+new", {"name": "no name!"}).status_code == 422
    review = visitor.post("/ui/queues/+new", {"name": queue, "max_depth": "10", "step": "review"})
    assert review.status_code == 200
    assert "any number may wait → at most 10 waiting" in text_of(review.text)
    assert httpx.get(f"{opened.url}/queues/{queue}").status_code == 404
    seen = re.search(r'name="seen" value="(\w+)"', review.text)
    assert seen is not None
    made = {"name": queue, "max_depth": "10", "step": "apply", "seen": seen[1]}
    assert f"{queue} is made." in visitor.do("/ui/queues/+new", made)
    assert settings_of(opened, queue)["max_depth"] == 10
    again = visitor.post("/ui/queues/+new", {"name": queue, "max_depth": "20", "step": "review"})
    assert again.status_code == 422
    assert "change those" in again.text


def test_busy_keys_are_shown_with_who_holds_them_and_a_holder_is_cancelled(
    opened: Server, visitor: Visitor, queue: str
) -> None:
    configure(opened, queue, key=["of", "/x"], max_queued=5)
    jobs = [submit(opened, queue, {"x": "a"}) for _ in range(3)]
    claimed = httpx.post(f"{opened.url}/claims", json={"worker": "w7", "queues": [queue]}).json()["jobs"]
    assert [job["job_id"] for job in claimed] == jobs[:1]
    text = text_of(visitor.get(f"/ui/queues/{queue}"))
    assert "Busy keys" in text
    assert "of/a 1 2" in text

    page = visitor.get(f"/ui/queues/{queue}/keys?key=of/a")
    text = text_of(page)
    assert "1 job holds this key, and 2 wait behind." in text
    assert "w7" in text
    assert page.index(jobs[0]) < page.index(jobs[1]) < page.index(jobs[2])

    cancel = {"job_id": jobs[1], "back": f"/ui/queues/{queue}/keys?key=of/a"}
    assert "The job is cancelled." in visitor.do(f"/ui/queues/{queue}/keys/cancel", cancel)
    asked = visitor.do(f"/ui/queues/{queue}/keys/cancel", cancel | {"job_id": jobs[0]})
    assert "Its worker was asked to stop." in asked
    for nothing in ("", "x" * 26, "01ARZ3NDEKTSV4RRFFQ69G5FAV"):
        assert "There is no such job" in visitor.do(
            f"/ui/queues/{queue}/keys/cancel", cancel | {"job_id": nothing}
        )


def test_keys_of_any_text_are_shown_as_they_are(opened: Server, visitor: Visitor, queue: str) -> None:
    configure(opened, queue, key=["/x"])
    for text in (*HOSTILE, "../..", "a//b", "?#&=%2F", " blank "):
        submit(opened, queue, {"x": text})
    page = visitor.get(f"/ui/queues/{queue}")
    assert "<script>alert(1)" not in page
    assert "<b>bold" not in page
    links = re.findall(r'href="(/ui/queues/[\w-]+/keys\?key=[^"]*)"', page)
    assert len(set(links)) == len(HOSTILE) + 4
    for link in set(links):
        assert "Nobody holds this key at the moment; 1 job waits." in text_of(
            visitor.get(link.replace("&amp;", "&"))
        )
    assert "Nobody holds this key, and nobody waits for it." in visitor.get(
        f"/ui/queues/{queue}/keys?key=nothing"
    )
    visitor.get(f"/ui/queues/{queue}/keys?key=%00", 404)
    visitor.get(f"/ui/queues/{queue}/keys?after=%00")


def test_many_busy_keys_are_shown_page_by_page(opened: Server, visitor: Visitor, queue: str) -> None:
    configure(opened, queue, key=["/x"])
    jobs = [{"kind": "nobody", "queue": queue, "payload": {"x": f"{n:03}"}} for n in range(150)]
    assert httpx.post(f"{opened.url}/jobs/batch", json={"jobs": jobs}).is_success
    assert "All busy keys" in visitor.get(f"/ui/queues/{queue}")
    first = visitor.get(f"/ui/queues/{queue}/keys")
    assert len(re.findall(r"<tr data-row", first)) == 100
    assert "after=099" in first
    second = visitor.get(f"/ui/queues/{queue}/keys?after=099")
    assert len(re.findall(r"<tr data-row", second)) == 50
    assert "Next" not in text_of(second)


def test_the_keys_of_another_tenant_are_not_shown(guarded: Server, admin: Visitor, queue: str) -> None:
    with guarded.client() as http:
        assert http.put(f"/queues/{queue}", json={"key": ["/x"]}).is_success
    job = {"kind": "nobody", "queue": queue}
    with guarded.client(guarded.key("other", "jobs:write")) as http:
        theirs = http.post("/jobs", json={**job, "payload": {"x": "theirs"}}).json()["job_id"]
    with guarded.client(guarded.key("default", "jobs:write")) as http:
        assert http.post("/jobs", json={**job, "payload": {"x": "ours"}}).is_success
    page = admin.get(f"/ui/queues/{queue}")
    assert "ours" in page
    assert "theirs" not in page
    assert "nobody waits for it" in admin.get(f"/ui/queues/{queue}/keys?key=theirs")
    assert "There is no such job" in admin.do(f"/ui/queues/{queue}/keys/cancel", {"job_id": theirs})


def test_who_may_only_read_is_offered_nothing_and_may_do_nothing(
    guarded: Server, stranger: Visitor, queue: str
) -> None:
    with guarded.client() as http:
        assert http.put(f"/queues/{queue}", json={"max_running": 4, "key": ["a"]}).is_success
    stranger.sign_in(guarded.key("default", "admin:read"))
    page = stranger.get(f"/ui/queues/{queue}")
    assert "Change settings" not in page
    assert 'role="switch"' not in page
    assert "New queue" not in stranger.get("/ui/queues")
    for path in ("/ui/queues/+new", f"/ui/queues/{queue}/settings"):
        assert stranger.http.get(path).status_code == 403
    for path in ("pause", "resume", "settings", "settings/undo", "keys/cancel"):
        assert stranger.post(f"/ui/queues/{queue}/{path}", {}).status_code == 403


def test_forms_of_other_sites_change_nothing(opened: Server, visitor: Visitor, queue: str) -> None:
    configure(opened, queue)
    visitor.get("/ui/queues")
    assert visitor.post(f"/ui/queues/{queue}/pause", token="0" * 64).status_code == 403
    assert settings_of(opened, queue)["paused"] is False


def test_a_queue_that_is_not_there_has_no_page(visitor: Visitor) -> None:
    visitor.get("/ui/queues")
    for path in ("nothing-of-this-name", "bad%20name", "nothing/settings", "nothing/keys"):
        visitor.get(f"/ui/queues/{path}", 404)
    for path in ("pause", "resume", "settings", "settings/undo"):
        assert visitor.post(f"/ui/queues/nothing-here/{path}", {}).status_code == 404


def test_counts_follow_by_themselves(opened: Server, visitor: Visitor, queue: str) -> None:
    """The open page asks for itself again, and is given only what changes."""
    configure(opened, queue)

    def partial() -> str:
        return visitor.http.get(f"/ui/queues/{queue}", headers={"hx-request": "true"}).text

    before = partial()
    assert 'id="live"' in before
    assert '<nav class="pages"' not in before
    submit(opened, queue)
    wait_until(lambda: ">1</span>" in partial())
