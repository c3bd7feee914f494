"""depends_on: jobs that wait for others."""

from typing import Any

import pytest

from app.jobs.ids import new_id
from tests.queues.conftest import Caller, soon


def test_a_job_waits_until_all_it_depends_on_are_done(call: Caller, queue: str) -> None:
    first, second = call.submit(queue), call.submit(queue)
    third = call.submit(queue, depends_on=[first, second])
    waiting = call.job(third)
    assert (waiting["state"], waiting["reason"]) == ("queued", "waiting_for")
    one, two = call.claim(queue, limit=10)
    assert call.events(third)[0]["data"] == {"depends_on": [first, second]}
    call.complete(one)
    assert call.claim(queue) == []
    call.complete(two)
    assert call.claim(queue, wait=5)[0]["job_id"] == third


def test_what_is_done_already_need_not_be_waited_for(call: Caller, queue: str) -> None:
    first = call.submit(queue)
    call.complete(call.claim(queue)[0])
    second = call.submit(queue, depends_on=[first])
    assert call.claim(queue)[0]["job_id"] == second


@pytest.mark.parametrize("end", ["fail", "cancel", "expire"])
def test_a_failed_cancelled_or_expired_one_cancels_those_that_wait(
    call: Caller, queue: str, end: str
) -> None:
    fields: dict[str, Any] = {"deadline_seconds": 0.2} if end == "expire" else {}
    first = call.submit(queue, **fields)
    second = call.submit(queue, depends_on=[first])
    third = call.submit(queue, depends_on=[second])
    if end == "fail":
        call.fail(call.claim(queue)[0])
    elif end == "cancel":
        call.http.post(f"/jobs/{first}/cancel")
    soon(lambda: call.state(third) == "cancelled")
    assert (call.state(second), call.job(second)["reason"]) == ("cancelled", "dependency_failed")
    assert call.events(second)[-1]["reason"] == "cancel"


def test_on_dependency_failure_run_lets_it_run_anyway(call: Caller, queue: str) -> None:
    first, other = call.submit(queue), call.submit(queue)
    second = call.submit(queue, depends_on=[first, other], on_dependency_failure="run")
    one, two = call.claim(queue, limit=2)
    call.fail(one)
    assert call.claim(queue, wait=0.5) == []
    call.complete(two)
    assert call.claim(queue, wait=5)[0]["job_id"] == second


def test_a_job_that_failed_before_decides_at_once(call: Caller, queue: str) -> None:
    first = call.submit(queue)
    call.fail(call.claim(queue)[0])
    doomed = call.submit(queue, depends_on=[first])
    soon(lambda: call.state(doomed) == "cancelled")
    lucky = call.submit(queue, depends_on=[first], on_dependency_failure="run")
    assert call.claim(queue)[0]["job_id"] == lucky


def test_an_unknown_job_cannot_be_waited_for(call: Caller, queue: str) -> None:
    stranger = new_id()
    answer = call.post(queue, depends_on=[stranger])
    assert answer.status_code == 422
    assert stranger in answer.json()["detail"]
    assert call.post(queue, depends_on=["nonsense"]).status_code == 422


def test_no_more_than_a_hundred(call: Caller, queue: str) -> None:
    ids = [call.submit(queue) for _ in range(100)]
    assert call.post(queue, depends_on=[*ids, ids[0]]).status_code == 422
    last = call.submit(queue, depends_on=ids)
    for job in call.claim(queue, limit=200):
        call.complete(job)
    assert call.claim(queue, wait=5)[0]["job_id"] == last


def test_on_dependency_failure_means_nothing_alone(call: Caller, queue: str) -> None:
    assert call.post(queue, on_dependency_failure="run").status_code == 422
    assert call.post(queue, depends_on=[call.submit(queue)], on_dependency_failure="shrug").status_code == 422


def test_after_the_others_come_time_and_the_key(call: Caller, queue: str) -> None:
    call.configure(queue, key=["/k"], max_queued=10)
    first = call.submit(queue, {"k": 1})
    late = call.submit(queue, {"k": 2}, depends_on=[first], delay_seconds=1)
    keyed = call.submit(queue, {"k": 3}, depends_on=[first])
    [job] = call.claim(queue)
    holder = call.submit(queue, {"k": 3})
    assert call.claim(queue)[0]["job_id"] == holder
    call.complete(job)
    soon(lambda: call.job(keyed)["reason"] == "key_busy")
    soon(lambda: call.job(late)["reason"] in {"scheduled", None})
    assert call.claim(queue, wait=5)[0]["job_id"] == late


def test_what_a_crash_left_waiting_is_found_by_the_repair(call: Caller, queue: str) -> None:
    first = call.submit(queue)
    second = call.submit(queue, depends_on=[first])
    call.claim(queue)
    call.end_by_hand(first)
    assert call.claim(queue, wait=5)[0]["job_id"] == second


@pytest.mark.parametrize("end", ["done", "failed"])
def test_what_was_deleted_before_the_repair_decides_as_it_ended(call: Caller, queue: str, end: str) -> None:
    first = call.submit(queue)
    second = call.submit(queue, depends_on=[first])
    [claimed] = call.claim(queue)
    with call.no_repair():
        # Settled by a replica that died before it could follow.
        call.end_by_hand(claimed["job_id"], end)
        assert call.http.delete(f"/jobs/{first}").status_code == 204
    if end == "done":
        assert call.claim(queue, wait=5)[0]["job_id"] == second
    else:
        soon(lambda: call.state(second) == "cancelled")
    assert call.sql("SELECT * FROM dependencies WHERE job_id = $1", second) == []


def test_a_waiting_job_that_is_cancelled_stays_so(call: Caller, queue: str) -> None:
    first = call.submit(queue)
    second = call.submit(queue, depends_on=[first])
    call.http.post(f"/jobs/{second}/cancel")
    call.complete(call.claim(queue)[0])
    assert call.claim(queue, wait=0.5) == []
    assert call.state(second) == "cancelled"
    assert call.http.delete(f"/jobs/{second}").status_code == 204
