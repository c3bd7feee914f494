"""/ui/jobs/{id}: one job, which explains itself."""

import html
import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.jobs.ids import new_id
from tests.conftest import Server, wait_until
from tests.dashboard.visitor import Visitor, text_of

HOSTILE = '<script>alert("1")</script>\'"&\u202eevil'
LATER = {"delay_seconds": 3600}
SVG = re.compile(r"<svg.*?</svg>", re.DOTALL)


class Caller:
    """Submits and works, by the API."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def submit(self, **fields: Any) -> str:
        answer = self.http.post(
            "/jobs", json={"kind": "noop", "queue": f"q-{uuid.uuid4().hex[:8]}", **fields}
        )
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job_id"])

    def chat(self, text: str, **fields: Any) -> str:
        options = {"echo_delay_ms": fields.pop("delay", 0), **fields.pop("options", {})}
        body = {"model": "echo", "messages": [{"role": "user", "content": text}], "options": options}
        return str(self.http.post("/jobs", json=body | fields).json()["job_id"])

    def wait(self, job_id: str) -> dict[str, Any]:
        job = dict(self.http.get(f"/jobs/{job_id}", params={"wait": 60}).json())
        assert job["completed_at"] is not None, job
        return job

    def claimed(self, **fields: Any) -> dict[str, Any]:
        kind = f"own-{uuid.uuid4().hex[:8]}"
        queue = f"q-{uuid.uuid4().hex[:8]}"
        self.submit(kind=kind, queue=queue, **fields)
        claim = {
            "worker": "tester",
            "queues": [queue],
            "kinds": [kind],
            "lease_seconds": 60,
            "wait_seconds": 30,
        }
        [job] = self.http.post("/claims", json=claim).json()["jobs"]
        return dict(job)

    def settle(self, job: dict[str, Any], verb: str, **fields: Any) -> None:
        body = {"lease_token": job["lease_token"], **fields}
        answer = self.http.post(f"/jobs/{job['job_id']}/{verb}", json=body)
        assert answer.status_code == 200, answer.text

    def failed(self, **fields: Any) -> str:
        job = self.claimed(**fields)
        self.settle(job, "fail", error={"code": "broken", "message": "it is broken"}, retryable=False)
        return str(job["job_id"])


@pytest.fixture
def caller(opened: Server) -> Iterator[Caller]:
    with httpx.Client(base_url=opened.url, timeout=60) as http:
        yield Caller(http)


def page_of(job_id: str) -> str:
    return f"/ui/jobs/{job_id}"


def actions_of(job_id: str) -> list[str]:
    """Where the forms of its page are sent to, below the page's own address."""
    own = ["cancel", "retry", "replay", "dismiss", "delete", "events"]
    return [*own, f"webhooks/{job_id}-1/redeliver"]


# -- what it shows -----------------------------------------------------------------------------------------


def test_a_job_that_is_done_shows_answer_payload_result_and_where_its_time_went(
    visitor: Visitor, caller: Caller
) -> None:
    job_id = caller.chat("Say *this*.\n\n- one", metadata={"customer": "acme"})
    caller.wait(job_id)
    page = visitor.get(page_of(job_id))
    assert "<em>this</em>" in page
    assert "<li>one</li>" in page
    text = text_of(page)
    for said in ("Done", "acme", '"done_reason": "stop"', "tokens a second", "completion", "Seq"):
        assert said in text, said
    assert 'data-nudges=""' in page, "nothing more will happen to it"
    assert "<style" not in page
    assert " style=" not in page


def test_the_answer_is_also_shown_as_it_is(visitor: Visitor, caller: Caller) -> None:
    job_id = caller.chat("Say *this*.")
    caller.wait(job_id)
    raw = visitor.get(f"{page_of(job_id)}?output=raw")
    assert "Say *this*." in raw
    assert "<em>" not in raw


def test_the_headline_says_why_it_waits(visitor: Visitor, caller: Caller) -> None:
    first = caller.submit(**LATER)
    page = visitor.get(page_of(caller.submit(depends_on=[first])))
    [headline] = re.findall(r"<h1>(.*?)</h1>", page)
    assert headline.startswith("Waiting: ")
    assert first in page
    assert f'data-nudges="/ui/jobs/{page.split("data-copy=")[1][1:27]}/nudges"' in page


def test_the_timeline_has_a_bar_for_each_attempt_that_can_be_reached_by_keyboard(
    visitor: Visitor, caller: Caller
) -> None:
    job_id = caller.chat("x", options={"echo_fail": "retryable"}, max_attempts=3, backoff_seconds=[0.05])
    caller.wait(job_id)
    page = visitor.get(page_of(job_id))
    bars = [each for each in SVG.findall(page) if 'class="run"' in each]
    assert len(bars) == 3
    for bar in bars:
        assert re.search(r'<rect tabindex="0" role="img" aria-label="working [^"]+ UTC" class="working"', bar)
    assert 'class="gap"' in bars[1]
    assert text_of(page).count("to be tried again") == 2


def test_progress_is_told_while_it_runs(visitor: Visitor, caller: Caller) -> None:
    job = caller.claimed()
    caller.settle(job, "progress", step="reading", message="page", current=3, total=4)
    page = visitor.get(page_of(job["job_id"]))
    assert "reading · page" in text_of(page)
    assert "3 of 4" in text_of(page)
    assert '<progress max="1" value="0.75"' in page
    assert "tester" in text_of(page)


def test_events_are_paged_from_either_end_and_output_is_left_out_unless_asked_for(
    visitor: Visitor, caller: Caller
) -> None:
    job = caller.claimed()
    for first in range(0, 60, 20):
        entries = [{"level": "info", "message": f"line {n}"} for n in range(first, first + 20)]
        caller.settle(job, "logs", entries=entries)
    newest = visitor.get(page_of(job["job_id"]))
    assert "line 59" in newest
    assert "line 0&#34;" not in newest
    [older] = re.findall(r'rel="next" href="([^"]+)#events"', newest)
    rest = visitor.get(html.unescape(older))
    assert "line 0&#34;" in rest
    assert "line 59" not in rest
    oldest = visitor.get(f"{page_of(job['job_id'])}?order=oldest")
    assert "line 0&#34;" in oldest
    assert "line 59" not in oldest


def test_the_family_is_drawn_and_leads_to_its_members(visitor: Visitor, caller: Caller) -> None:
    parent = caller.submit(**LATER)
    child = caller.submit(parent_id=parent, **LATER)
    page = visitor.get(page_of(parent))
    assert f'<a href="/ui/jobs/{child}" aria-label="child: ' in page
    assert "1 child: 1 queued." in text_of(page)
    assert f'<a href="/ui/jobs/{parent}" aria-label="parent: ' in visitor.get(page_of(child))


def test_large_payloads_and_results_are_cut_and_can_be_saved_whole(visitor: Visitor, caller: Caller) -> None:
    payload = {"text": "x" * 300_000}
    job = caller.claimed(payload=payload)
    caller.settle(job, "complete", result={"text": "y" * 2_000_000})
    page = visitor.get(page_of(job["job_id"]))
    assert len(page) < 100_000
    assert "This is the beginning of 300.0 kB." in text_of(page)
    assert "This is the beginning of 2.0 MB." in text_of(page)
    saved = visitor.http.get(f"{page_of(job['job_id'])}/payload")
    assert saved.json() == payload
    assert visitor.http.get(f"{page_of(job['job_id'])}/artifacts/result").json()["text"] == "y" * 2_000_000
    body = visitor.http.get(f"{page_of(job['job_id'])}/body").json()
    assert body["payload"] == payload


def test_what_the_address_asks_for_and_cannot_have_is_said(visitor: Visitor, caller: Caller) -> None:
    page = visitor.get(f"{page_of(caller.submit(**LATER))}?output=<b>&cursor=-1&x=y&order=oldest")
    assert "cannot show output=<b>, cursor=-1, x=y" in text_of(page)


# -- while it runs -----------------------------------------------------------------------------------------


def test_output_is_shown_as_it_comes_and_a_refresh_brings_neither_payload_nor_forms(
    visitor: Visitor, caller: Caller
) -> None:
    job_id = caller.chat("word " * 2000, delay=20)

    def said() -> int:
        page = visitor.get(page_of(job_id), 200, **{"HX-Request": "true"})
        assert 'id="payload"' not in page
        assert 'id="reason"' not in page
        assert len(page) < 100_000
        return "".join(re.findall(r'<span id="o-[^>]*>([^<]*)</span>', page)).count("word")

    first = wait_until(said)
    wait_until(lambda: said() > first)
    full = visitor.get(page_of(job_id))
    assert 'id="payload"' in full
    assert 'id="reason"' in full
    assert f'data-nudges="/ui/jobs/{job_id}/nudges"' in full
    assert "word word" in visitor.http.get(f"{page_of(job_id)}/output").text
    visitor.do(f"{page_of(job_id)}/cancel")
    caller.wait(job_id)
    assert "word word" in text_of(visitor.get(page_of(job_id))), "what it had said is still there"


def test_nudges_come_for_this_job_and_for_no_job_of_others(visitor: Visitor, caller: Caller) -> None:
    job_id = caller.submit(**LATER)
    with visitor.http.stream(
        "GET", f"{page_of(job_id)}/nudges", headers={"accept": "text/event-stream"}
    ) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "retry: 2000"
        caller.http.post(f"/jobs/{job_id}/events", json={"type": "hello"})
        assert "event: nudge" in lines


# -- what can be done --------------------------------------------------------------------------------------


def test_a_waiting_job_is_cancelled_with_a_reason(visitor: Visitor, caller: Caller) -> None:
    job_id = caller.submit(**LATER)
    visitor.get(page_of(job_id))
    said = visitor.do(f"{page_of(job_id)}/cancel", {"reason": f"not needed {HOSTILE}"})
    assert "The job is cancelled." in said
    assert caller.wait(job_id)["reason"] == f"not needed {HOSTILE}"
    done = caller.submit()
    caller.wait(done)
    assert "It had ended already." in visitor.do(f"{page_of(done)}/cancel")


def test_a_running_job_is_asked_to_stop(visitor: Visitor, caller: Caller) -> None:
    job = caller.claimed()
    visitor.get(page_of(job["job_id"]))
    assert "Its worker was asked to stop." in visitor.do(f"{page_of(job['job_id'])}/cancel")
    page = text_of(visitor.get(page_of(job["job_id"])))
    assert "Cancel asked for" in page


def test_a_reason_that_is_too_long_is_refused_and_kept(visitor: Visitor, caller: Caller) -> None:
    job_id = caller.submit(**LATER)
    visitor.get(page_of(job_id))
    answer = visitor.post(f"{page_of(job_id)}/cancel", {"reason": "r" * 501})
    assert answer.status_code == 422
    assert "r" * 501 in answer.text
    assert "reason" in text_of(answer.text)


def test_a_failed_job_is_revived_or_dismissed_or_deleted(visitor: Visitor, caller: Caller) -> None:
    job_id = caller.failed()
    page = visitor.get(page_of(job_id))
    assert "it is broken" in text_of(page)
    assert "The dead letter is queued again." in visitor.do(f"{page_of(job_id)}/replay")
    answer = visitor.post(f"{page_of(job_id)}/dismiss")
    assert answer.status_code == 303
    assert "Only a failed job is a dead letter" in text_of(visitor.get(answer.headers["location"]))
    another = caller.failed()
    visitor.get(page_of(another))
    assert "The job is queued again." in visitor.do(f"{page_of(another)}/retry")
    third = caller.failed()
    visitor.get(page_of(third))
    assert "dismissed" in visitor.do(f"{page_of(third)}/dismiss")
    gone = visitor.post(f"{page_of(third)}/delete")
    assert gone.headers["location"] == "/ui/jobs"
    assert caller.http.get(f"/jobs/{third}").status_code == 404


def test_a_job_that_has_not_ended_is_not_deleted(visitor: Visitor, caller: Caller) -> None:
    job_id = caller.submit(**LATER)
    visitor.get(page_of(job_id))
    assert "Only a job that has ended can be deleted" in visitor.do(f"{page_of(job_id)}/delete")


def test_an_event_is_posted_and_what_is_wrong_with_one_is_said_beside_what_was_typed(
    visitor: Visitor, caller: Caller
) -> None:
    job_id = caller.submit(**LATER)
    visitor.get(page_of(job_id))
    there = f"{page_of(job_id)}/events"
    assert "The event is posted." in visitor.do(there, {"type": "approved", "payload": '{"by": "me"}'})
    [event] = caller.http.get(f"/jobs/{job_id}/events", params={"types": "approved"}).json()["events"]
    assert event["data"] == {"by": "me"}
    for fields in (
        {"type": "approved", "payload": '{"by": '},
        {"type": "done", "payload": "1"},
        {"type": "", "payload": "{}"},
        {"type": "x", "payload": "1} , {"},
        {"type": "x", "payload": '1,"type":"y"'},
        {"type": "big", "payload": '"' + "x" * 70_000 + '"'},
    ):
        answer = visitor.post(there, fields)
        assert answer.status_code in {400, 422}, fields
        assert html.escape(fields["payload"]).replace("&quot;", "&#34;") in answer.text, fields["type"]
    visitor.do(f"{page_of(job_id)}/cancel")
    assert "has already ended" in visitor.do(there, {"type": "late"})


def test_deliveries_are_listed_and_sent_again(visitor: Visitor, caller: Caller) -> None:
    job_id = caller.submit(state_webhook_url="http://127.0.0.1:9/hook", **LATER)
    wait_until(lambda: "could not connect" in visitor.get(page_of(job_id)))
    page = visitor.get(page_of(job_id))
    assert "http://127.0.0.1:9/hook" in text_of(page)
    [again] = re.findall(r'action="([^"]+/redeliver)"', page)
    assert "The webhook is sent again." in visitor.do(again)
    assert visitor.post(f"{page_of(job_id)}/webhooks/{job_id}-99/redeliver").status_code == 404


def test_a_form_that_no_page_of_ours_sent_does_nothing(visitor: Visitor, caller: Caller) -> None:
    job_id = caller.submit(**LATER)
    visitor.get(page_of(job_id))
    for path in actions_of(job_id):
        assert visitor.post(f"{page_of(job_id)}/{path}", token="0" * 64).status_code == 403
    assert caller.http.get(f"/jobs/{job_id}").json()["state"] == "queued"


# -- whom it lets -------------------------------------------------------------------------------------------


def test_an_unknown_job_and_that_of_another_tenant_are_not_there(
    guarded: Server, stranger: Visitor, visitor: Visitor
) -> None:
    assert "no such job" in text_of(visitor.get(page_of(new_id()), 404))
    visitor.get("/ui/jobs/nonsense", 404)
    with guarded.client() as http:
        job_id = Caller(http).submit(**LATER)
    stranger.sign_in(guarded.key("another", "jobs:read", "jobs:write", "admin:read", "admin:write"))
    stranger.get("/ui/workers")
    for path in ("", "/payload", "/body", "/output", "/artifacts/result", "/nudges"):
        stranger.get(page_of(job_id) + path, 404)
    for path in actions_of(job_id):
        assert stranger.post(f"{page_of(job_id)}/{path}", {"type": "x"}).status_code == 404, path
    with guarded.client() as http:
        assert http.get(f"/jobs/{job_id}").json()["state"] == "queued"


def test_who_may_only_read_is_offered_no_action_and_refused_each(guarded: Server, stranger: Visitor) -> None:
    with guarded.client() as http:
        job_id = Caller(http).submit(**LATER)
    stranger.sign_in(guarded.key("default", "jobs:read"))
    page = stranger.get(page_of(job_id))
    assert 'id="reason"' not in page
    assert "Your key may look, but not act" in text_of(page)
    for path in actions_of(job_id):
        assert stranger.post(f"{page_of(job_id)}/{path}").status_code == 403, path
    stranger.sign_in(guarded.key("default", "jobs:write"))
    stranger.get(page_of(job_id), 403)


def test_who_may_not_replay_a_dead_letter_may_still_retry_the_job(guarded: Server, stranger: Visitor) -> None:
    with guarded.client() as http:
        job_id = Caller(http).failed()
    stranger.sign_in(guarded.key("default", "jobs:read", "jobs:write"))
    page = stranger.get(page_of(job_id))
    assert f'action="{page_of(job_id)}/retry"' in page
    assert f'action="{page_of(job_id)}/replay"' not in page
    assert stranger.post(f"{page_of(job_id)}/replay").status_code == 403
    assert "queued again" in stranger.do(f"{page_of(job_id)}/retry")


# -- what others wrote --------------------------------------------------------------------------------------


def test_hostile_texts_are_shown_harmless_wherever_they_stand(visitor: Visitor, caller: Caller) -> None:
    job = caller.claimed(
        payload={HOSTILE: [HOSTILE, "\u0001", "a" * 10_000]},
        metadata={"k": HOSTILE},
        state_webhook_url="http://127.0.0.1:9/<script>",
    )
    caller.settle(job, "progress", message=HOSTILE, step=HOSTILE)
    caller.settle(job, "logs", entries=[{"level": "error", "message": HOSTILE}])
    caller.http.post(f"/jobs/{job['job_id']}/events", json={"type": "x", "payload": HOSTILE})
    page = visitor.get(page_of(job["job_id"]))
    assert "<script>alert" not in page
    assert "alert(&#34;1&#34;)&lt;/script&gt;" in page
    caller.settle(job, "fail", error={"code": HOSTILE, "message": HOSTILE}, retryable=False)
    page = visitor.get(page_of(job["job_id"]))
    assert "<script>alert" not in page
    shown = re.sub(r'data-copy="[^"]*"', "", page)
    assert "\u202e" not in shown, "nothing turns the rest of the page around"
    copied = [html.unescape(each) for each in re.findall(r'data-copy="(curl[^"]*)"', page)]
    assert HOSTILE in json.dumps(copied, ensure_ascii=False).replace("\\\\", "\\") or "evil" in copied[0]


def test_an_answer_with_markup_and_links_runs_nothing(visitor: Visitor, caller: Caller) -> None:
    job_id = caller.chat(f"{HOSTILE} [x](javascript:alert(1)) ![y](https://evil.example/z.png)")
    caller.wait(job_id)
    page = visitor.get(page_of(job_id))
    assert "<script>alert" not in page
    assert 'href="javascript:' not in page
    assert "<img" not in page


def test_a_hostile_artifact_is_saved_and_never_a_page_of_ours(visitor: Visitor, caller: Caller) -> None:
    job = caller.claimed()
    evil = b"<script>alert(document.cookie)</script>"
    put = caller.http.put(
        f"/jobs/{job['job_id']}/artifacts/evil.html",
        content=evil,
        headers={"content-type": "text/html", "x-foreman-lease-token": job["lease_token"]},
    )
    assert put.status_code == 201, put.text
    assert "evil.html" in text_of(visitor.get(page_of(job["job_id"])))
    saved = visitor.http.get(f"{page_of(job['job_id'])}/artifacts/evil.html")
    assert saved.content == evil
    assert saved.headers["content-disposition"] == 'attachment; filename="evil.html"'
    assert saved.headers["x-content-type-options"] == "nosniff"
    assert any(
        each.startswith("sandbox")
        for each in saved.headers.get_list("content-security-policy", split_commas=True)
    )
    part = visitor.http.get(f"{page_of(job['job_id'])}/artifacts/evil.html", headers={"range": "bytes=1-6"})
    assert (part.status_code, part.content) == (206, b"script")
    visitor.get(f"{page_of(job['job_id'])}/artifacts/nothing", 404)


def test_a_job_nested_as_deep_as_one_may_be_is_shown(visitor: Visitor, caller: Caller) -> None:
    nested: Any = []
    for _ in range(58):
        nested = [nested]
    visitor.get(page_of(caller.submit(payload={"deep": nested}, **LATER)))


def test_a_long_log_costs_a_page_no_more_than_a_short_one(visitor: Visitor, caller: Caller) -> None:
    job = caller.claimed()
    for n in range(30):
        caller.settle(job, "logs", entries=[{"level": "info", "message": f"{n} {i}"} for i in range(100)])
    page = visitor.get(page_of(job["job_id"]))
    assert len(page) < 60_000
    assert "29 99" in page
