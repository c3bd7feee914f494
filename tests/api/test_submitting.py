"""POST /jobs: accepted at once, run, kept verbatim; what the fields and headers do."""

import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.jobs.ids import is_id
from tests.api.conftest import Submit, problem_of
from tests.patience import AT_ONCE

Read = Callable[..., dict[str, Any]]
CHAT = {"model": "echo", "messages": [{"role": "user", "content": "one two three"}]}


def test_a_submission_is_accepted_with_its_id_and_place(client: httpx.Client) -> None:
    answer = client.post("/jobs", json=CHAT)
    assert answer.status_code == 202
    assert answer.headers["content-type"] == "application/json"
    job_id = answer.json()["job_id"]
    assert answer.json() == {"job_id": job_id, "state": "queued", "outcome": "accepted"}
    assert is_id(job_id)
    assert answer.headers["location"] == f"/jobs/{job_id}"


def test_a_chat_ends_with_an_ollama_shaped_result_its_completion_and_its_usage(
    client: httpx.Client, read: Read
) -> None:
    job = read(client.post("/jobs", json=CHAT).json()["job_id"], wait=20)
    assert (job["state"], job["kind"], job["model"], job["attempt"]) == ("done", "chat", "echo", 1)
    result = job["result"]
    assert result["message"] == {"role": "assistant", "content": "one two three"}
    assert (result["model"], result["done"], result["done_reason"]) == ("echo", True, "stop")
    assert {"created_at", "total_duration", "prompt_eval_count", "eval_count", "eval_duration"} <= set(result)
    [artifact] = job["artifacts"]
    assert artifact == {
        "name": "completion",
        "content_type": "text/plain; charset=utf-8",
        "size": 13,
        "inline": "one two three",
    }
    assert job["usage"]["completion_tokens"] == 3
    assert job["error"] is None


def test_generate_and_embed_are_run_too(submit: Submit, read: Read) -> None:
    generated = read(submit(kind="generate", model="echo", prompt="a b"), wait=20)
    assert (generated["state"], generated["result"]["response"]) == ("done", "a b")
    embedded = read(submit(kind="embed", model="echo:latest", input=["x", "y"]), wait=20)
    assert len(embedded["result"]["embeddings"]) == 2
    assert embedded["artifacts"][0]["content_type"] == "application/json"


def test_a_model_that_nobody_has_fails_for_good(submit: Submit, read: Read) -> None:
    job = read(submit(kind="chat", model="no-such-model", messages=[]), wait=20)
    assert (job["state"], job["error"]["code"], job["attempt"]) == ("failed", "model_not_found", 1)


def test_payload_and_result_come_out_byte_for_byte(client: httpx.Client, queue: str) -> None:
    payload = (
        '{"z":1.00,"a":[1e2,-0,0.10],"big":%s,"s":"\\u00e9\\/\\ud83d\\ude00\\u0000","z":{"y":1,"x":2}}'
        % ("9" * 400)
    )
    body = f'{{"kind":"own-verbatim","queue":"{queue}","payload":{payload}}}'
    job_id = client.post("/jobs", content=body).json()["job_id"]
    assert f'"payload":{payload},' in client.get(f"/jobs/{job_id}").text
    [job] = client.post("/claims", json={"worker": "w", "queues": [queue], "kinds": ["own-verbatim"]}).json()[
        "jobs"
    ]
    finish = f'{{"lease_token":"{job["lease_token"]}","result":{payload}}}'
    assert client.post(f"/jobs/{job_id}/complete", content=finish).status_code == 200
    assert f'"result":{payload},' in client.get(f"/jobs/{job_id}").text


def test_a_chat_body_is_kept_without_our_own_fields_and_else_verbatim(
    client: httpx.Client, queue: str
) -> None:
    body = (
        f'{{"options":{{"temperature":0.70,"echo_delay_ms":0.0}},"model":"echo","queue":"{queue}","priority":5,'
        '"messages":[{"content":"h\\u00e9","role":"user"}],"made_up":{"b":1,"a":1E5}}'
    )
    job_id = client.post("/jobs", content=body).json()["job_id"]
    kept = (
        '{"options":{"temperature":0.70,"echo_delay_ms":0.0},"model":"echo",'
        '"messages":[{"content":"h\\u00e9","role":"user"}],"made_up":{"b":1,"a":1E5}}'
    )
    assert f'"payload":{kept},' in client.get(f"/jobs/{job_id}").text


def test_every_field_of_a_job_is_shown(submit: Submit, read: Read, queue: str) -> None:
    """Section 3 of the specification lists them."""
    job = read(
        submit(kind="own-kind", payload={"x": 1}, priority=-3, metadata={"user": "ann"}, max_attempts=7)
    )
    named = [
        "job_id",
        "kind",
        "queue",
        "state",
        "reason",
        # Nobody has asked for this kind.
        "reason_since",
        "priority",
        "model",
        "payload",
        "result",
        "error",
        "attempt",
        "max_attempts",
        "deferrals",
        "progress",
        "created_at",
        "run_at",
        "started_at",
        "completed_at",
        "updated_at",
        "deadline",
        "worker",
        "target",
        "lease_expires_at",
        "concurrency_key",
        "parent_id",
        "metadata",
        "artifacts",
        "trace",
        "timings",
        "queue_position",
        "seq",
        "usage",
    ]
    assert set(job) == set(named)
    assert (job["queue"], job["priority"], job["payload"], job["metadata"]) == (
        queue,
        -3,
        {"x": 1},
        {"user": "ann"},
    )
    assert (job["state"], job["attempt"], job["max_attempts"], job["seq"]) == ("queued", 0, 7, 1)
    assert (job["queue_position"], job["artifacts"], job["deferrals"]) == (1, [], 0)
    assert set(job["trace"]) == {"request_id", "traceparent", "tracestate"}
    assert set(job["timings"]) == {"queued_seconds", "loading_seconds", "working_seconds"}
    for moment in ("created_at", "run_at", "updated_at"):
        assert job[moment].endswith("Z")
        assert abs(datetime.fromisoformat(job[moment]) - datetime.now(UTC)) < timedelta(minutes=1)


def test_the_queue_position_tells_how_many_go_first(submit: Submit, read: Read) -> None:
    first, second, better = (
        submit(kind="own-kind"),
        submit(kind="own-kind"),
        submit(kind="own-kind", priority=1),
    )
    assert [read(job_id)["queue_position"] for job_id in (better, first, second)] == [1, 2, 3]


def test_a_job_of_another_kind_waits_for_its_workers(submit: Submit, read: Read) -> None:
    assert read(submit(kind="own-kind"), wait=0.3)["state"] == "queued"


def test_delay_and_run_at_hold_a_job_back_until_their_moment(submit: Submit, read: Read) -> None:
    began = time.monotonic()
    delayed = submit(delay_seconds=0.7)
    at = (datetime.now(UTC) + timedelta(seconds=0.7)).isoformat()
    timed = submit(run_at=at)
    waiting = read(delayed)
    assert (waiting["state"], waiting["reason"], waiting["queue_position"]) == ("queued", "scheduled", None)
    for job_id in (delayed, timed):
        assert read(job_id, wait=20)["state"] == "done"
    assert time.monotonic() - began > 0.5
    job = read(delayed)
    assert datetime.fromisoformat(job["started_at"]) >= datetime.fromisoformat(job["run_at"])
    assert job["timings"]["queued_seconds"] >= 0.6


def test_a_moment_that_has_passed_is_now(submit: Submit, read: Read) -> None:
    assert read(submit(run_at="2001-01-01T00:00:00+01:00"), wait=20)["state"] == "done"


def test_the_ends_of_time_are_shown_as_timestamps(submit: Submit, read: Read) -> None:
    job = read(submit(kind="own-kind", run_at="0001-01-01T00:00:00Z", deadline="9999-12-31T23:59:59.999999Z"))
    assert job["run_at"].startswith("0001-01-01T00:00:00")
    assert job["run_at"].endswith("Z")
    assert job["deadline"] == "9999-12-31T23:59:59Z"
    ahead = read(submit(kind="own-kind", run_at="9999-12-31T23:59:59.999999Z"))
    assert ahead["run_at"] == "9999-12-31T23:59:59Z"


@pytest.mark.parametrize("given", [{"deadline_seconds": 0.4}, {"deadline": "soon"}])
def test_a_job_that_misses_its_deadline_expires(given: dict[str, Any], submit: Submit, read: Read) -> None:
    if given.get("deadline"):
        given = {"deadline": (datetime.now(UTC) + timedelta(seconds=0.4)).isoformat()}
    job = read(submit(kind="own-kind", **given), wait=20)
    assert (job["state"], job["reason"]) == ("expired", "deadline")
    assert job["completed_at"] is not None


def test_a_running_job_that_misses_its_deadline_expires(submit: Submit, read: Read) -> None:
    slow = submit(
        kind="generate", model="echo", prompt="a " * 100, options={"echo_delay_ms": 300}, deadline_seconds=0.8
    )
    assert read(slow, wait=20)["state"] == "expired"


def test_an_attempt_that_takes_too_long_is_a_retry(submit: Submit, read: Read) -> None:
    job = read(
        submit(
            kind="generate",
            model="echo",
            prompt="a " * 100,
            options={"echo_delay_ms": 300},
            max_duration_seconds=0.3,
            max_attempts=2,
            backoff_seconds=0.05,
        ),
        wait=30,
    )
    assert (job["state"], job["attempt"], job["error"]["code"]) == ("failed", 2, "attempt_timeout")


# -- headers ---------------------------------------------------------------------------------------------


def test_prefer_wait_answers_with_the_whole_finished_job(client: httpx.Client) -> None:
    answer = client.post("/jobs", json=CHAT, headers={"Prefer": "wait=10"})
    assert answer.status_code == 200
    assert answer.headers["preference-applied"] == "wait=10"
    job = answer.json()
    assert (job["state"], job["result"]["message"]["content"]) == ("done", "one two three")
    assert answer.headers["location"] == f"/jobs/{job['job_id']}"


def test_prefer_wait_that_is_too_short_answers_as_if_it_had_not_been_said(client: httpx.Client) -> None:
    body = {**CHAT, "options": {"echo_delay_ms": 2000}}
    began = time.monotonic()
    answer = client.post("/jobs", json=body, headers={"Prefer": "wait=1"})
    assert time.monotonic() - began > 0.9
    assert answer.status_code == 202
    assert "preference-applied" not in answer.headers
    assert answer.json()["outcome"] == "accepted"
    client.post(f"/jobs/{answer.json()['job_id']}/cancel")


@pytest.mark.parametrize("prefer", ["wait=0", "respond-async", "wait=abc", "await=120", "wait=-1"])
def test_other_preferences_do_not_wait(client: httpx.Client, queue: str, prefer: str) -> None:
    began = time.monotonic()
    answer = client.post("/jobs", json={"kind": "own-kind", "queue": queue}, headers={"Prefer": prefer})
    assert answer.status_code == 202
    assert time.monotonic() - began < AT_ONCE


def test_a_failed_job_is_a_finished_job_too(client: httpx.Client) -> None:
    body = {**CHAT, "options": {"echo_fail": "permanent"}}
    answer = client.post("/jobs", json=body, headers={"Prefer": "respond-async, wait=10"})
    assert (answer.status_code, answer.json()["state"]) == (200, "failed")


def test_a_trace_is_kept_or_made(submit: Submit, read: Read) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    kept = read(submit({"traceparent": parent, "tracestate": "a=1,b=2"}))["trace"]
    assert (kept["traceparent"], kept["tracestate"]) == (parent, "a=1,b=2")
    made = [read(submit())["trace"]["traceparent"] for _ in range(2)]
    assert made[0] != made[1]
    for each in made:
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", each)
    wrong = read(submit({"traceparent": "00-0-0-0", "tracestate": "a=1"}))["trace"]
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", wrong["traceparent"])
    assert wrong["tracestate"] is None


def test_a_request_id_is_echoed_and_kept_or_made(client: httpx.Client, queue: str, read: Read) -> None:
    body = {"kind": "own-kind", "queue": queue}
    answer = client.post("/jobs", json=body, headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert read(answer.json()["job_id"])["trace"]["request_id"] == "mine-1"
    fresh = {client.post("/jobs", json=body).headers["x-request-id"] for _ in range(3)}
    assert len(fresh) == 3
    for odd in ("x" * 129, "a b", ""):
        assert client.get("/healthz", headers={"X-Request-Id": odd}).headers["x-request-id"] != odd


def test_a_parent_must_be_there_and_alive(
    client: httpx.Client, submit: Submit, queue: str, read: Read
) -> None:
    parent = submit(kind="own-kind", deadline_seconds=600)
    child = read(submit(kind="own-kind", parent_id=parent))
    assert child["parent_id"] == parent
    assert child["deadline"] == read(parent)["deadline"]
    body = {"kind": "own-kind", "queue": queue, "parent_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
    document = problem_of(client.post("/jobs", json=body), 422, "invalid_request")
    assert document["errors"] == [{"field": "parent_id", "message": "there is no such job"}]
    client.post(f"/jobs/{parent}/cancel")
    problem_of(client.post("/jobs", json={**body, "parent_id": parent}), 409, "job_terminal")


def test_what_was_accepted_is_in_the_database_before_the_answer(
    api: Any, client: httpx.Client, queue: str
) -> None:
    answer = client.post("/jobs", json={"kind": "own-kind", "queue": queue})
    listed = client.get("/jobs", params={"queue": queue}).json()["jobs"]
    assert [job["job_id"] for job in listed] == [answer.json()["job_id"]]


def test_non_ascii_text_survives(client: httpx.Client, read: Read) -> None:
    text = "Grüße, 世界 🌍\u2028"
    answer = client.post("/jobs", json={"model": "echo", "messages": [{"role": "user", "content": text}]})
    job = read(answer.json()["job_id"], wait=20)
    assert job["result"]["message"]["content"] == text
    assert json.loads(json.dumps(job["payload"]))["messages"][0]["content"] == text
