"""Dead letters and bulk operations."""

from typing import Any

import pytest

from app.jobs.ids import new_id
from tests.conftest import MakeServer
from tests.queues.conftest import Caller, soon


def dead_letters(call: Caller, queue: str, number: int = 1, **fields: object) -> list[str]:
    jobs = [{"kind": "work", "queue": queue, **fields}] * number
    ids = [each["job_id"] for each in call.http.post("/jobs/batch", json={"jobs": jobs}).json()["jobs"]]
    claimed = call.claim(queue, limit=number)
    assert len(claimed) == number
    settlements = [
        {
            "job_id": job["job_id"],
            "lease_token": job["lease_token"],
            "verb": "fail",
            "error": {"code": "broken", "message": "It broke."},
            "retryable": False,
        }
        for job in claimed
    ]
    assert call.http.post("/settlements", json={"settlements": settlements}).status_code == 200
    return ids


def run(call: Caller, path: str, **body: object) -> dict[str, Any]:
    answer = call.http.post(path, json=body, headers={"prefer": "wait=20"}, timeout=30)
    assert answer.status_code == 200, answer.text
    answered: dict[str, Any] = answer.json()
    return answered


def test_failed_jobs_are_listed_newest_first(call: Caller, queue: str) -> None:
    ids = dead_letters(call, queue, 3)
    page = call.http.get("/dead-letters", params={"queue": queue, "limit": 2}).json()
    assert [each["job_id"] for each in page["dead_letters"]] == sorted(ids, reverse=True)[:2]
    assert page["dead_letters"][0]["error"]["code"] == "broken"
    rest = call.http.get("/dead-letters", params={"queue": queue, "cursor": page["next_cursor"]}).json()
    assert len(rest["dead_letters"]) == 1
    assert rest["next_cursor"] is None


def test_a_dead_letter_is_replayed_under_its_id_and_attempts_start_over(call: Caller, queue: str) -> None:
    [job_id] = dead_letters(call, queue)
    answer = call.http.post(f"/dead-letters/{job_id}/replay")
    assert (answer.status_code, answer.json()["state"], answer.json()["attempt"]) == (200, "queued", 0)
    assert call.events(job_id)[-1]["reason"] == "revive"
    assert call.claim(queue)[0]["job_id"] == job_id
    assert call.http.get("/dead-letters", params={"queue": queue}).json()["dead_letters"] == []


def test_a_dead_letter_is_dismissed_for_good(call: Caller, queue: str) -> None:
    [job_id] = dead_letters(call, queue)
    answer = call.http.post(f"/dead-letters/{job_id}/dismiss")
    assert (answer.status_code, answer.json()["state"]) == (200, "dismissed")
    assert answer.json()["completed_at"] is not None
    assert call.events(job_id)[-1]["reason"] == "dismiss"
    again = call.http.post(f"/dead-letters/{job_id}/replay")
    assert (again.status_code, again.json()["code"]) == (409, "invalid_transition")
    counts = call.queue(queue)["counts"]
    assert (counts["failed"], counts["dismissed"]) == (0, 1)


@pytest.mark.parametrize("verb", ["replay", "dismiss"])
def test_what_is_no_dead_letter_is_refused(call: Caller, queue: str, verb: str) -> None:
    assert call.http.post(f"/dead-letters/{new_id()}/{verb}").status_code == 404
    assert call.http.post(f"/dead-letters/nonsense/{verb}").status_code == 404
    live = call.submit(queue)
    assert call.http.post(f"/dead-letters/{live}/{verb}").status_code == 409


def test_bulk_replay_by_filter_counts_first_and_shows_its_progress(call: Caller, queue: str) -> None:
    dead_letters(call, queue, 250)
    other = dead_letters(call, f"{queue}-other")
    body = {"filter": {"queue": queue}, "dry_run": True}
    counted = call.http.post("/dead-letters/replay", json=body)
    assert (counted.status_code, counted.json()["matched"]) == (200, 250)
    assert call.queue(queue)["counts"]["failed"] == 250
    begun = call.http.post("/dead-letters/replay", json={"filter": {"queue": queue}})
    assert begun.status_code == 202
    assert (begun.json()["state"], begun.json()["matched"]) == ("running", 250)
    path = begun.headers["location"]
    soon(lambda: call.http.get(path).json()["state"] == "done")
    done = call.http.get(path).json()
    assert (done["visited"], done["moved"]) == (250, 250)
    assert call.queue(queue)["counts"]["queued"] == 250
    assert call.state(other[0]) == "failed"


def test_a_dry_run_tells_how_many_are_in_which_state(call: Caller, queue: str) -> None:
    for _ in range(3):
        call.submit(queue)
    call.claim(queue)
    dead_letters(call, f"{queue}-dead", 1)
    body = {"action": "cancel", "filter": {"queue": queue}, "dry_run": True}
    counted = call.http.post("/bulk-operations", json=body).json()
    assert (counted["matched"], counted["by_state"]) == (3, {"loading": 1, "queued": 2})
    body = {"action": "delete", "filter": {"queue": f"{queue}-dead"}, "dry_run": True}
    assert call.http.post("/bulk-operations", json=body).json()["by_state"] == {"failed": 1}
    body = {"action": "delete", "filter": {"queue": f"{queue}-nothing"}, "dry_run": True}
    assert call.http.post("/bulk-operations", json=body).json()["by_state"] == {}


def test_groups_share_error_kind_and_queue(call: Caller, queue: str) -> None:
    dead_letters(call, queue, 3)
    [newest] = dead_letters(call, queue)
    call.submit(queue)
    [other] = call.claim(queue)
    call.settle(other, "fail", error={"code": "other", "message": "…"}, retryable=False)
    found = call.http.get("/dead-letters/groups", params={"queue": queue}).json()
    assert (found["found"], found["next_cursor"]) == (2, None)
    first, second = found["groups"]
    assert [first[name] for name in ("error", "kind", "queue", "jobs")] == ["broken", "work", queue, 4]
    assert (second["error"], second["jobs"], second["newest"]["job_id"]) == ("other", 1, other["job_id"])
    assert first["newest"]["job_id"] == newest
    assert first["newest"]["error"]["message"] == "It broke."
    assert "payload" not in first["newest"]
    assert first["first_at"] < first["last_at"] == first["newest"]["completed_at"]
    one = call.http.get("/dead-letters/groups", params={"queue": queue, "error": "other"}).json()
    assert [each["jobs"] for each in one["groups"]] == [1]
    assert call.http.get("/dead-letters/groups", params={"queue": f"{queue}-x"}).json()["groups"] == []
    for wrong in ({"state": "done"}, {"colour": "red"}, {"cursor": "x"}):
        assert call.http.get("/dead-letters/groups", params=wrong).status_code == 422


def test_bulk_by_error_worker_and_the_beginning_of_the_id(call: Caller, queue: str) -> None:
    dead_letters(call, queue, 2)
    call.submit(queue)
    [other] = call.claim(queue, worker="somebody")
    call.settle(other, "fail", error={"code": "other", "message": "…"}, retryable=False)
    for wanted in ({"error": "other"}, {"worker": "somebody"}, {"id_prefix": other["job_id"].lower()}):
        body = {"filter": {"queue": queue, **wanted}, "dry_run": True}
        assert call.http.post("/dead-letters/dismiss", json=body).json()["matched"] == 1, wanted
    done = run(call, "/dead-letters/dismiss", filter={"queue": queue, "error": "other"})
    assert (done["moved"], done["filter"]) == (1, {"queue": queue, "error": "other"})
    assert call.state(other["job_id"]) == "dismissed"
    assert call.queue(queue)["counts"]["failed"] == 2


def test_bulk_dismiss_by_kind_and_metadata(call: Caller, queue: str) -> None:
    dead_letters(call, queue, 3, metadata={"a": "1"})
    dead_letters(call, queue, 2, metadata={"a": "2"})
    done = run(call, "/dead-letters/dismiss", filter={"queue": queue, "kind": "work", "metadata": {"a": "1"}})
    assert done["moved"] == 3
    counts = call.queue(queue)["counts"]
    assert (counts["failed"], counts["dismissed"]) == (2, 3)


def test_bulk_cancel_takes_queued_and_running_ones(call: Caller, queue: str) -> None:
    ids = [call.submit(queue) for _ in range(5)]
    call.submit(queue, delay_seconds=3600)
    [running] = call.claim(queue)
    done = run(call, "/bulk-operations", action="cancel", filter={"queue": queue})
    assert done["moved"] == 6
    soon(lambda: call.queue(queue)["counts"]["cancelled"] == 6)
    assert call.settle(running).status_code == 409
    assert call.state(ids[3]) == "cancelled"


def test_bulk_delete_removes_only_what_has_ended(call: Caller, queue: str) -> None:
    [dead] = dead_letters(call, queue)
    live = call.submit(queue)
    done = run(call, "/bulk-operations", action="delete", filter={"queue": queue})
    assert done["moved"] == 1
    assert call.http.get(f"/jobs/{dead}").status_code == 404
    assert call.state(live) == "queued"
    assert call.events(dead) == []


def test_bulk_retry_visits_each_job_once(call: Caller, queue: str) -> None:
    dead_letters(call, queue, 5)
    done = run(call, "/bulk-operations", action="retry", filter={"queue": queue, "state": "failed"})
    assert (done["visited"], done["moved"]) == (5, 5)


@pytest.mark.parametrize(
    "body",
    [
        {"action": "explode", "filter": {}},
        {"filter": {}},
        {"action": "cancel"},
        {"action": "cancel", "filter": []},
        {"action": "cancel", "filter": {"state": "strange"}},
        {"action": "cancel", "filter": {"state": "done"}},
        {"action": "retry", "filter": {"state": ["queued", "done"]}},
        {"action": "delete", "filter": {"colour": "red"}},
        {"action": "delete", "filter": {"since": "yesterday"}},
        {"action": "delete", "filter": {"queue": "a\0b"}},
        {"action": "delete", "filter": {"error": "a\0b"}},
        {"action": "delete", "filter": {"id_prefix": "hello"}},
        {"action": "delete", "filter": {"id_prefix": ""}},
        {"action": "delete", "filter": {}, "dry_run": "maybe"},
    ],
)
def test_a_wrong_bulk_request_is_422(call: Caller, body: dict[str, Any]) -> None:
    answer = call.http.post("/bulk-operations", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


def test_a_bulk_operation_can_be_stopped(call: Caller, queue: str) -> None:
    dead_letters(call, queue, 2)
    begun = call.http.post("/bulk-operations", json={"action": "retry", "filter": {"queue": queue}}).json()
    path = f"/bulk-operations/{begun['operation_id']}"
    soon(lambda: call.http.get(path).json()["state"] == "done")
    assert call.http.post(f"{path}/stop").status_code == 409
    assert call.http.get(f"/bulk-operations/{new_id()}").status_code == 404
    assert path.rpartition("/")[2] in [
        each["operation_id"] for each in call.http.get("/bulk-operations").json()["operations"]
    ]


def test_an_operation_goes_on_after_its_replica_was_killed(make_server: MakeServer, queue: str) -> None:
    import httpx

    first = make_server(FOREMAN_ROLE="api")
    with httpx.Client(base_url=first.url, timeout=30) as http:
        caller = Caller(http, first.database_url)
        for _ in range(5):
            dead_letters(caller, queue, 1000)
        begun = http.post("/dead-letters/dismiss", json={"filter": {"queue": queue}}).json()
        soon(lambda: http.get(f"/bulk-operations/{begun['operation_id']}").json()["moved"] > 0)
    first.kill()
    second = make_server(FOREMAN_ROLE="api")
    with httpx.Client(base_url=second.url, timeout=30) as http:
        soon(lambda: http.get(f"/bulk-operations/{begun['operation_id']}").json()["state"] == "done", 30)
        done = http.get(f"/bulk-operations/{begun['operation_id']}").json()
        assert (done["visited"], done["moved"]) == (5000, 5000)
        assert http.get(f"/queues/{queue}").json()["counts"]["dismissed"] == 5000
