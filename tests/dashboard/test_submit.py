"""/ui/submit: a job from a form, by the same way as from a program."""

import html
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from app.embedded import EmbeddedPostgres
from app.jobs.ids import new_id
from tests.dashboard.job_pages import Visitor, shared_server, visiting
from tests.dashboard.visitor import text_of
from tests.sharing import FolderShare

WORK = {"form": "any", "kind": "work", "payload": '{"n": 1}', "queue": "default"}


@pytest.fixture
def visitor(
    share: FolderShare, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Visitor]:
    with visiting(shared_server(share, postgres, tmp_path_factory)) as visitor:
        yield visitor


def submitted(visitor: Visitor, **fields: str) -> dict[str, Any]:
    answer = visitor.send("/ui/submit", fields, visitor.open("/ui/submit"))
    assert answer.status_code == 303, text_of(answer.text)
    job: dict[str, Any] = visitor.http.get(answer.headers["location"].removeprefix("/ui")).json()
    return job


def test_a_chat(visitor: Visitor) -> None:
    page = visitor.open("/ui/submit")
    assert '<option value="echo">' in page, "what the inventory has is offered"
    job = submitted(
        visitor,
        form="chat",
        model="echo",
        message="Hello,\r\nForeman",
        system="Be brief.",
        more='{"options": {"temperature": 0.10}}',
        queue="talk",
        priority="-5",
        metadata="customer=acme\r\n\r\nteam = a=b ",
    )
    assert (job["kind"], job["model"], job["queue"], job["priority"]) == ("chat", "echo", "talk", -5)
    assert job["payload"]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello,\nForeman"},
    ]
    assert job["payload"]["options"] == {"temperature": 0.1}
    assert job["metadata"] == {"customer": "acme", "team": "a=b"}


def test_an_http_call(visitor: Visitor) -> None:
    job = submitted(
        visitor,
        form="http",
        method="POST",
        url=f"{visitor.server.url}/healthz",
        headers="Accept: text/plain\nX-Colour: a:b",
        body='{"a": 1}',
        timeout_seconds="2.5",
        delay_seconds="600",
        max_attempts="2",
        message="what another tab had is not sent along",
    )
    assert job["payload"] == {
        "method": "POST",
        "url": f"{visitor.server.url}/healthz",
        "headers": {"Accept": "text/plain", "X-Colour": "a:b"},
        "body": '{"a": 1}',
        "timeout_seconds": 2.5,
    }
    assert (job["kind"], job["max_attempts"], job["reason"]) == ("http", 2, "scheduled")


def test_a_noop_and_any_other_kind_as_it_was_typed(visitor: Visitor) -> None:
    assert submitted(visitor, form="noop")["kind"] == "noop"
    first = submitted(visitor, **WORK | {"payload": '{"n": 1.50,  "e": 1e3}'})
    raw = visitor.http.get(f"/jobs/{first['job_id']}").text
    assert '"payload":{"n": 1.50,  "e": 1e3}' in raw
    second = submitted(visitor, **WORK | {"payload": ""}, depends_on=first["job_id"])
    assert (second["payload"], second["reason"]) == ({}, "waiting_for")
    chat = submitted(visitor, form="any", kind="chat", payload='{"model": "echo", "messages": []}')
    assert (chat["kind"], chat["model"]) == ("chat", "echo")


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"payload": '{"n": 1'}, "payload", "This is not JSON"),
        ({"payload": "[1]"}, "payload", "must be a JSON object"),
        ({"payload": '{"n": NaN}'}, "payload", "NaN"),
        ({"kind": ""}, "kind", "is needed"),
        ({"kind": "a b"}, "kind", ""),
        ({"queue": "a b"}, "queue", ""),
        ({"priority": "high"}, "priority", "must be a number"),
        ({"priority": "1000"}, "priority", ""),
        ({"priority": "1.5"}, "priority", ""),
        ({"run_at": "soon"}, "run_at", ""),
        ({"run_at": "2026-01-31T12:00:00Z", "delay_seconds": "5"}, "delay_seconds", "not both"),
        ({"deadline_seconds": "0"}, "deadline_seconds", ""),
        ({"max_attempts": "0"}, "max_attempts", ""),
        ({"metadata": "no equals sign"}, "metadata", "is not of the form key=value"),
        ({"state_webhook_url": "ftp://example.com"}, "state_webhook_url", ""),
        ({"webhook_events": "done"}, "state_webhook_url", "is needed"),
        ({"depends_on": "not-an-id"}, "depends_on", "is not a job id"),
        ({"form": "chat", "model": "", "message": "x"}, "model", "is needed"),
        ({"form": "chat", "model": "m", "message": " "}, "message", "is needed"),
        (
            {"form": "chat", "model": "m", "message": "x", "more": '{"queue": "q"}'},
            "more",
            "a field for that",
        ),
        ({"form": "http", "url": ""}, "url", "is needed"),
        ({"form": "http", "url": "gopher://x"}, "url", ""),
        ({"form": "http", "url": "http://127.0.0.1:9/", "headers": "nonsense"}, "headers", "is not a header"),
        (
            {"form": "http", "url": "http://127.0.0.1:9/", "method": "GET", "body": "x"},
            "body",
            "cannot be sent",
        ),
        ({"kind": "chat", "payload": '{"messages": []}'}, "payload", ""),
        ({"kind": "chat", "payload": '{"model": "m", "queue": "q"}'}, "payload", "a field for that"),
        ({"idempotency_key": "k" * 300}, None, "Idempotency-Key must have"),
        ({"form": "strange"}, None, "Something is missing or wrong"),
    ],
)
def test_what_is_wrong_is_said_at_its_field_and_what_was_typed_is_kept(
    visitor: Visitor, fields: dict[str, str], field: str | None, words: str
) -> None:
    typed = WORK | {"metadata": "customer=<acme>"} | fields
    answer = visitor.send("/ui/submit", typed, visitor.open("/ui/submit"))
    assert answer.status_code == 422, text_of(answer.text)
    page = answer.text
    assert words in text_of(page)
    if field is not None:
        wrong = re.findall(r'<(?:input|textarea|select) id="f-(\w+)"[^>]*aria-invalid', page)
        assert wrong == [field]
    assert "customer=&lt;acme&gt;" in page or "metadata" in fields
    assert visitor.http.get("/jobs").json()["jobs"] == []


def test_a_busy_key_and_a_full_queue_are_told(visitor: Visitor) -> None:
    queue = f"full-{visitor.tenant}"
    visitor.http.put(f"/queues/{queue}", json={"max_depth": 1})
    submitted(visitor, **WORK | {"queue": queue})
    page = visitor.open("/ui/submit")
    answer = visitor.send("/ui/submit", WORK | {"queue": queue, "payload": '{"kept": true}'}, page)
    assert answer.status_code == 429
    assert "The queue is full" in text_of(answer.text)
    assert "{&#34;kept&#34;: true}" in answer.text


def test_an_idempotency_key_is_the_same_on_both_ways(visitor: Visitor) -> None:
    body = b'{"queue":"default","kind":"work","payload":{"n": 1}}'
    headers = {"Idempotency-Key": "once", "Content-Type": "application/json"}
    first = visitor.http.post("/jobs", content=body, headers=headers).json()["job_id"]
    page = visitor.open("/ui/submit")
    answer = visitor.send("/ui/submit", WORK | {"idempotency_key": "once"}, page)
    assert answer.headers["location"] == f"/ui/jobs/{first}"
    other = visitor.send("/ui/submit", WORK | {"idempotency_key": "once", "priority": "3"}, page)
    assert other.status_code == 422
    assert "was used with another request" in text_of(other.text)


def test_the_same_from_a_terminal(visitor: Visitor) -> None:
    page = visitor.open("/ui/submit")
    fields = WORK | {"payload": """{"it's": "$HOME `x`"}""", "show": "curl", "idempotency_key": "k1"}
    answer = visitor.send("/ui/submit", fields, page)
    assert answer.status_code == 200
    found = re.search(r'data-copy="(curl [^"]*)"', answer.text)
    assert found is not None
    command = shlex.split(html.unescape(found[1]))
    assert command[:2] == ["curl", f"{visitor.server.url}/jobs"]
    assert "Authorization: Bearer $FOREMAN_API_KEY" in command
    assert "Idempotency-Key: k1" in command
    body = command[command.index("--data-raw") + 1]
    assert json.loads(body) == {"queue": "default", "kind": "work", "payload": {"it's": "$HOME `x`"}}
    assert visitor.http.get("/jobs").json()["jobs"] == [], "only shown"
    assert visitor.http.post("/jobs", content=body).status_code == 202


def test_a_copy_of_a_job_with_changes(visitor: Visitor) -> None:
    job_id = visitor.submit(
        payload={"a": [1, 2]}, queue="reports", priority=7, max_attempts=2, metadata={"customer": "a=b"}
    )
    page = visitor.open(f"/ui/submit?from={job_id}")
    assert "A copy of" in text_of(page)
    assert "{\n  &#34;a&#34;: [\n    1,\n    2\n  ]\n}</textarea>" in page
    for value in ('value="work"', 'value="reports"', 'value="7"', 'value="2"', "customer=a=b</textarea>"):
        assert value in page, value
    assert '<input type="radio" name="form" value="any" checked>' in page
    visitor.open(f"/ui/submit?from={new_id()}", 404)
    visitor.open("/ui/submit?from=nonsense", 404)
    stranger = visitor.stranger().open(f"/ui/submit?from={job_id}", 404)
    assert "reports" not in stranger


def test_who_may_not_submit_or_not_read_is_not_let(visitor: Visitor) -> None:
    job_id = visitor.submit(payload={"secret": "word"})
    visitor.other("jobs:read").open("/ui/submit", 403)
    writer = visitor.other("jobs:write")
    page = writer.open("/ui/submit")
    assert "word" not in writer.open(f"/ui/submit?from={job_id}", 403)
    assert writer.send("/ui/submit", {"form": "noop"}, page).status_code == 303
    forged = writer.http.post("/ui/submit", data={"form": "noop", "csrf": "0" * 64})
    assert forged.status_code == 403
