"""/ui/schedules: when they run, what came of it, and changing that."""

import re
import uuid
from typing import Any

import httpx
import pytest

from tests.conftest import Server, wait_until
from tests.dashboard.visitor import Visitor, text_of

YEARLY = "0 0 1 1 *"
JOB = {"kind": "nobody-runs-this", "payload": {}}


@pytest.fixture
def name() -> str:
    return f"s-{uuid.uuid4().hex[:10]}"


def put(
    server: Server, name: str, cron: str = YEARLY, job: dict[str, Any] | None = None, **more: Any
) -> None:
    body = {"cron": cron, "job": job or JOB, **more}
    answer = httpx.put(f"{server.url}/schedules/{name}", json=body)
    assert answer.is_success, answer.text


def read(server: Server, name: str) -> httpx.Response:
    return httpx.get(f"{server.url}/schedules/{name}")


def test_a_schedule_is_shown_in_words_with_its_next_runs(opened: Server, visitor: Visitor, name: str) -> None:
    put(opened, name, "30 4 1 1 *", timezone="Europe/Berlin")
    text = text_of(visitor.get(f"/ui/schedules?q={name}"))
    assert f"{name} every year on 1 January at 04:30 30 4 1 1 * Europe/Berlin in" in text
    # By the clock of its zone, however far away.
    assert len(re.findall(r"1 Jan \d{4} 04:30", text)) == 4
    assert "none yet" in text
    page = visitor.get(f"/ui/schedules/{name}")
    assert len(re.findall(r"1 Jan \d{4} 04:30", text_of(page))) == 5
    assert "It has not run yet." in page


def test_what_came_of_the_last_ticks_is_shown_in_shape_and_words(
    opened: Server, visitor: Visitor, name: str
) -> None:
    assert httpx.put(f"{opened.url}/queues/{name}", json={"max_depth": 1}).is_success
    put(opened, name, "* * * * * *", JOB | {"queue": name})
    wait_until(lambda: len(read(opened, name).json()["last_ticks"]) >= 2, 30)
    put(opened, name, YEARLY, JOB | {"queue": name})
    page = visitor.get(f"/ui/schedules?q={name}")
    assert re.search(r'class="tick done" href="/ui/jobs/\w{26}" title="[^"]*accepted, its job was sub', page)
    assert re.search(r'class="tick failed" title="[^"]*queue full, no job was made: ', page)
    assert "✕ queue full" in text_of(visitor.get(f"/ui/schedules/{name}"))


def test_a_schedule_is_made_after_a_look_at_its_runs(opened: Server, visitor: Visitor, name: str) -> None:
    visitor.get("/ui/schedules/+new")
    typed = {"name": name, "cron": "0 3 * * 1-5", "timezone": "Europe/Berlin", "job": '{"kind": "x"}'}
    preview = visitor.post("/ui/schedules/+new", typed | {"step": "preview"})
    assert preview.status_code == 200
    assert "It would run Monday to Friday at 03:00:" in text_of(preview.text)
    assert len(re.findall(r"03:00</span>", preview.text)) == 5
    assert read(opened, name).status_code == 404
    assert f"{name} is made." in visitor.do("/ui/schedules/+new", typed | {"step": "save"})
    assert read(opened, name).json()["job"] == {"kind": "x"}
    assert visitor.post("/ui/schedules/+new", typed | {"step": "save"}).status_code == 422


@pytest.mark.parametrize(
    ("field", "typed", "said"),
    [
        ("cron", "0 25 * * *", "the hour &#39;25&#39; is wrong"),
        ("cron", "", "must have 5 fields"),
        ("cron", "<script> * * * *", "the minute"),
        ("cron", "0 0 30 2 *", "no such day"),
        ("timezone", "Berlin", "is not a known time zone"),
        ("timezone", "../../etc/passwd", "is not a known time zone"),
        ("job", "{", "is not JSON"),
        ("job", "", "is not JSON"),
        ("job", "[]", "must be an object"),
        ("job", '{"kind": "x", "priority": 1000}', "priority"),
        ("job", '{"kind": "x", "webhook_secret": "whsec_x"}', "webhook_secret"),
        ("job", '{"kind": "http", "payload": {"url": "http://169.254.169.254/"}}', "url"),
    ],
)
def test_what_is_wrong_is_told_at_its_field_and_what_was_typed_stays(
    opened: Server, visitor: Visitor, name: str, field: str, typed: str, said: str
) -> None:
    put(opened, name)
    visitor.get(f"/ui/schedules/{name}")
    fields = {"cron": YEARLY, "timezone": "Asia/Tokyo", "job": '{"kind": "other"}'} | {field: typed}
    answer = visitor.post(f"/ui/schedules/{name}", fields | {"step": "save"})
    assert answer.status_code == 422
    told = re.search(
        rf'id="f-{field}"[^>]*aria-invalid="true".*?<p id="h-{field}"[^>]*>(.*?)</p>', answer.text, re.DOTALL
    )
    assert told is not None
    assert said in told[1]
    assert "<script> *" not in answer.text
    if field != "timezone":
        assert 'value="Asia/Tokyo"' in answer.text
    assert read(opened, name).json()["job"] == JOB


def test_a_change_can_be_undone(opened: Server, visitor: Visitor, name: str) -> None:
    put(opened, name)
    visitor.get(f"/ui/schedules/{name}")
    fields = {"cron": "0 4 1 1 *", "timezone": "", "job": '{"kind": "other"}', "step": "save"}
    done = visitor.post(f"/ui/schedules/{name}", fields)
    page = visitor.get(done.headers["location"])
    assert f"{name} is changed." in page
    assert read(opened, name).json()["cron"] == "0 4 1 1 *"
    undo = re.search(r'<form method="post" action="(/ui/schedules/[\w-]+)">(.*?)</form>', page)
    assert undo is not None
    assert 'value="restore"' in undo[2]
    was = {"cron": YEARLY, "timezone": "UTC", "job": '{"kind": "nobody-runs-this", "payload": {}}'}
    assert f"{name} is as it was." in visitor.do(undo[1], was | {"step": "restore"})
    assert read(opened, name).json()["cron"] == YEARLY


def test_a_schedule_is_removed_and_put_back(opened: Server, visitor: Visitor, name: str) -> None:
    put(opened, name, job=JOB | {"metadata": {"note": '<b>"it\'s"</b>'}})
    before = read(opened, name).json()
    visitor.get(f"/ui/schedules/{name}")
    done = visitor.post(f"/ui/schedules/{name}/delete", {})
    page = visitor.get(done.headers["location"])
    assert f"{name} is removed." in page
    assert "Put it back" in page
    assert read(opened, name).status_code == 404
    undo = re.search(r'<form method="post" action="(/ui/schedules/[\w-]+)">(.*?)</form>', page)
    assert undo is not None
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', undo[2]))
    del fields["csrf"]
    plain = {key: httpx_unescape(value) for key, value in fields.items()}
    assert f"{name} is as it was." in visitor.do(undo[1], plain)
    assert read(opened, name).json()["job"] == before["job"]
    # Only what was taken away can be put back so.
    assert visitor.post(f"/ui/schedules/{name}x", plain | {"step": "save"}).status_code == 404


def httpx_unescape(text: str) -> str:
    import html

    return html.unescape(text)


def test_a_schedule_too_large_to_remember_is_removed_without_a_way_back(
    opened: Server, visitor: Visitor, name: str
) -> None:
    put(opened, name, job=JOB | {"payload": {"x": "y" * 5000}})
    visitor.get(f"/ui/schedules/{name}")
    said = visitor.do(f"/ui/schedules/{name}/delete")
    assert f"{name} is removed." in said
    assert "Put it back" not in said


def test_a_schedule_is_run_now_and_its_ticks_stay(opened: Server, visitor: Visitor, name: str) -> None:
    put(opened, name, job=JOB | {"queue": name})
    before = read(opened, name).json()
    visitor.get("/ui/schedules")
    said = visitor.do(f"/ui/schedules/{name}/run", {"back": f"/ui/schedules?q={name}"})
    assert f"The job of {name} was submitted once." in said
    [job] = httpx.get(f"{opened.url}/jobs", params={"queue": name}).json()["jobs"]
    assert job["metadata"] == {"schedule": name}
    assert job["job_id"] in said
    after = read(opened, name).json()
    assert (after["next_at"], after["last_ticks"]) == (before["next_at"], [])


def test_a_run_that_is_refused_says_why(opened: Server, visitor: Visitor, name: str) -> None:
    put(opened, name, job=JOB | {"queue": name})
    assert httpx.put(f"{opened.url}/queues/{name}", json={"max_depth": 1}).is_success
    visitor.get("/ui/schedules")
    visitor.do(f"/ui/schedules/{name}/run")
    assert "The queue is full" in visitor.do(f"/ui/schedules/{name}/run")
    assert len(httpx.get(f"{opened.url}/jobs", params={"queue": name}).json()["jobs"]) == 1


def test_schedules_of_another_tenant_are_not_there(guarded: Server, admin: Visitor, name: str) -> None:
    with guarded.client(guarded.key("other", "admin:read", "admin:write")) as http:
        assert http.put(f"/schedules/{name}", json={"cron": YEARLY, "job": JOB}).is_success
    assert name not in admin.get("/ui/schedules").replace("?q=", "")
    admin.get(f"/ui/schedules/{name}", 404)
    for action in ("", "/run", "/delete"):
        assert admin.post(f"/ui/schedules/{name}{action}", {"step": "save"}).status_code == 404


def test_who_may_only_read_is_offered_nothing_and_may_do_nothing(
    guarded: Server, stranger: Visitor, name: str
) -> None:
    with guarded.client() as http:
        assert http.put(f"/schedules/{name}", json={"cron": YEARLY, "job": JOB}).is_success
    stranger.sign_in(guarded.key("default", "admin:read"))
    page = stranger.get(f"/ui/schedules/{name}")
    assert "nobody-runs-this" in page
    assert "Run now" not in page
    assert "<textarea" not in page
    assert stranger.http.get("/ui/schedules/+new").status_code == 403
    for action in ("", "/run", "/delete"):
        assert stranger.post(f"/ui/schedules/{name}{action}", {}).status_code == 403


def test_no_schedule_is_no_empty_page(guarded: Server, stranger: Visitor) -> None:
    stranger.sign_in(guarded.key(f"t-{uuid.uuid4().hex[:8]}", "admin:read"))
    page = stranger.get("/ui/schedules?what=1")
    assert "Nothing is scheduled yet." in page
    assert "what is not a known filter." in page
    assert f"curl -X PUT {guarded.url}/schedules/nightly" in page
    assert "No schedule is like that" in stranger.get("/ui/schedules?q=x")


def test_a_schedule_that_is_not_there_has_no_page(visitor: Visitor) -> None:
    visitor.get("/ui/schedules")
    for path in ("nothing-of-this-name", "bad%20name"):
        visitor.get(f"/ui/schedules/{path}", 404)
        assert visitor.post(f"/ui/schedules/{path}/run").status_code == 404
