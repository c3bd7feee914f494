"""Settings of queues: what they take, what they show, what they refuse."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.conftest import MakeServer, Server
from tests.queues.conftest import Caller, soon


def test_a_queue_shows_its_settings_as_flat_fields_with_defaults(call: Caller, queue: str) -> None:
    shown = call.configure(queue, key=["a", "/b"], max_queued=3, rate={"limit": 100, "per_seconds": 1})
    assert shown["key"] == ["a", "/b"]
    assert (shown["max_active"], shown["max_queued"], shown["when_full"], shown["stale_policy"]) == (
        1,
        3,
        "reject",
        "fail-stale",
    )
    assert shown["rate"] == {"limit": 100, "per_seconds": 1}
    assert shown["max_depth"] is None
    assert call.queue(queue) | {"updated_at": ""} == shown | {"updated_at": ""}


def test_a_queue_shows_the_retention_that_is_in_force(call: Caller, queue: str) -> None:
    call.submit(queue)
    usual = call.queue(queue)["retention"]
    assert (usual["done"], usual["stale"], usual["failed"]) == (7 * 86_400, 7 * 86_400, 30 * 86_400)
    shown = call.configure(queue, retention={"done": 0, "failed": 5})
    assert shown["retention"] == {**usual, "done": 0, "failed": 5}
    assert call.configure(queue)["retention"] == usual


def test_put_replaces_all_settings(call: Caller, queue: str) -> None:
    assert call.http.put(f"/queues/{queue}", json={"max_depth": 5}).status_code == 201
    again = call.http.put(f"/queues/{queue}", json={"max_running": 2})
    assert again.status_code == 200
    assert again.json()["max_depth"] is None
    assert again.json()["max_running"] == 2


def test_a_queue_is_known_as_soon_as_it_has_had_a_job(call: Caller, queue: str) -> None:
    assert call.http.get(f"/queues/{queue}").status_code == 404
    call.submit(queue)
    assert call.queue(queue)["counts"]["queued"] == 1
    assert queue in [each["name"] for each in call.http.get("/queues").json()["queues"]]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"max_active": 2}, "max_active"),
        ({"max_queued": 2}, "max_queued"),
        ({"when_full": "coalesce"}, "when_full"),
        ({"stale_policy": "block"}, "stale_policy"),
        ({"key": ["/a"], "max_active": 5, "max_running": 2}, "max_active"),
        ({"key": ["/a"], "max_queued": 50, "max_depth": 20}, "max_queued"),
        ({"rate": {"limit": 5, "per_seconds": 1, "burst": 10}}, "rate"),
        ({"rate": {"limit": 0}}, "rate"),
        ({"rate": {"per_seconds": 1}}, "rate"),
        ({"rate": {"limit": 1, "per_hour": 2}}, "rate"),
        ({"max_depth": 0}, "max_depth"),
        ({"max_running": "many"}, "max_running"),
        ({"key": []}, "key"),
        ({"key": [1]}, "key"),
        ({"key": ["/a"], "when_full": "explode"}, "when_full"),
        ({"retention": {"queued": 5}}, "retention.queued"),
        ({"retention": {"done": -1}}, "retention"),
        ({"fair_by": ""}, "fair_by"),
        ({"lease_seconds": 0}, "lease_seconds"),
        ({"payload_schema": {"type": "strange"}}, "payload_schema"),
        ({"payload_schema": {"$ref": "http://127.0.0.1:1/schema"}}, "payload_schema"),
        ({"payload_schema": 7}, "payload_schema"),
        ({"payload_schema": {"const": "\0"}}, "payload_schema"),
        ({"payload_schema": {"maximum": 2**64}}, "payload_schema"),
        ({"payload_schema": {"enum": [{"a": [10**30]}]}}, "payload_schema"),
        ({"rate": {"limit": 1e-320}}, "rate"),
        ({"rate": {"limit": 1, "per_seconds": 1e-320}}, "rate"),
        ({"lease_seconds": 1e-320}, "lease_seconds"),
        ({"max_depth": 2**64}, "max_depth"),
        ({"backoff_seconds": 1e308}, "backoff_seconds"),
        ({"retention": {"done": 1e308}}, "retention"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_wrong_or_contradictory_settings_are_422_and_say_which(
    call: Caller, queue: str, settings: dict[str, Any], field: str
) -> None:
    answer = call.http.put(f"/queues/{queue}", json=settings)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field
    assert field.split(".", maxsplit=1)[0] in answer.json()["detail"]
    assert call.http.get(f"/queues/{queue}").status_code == 404


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"max_depth": 1e400}', b"\xff", b'{"max_depth": NaN}'])
def test_settings_that_are_no_object_are_refused(call: Caller, queue: str, body: bytes) -> None:
    assert call.http.put(f"/queues/{queue}", content=body).status_code in {400, 422}


@pytest.mark.parametrize("name", ["-x", "a b", "x" * 129, "ü"])
def test_a_queue_needs_a_proper_name(call: Caller, name: str) -> None:
    assert call.http.put(f"/queues/{name}", json={}).status_code == 422
    assert call.http.get(f"/queues/{name}").status_code == 404


def test_max_attempts_and_backoff_come_from_the_queue_unless_the_job_says_otherwise(
    call: Caller, queue: str
) -> None:
    call.configure(queue, max_attempts=2, backoff_seconds=[0.1])
    inherits = call.submit(queue)
    own = call.submit(queue, max_attempts=7)
    assert call.job(inherits)["max_attempts"] == 2
    assert call.job(own)["max_attempts"] == 7
    call.http.post(f"/jobs/{own}/cancel")
    call.fail(call.claim(queue)[0], retryable=True)
    [again] = call.claim(queue, wait=5)
    assert again["attempt"] == 2
    call.fail(again, retryable=True)
    assert (call.state(inherits), call.job(inherits)["reason"]) == ("failed", "attempts_exhausted")


def test_the_lease_comes_from_the_queue_unless_the_worker_names_one(call: Caller, queue: str) -> None:
    call.configure(queue, lease_seconds=300)
    call.submit(queue)
    call.submit(queue)
    leases = []
    for fields in ({}, {"lease_seconds": 5}):
        [job] = call.claim(queue, **fields)
        [row] = call.sql("SELECT lease_seconds FROM jobs WHERE id = $1", job["job_id"])
        leases.append(row["lease_seconds"])
    assert leases == [300, 5]


def test_a_job_of_foremans_own_keeps_a_lease_shorter_than_the_servers(call: Caller, queue: str) -> None:
    call.configure(queue, lease_seconds=0.4)
    body = {
        "model": "echo",
        "queue": queue,
        "messages": [{"role": "user", "content": "one two three four five six"}],
        "options": {"echo_delay_ms": 300},
    }
    job_id = call.http.post("/jobs", json=body).json()["job_id"]
    job = call.http.get(f"/jobs/{job_id}", params={"wait": 10}, timeout=20).json()
    assert (job["state"], job["attempt"]) == ("done", 1)


def test_a_payload_that_breaks_the_schema_is_422_with_the_path(call: Caller, queue: str) -> None:
    schema = {
        "type": "object",
        "required": ["user"],
        "properties": {"user": {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}}},
    }
    call.configure(queue, payload_schema=schema)
    call.submit(queue, {"user": {"age": 3}})
    wrong = call.post(queue, {"user": {"age": -1}})
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0]["pointer"] == "/user/age"
    assert "/user/age" in wrong.json()["detail"]
    assert call.post(queue, {}).status_code == 422
    batch = [{"kind": "work", "queue": queue, "payload": {"user": {"age": age}}} for age in (1, "x")]
    refused = call.http.post("/jobs/batch", json={"jobs": batch})
    assert (refused.status_code, refused.json()["index"]) == (422, 1)
    assert call.queue(queue)["counts"]["queued"] == 1


def test_a_schema_also_holds_for_chat_bodies(call: Caller, queue: str) -> None:
    call.configure(queue, payload_schema={"properties": {"model": {"enum": ["echo"]}}})
    messages = [{"role": "user", "content": "hi"}]
    good = call.http.post("/jobs", json={"model": "echo", "queue": queue, "messages": messages})
    bad = call.http.post("/jobs", json={"model": "other", "queue": queue, "messages": messages})
    assert (good.status_code, bad.status_code) == (202, 422)


def test_a_change_counts_on_every_replica_within_a_second(make_server: MakeServer, queue: str) -> None:
    one, two = make_server(), make_server()
    with httpx.Client(timeout=10) as http:
        body = {"kind": "work", "queue": queue, "payload": {}}
        assert http.post(f"{two.url}/jobs", json=body).status_code == 202
        assert http.put(f"{one.url}/queues/{queue}", json={"max_depth": 1}).status_code == 200
        assert http.post(f"{one.url}/jobs", json=body).status_code == 429
        soon(lambda: http.post(f"{two.url}/jobs", json=body).status_code == 429, seconds=1)


def test_pause_and_resume(call: Caller, queue: str) -> None:
    job_id = call.submit(queue)
    paused = call.http.post(f"/queues/{queue}/pause").json()
    assert (paused["paused"], paused["gated_by"]) == (True, "paused")
    assert paused["paused_at"] is not None
    assert call.claim(queue) == []
    resumed = call.http.post(f"/queues/{queue}/resume").json()
    assert (resumed["paused"], resumed["gated_by"]) == (False, None)
    assert call.claim(queue)[0]["job_id"] == job_id


def test_resuming_wakes_who_waits(call: Caller, queue: str, shared_server: Server) -> None:
    call.http.post(f"/queues/{queue}/pause")
    job_id = call.http.post("/jobs", json={"kind": "noop", "queue": queue}).json()["job_id"]
    assert call.http.get(f"/jobs/{job_id}", params={"wait": 0.5}).json()["state"] == "queued"
    call.http.post(f"/queues/{queue}/resume")
    assert call.http.get(f"/jobs/{job_id}", params={"wait": 5}).json()["state"] == "done"


def test_the_slowest_rate_there_is_holds_up_no_other_queue(call: Caller, queue: str) -> None:
    call.configure(queue, rate={"limit": 0.001, "per_seconds": 31_557_600})
    for _ in range(3):
        call.submit(queue, kind="noop")
    # One token is there to begin with.
    soon(lambda: call.queue(queue)["counts"]["done"] == 1)
    assert call.queue(queue)["gated_by"] == "rate"
    done = call.http.post("/jobs", json={"kind": "noop"}, headers={"prefer": "wait=30"}, timeout=60)
    assert done.json()["state"] == "done"


def test_settings_that_nobody_can_read_any_more_are_left_out_and_stop_no_other_queue(
    call: Caller, queue: str, shared_server: Server
) -> None:
    """As an older version took them, or a newer one writes them."""
    call.configure(queue, max_depth=7)
    stored = {
        "rate": {"limit": 1e-320},
        "max_attempts": "many",
        "max_depth": 1,
        "payload_schema": {"maximum": 1e300},
        "hue": 1,
    }
    call.sql(
        "UPDATE queues SET settings = $2::jsonb, updated_at = clock_timestamp() WHERE name = $1",
        queue,
        json.dumps(stored),
    )
    other = f"{queue}-other"
    call.configure(other, max_depth=5)
    soon(lambda: call.queue(queue)["max_depth"] == 1)
    assert call.http.get("/queues").status_code == 200
    done = call.http.post(
        "/jobs", json={"kind": "noop", "queue": queue}, headers={"prefer": "wait=30"}, timeout=60
    )
    assert done.json()["state"] == "done"
    # What can be read of them holds.
    assert call.http.post("/jobs", json={"kind": "nobody", "queue": queue}).status_code == 202
    assert call.http.post("/jobs", json={"kind": "nobody", "queue": queue}).status_code == 429
    assert '"queue.setting_unreadable"' in shared_server.log()


def test_many_who_pause_and_resume_at_once_are_all_answered(call: Caller, queue: str) -> None:
    def turn(number: int) -> int:
        verb = "pause" if number % 2 else "resume"
        return call.http.post(f"/queues/{queue}-{number % 7}/{verb}").status_code

    with ThreadPoolExecutor(16) as callers:
        assert set(callers.map(turn, range(240))) == {200}
