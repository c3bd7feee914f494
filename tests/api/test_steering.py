"""POST /jobs/{id}/cancel and /retry, DELETE /jobs/{id}."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.api.conftest import Submit, problem_of

Read = Callable[..., dict[str, Any]]
Claimed = Callable[..., dict[str, Any]]


def slow(submit: Submit, **fields: Any) -> str:
    """A job that runs for a minute unless it is stopped."""
    return submit(kind="generate", model="echo", prompt="a " * 120, options={"echo_delay_ms": 500}, **fields)


def test_a_queued_job_is_cancelled_at_once(client: httpx.Client, submit: Submit) -> None:
    job_id = submit(kind="own-kind")
    answer = client.post(f"/jobs/{job_id}/cancel", json={"reason": "not needed"})
    assert answer.status_code == 200
    job = answer.json()
    assert (job["job_id"], job["state"], job["reason"], job["seq"]) == (job_id, "cancelled", "not needed", 2)
    assert job["completed_at"] is not None


def test_a_running_job_is_asked_and_its_worker_confirms(
    client: httpx.Client, submit: Submit, reaches: Read, read: Read
) -> None:
    job_id = slow(submit)
    reaches(job_id, "working")
    answer = client.post(f"/jobs/{job_id}/cancel")
    assert answer.status_code == 202
    job = read(job_id, wait=60)
    assert (job["state"], job["reason"]) == ("cancelled", "cancel")


def test_a_worker_that_does_not_confirm_is_fenced_off_after_the_grace(
    client: httpx.Client, claimed: Claimed, read: Read
) -> None:
    held = claimed()
    path = f"/jobs/{held['job_id']}"
    answer = client.post(f"{path}/cancel", json={"reason": "enough"})
    assert (answer.status_code, answer.json()["state"]) == (202, "loading")
    beat = client.post(f"{path}/heartbeat", json={"lease_token": held["lease_token"]})
    assert beat.json()["cancel_requested"] is True
    began = time.monotonic()
    job = read(held["job_id"], wait=20)
    assert (job["state"], job["reason"]) == ("cancelled", "enough")
    assert time.monotonic() - began > 0.5  # it had its grace of a second
    late = client.post(f"{path}/complete", json={"lease_token": held["lease_token"], "result": 1})
    problem_of(late, 409, "lease_lost")
    assert read(held["job_id"])["result"] is None


def test_cancelling_again_changes_nothing(client: httpx.Client, submit: Submit, claimed: Claimed) -> None:
    job_id = submit(kind="own-kind")
    first = client.post(f"/jobs/{job_id}/cancel", json={"reason": "one"}).json()
    again = client.post(f"/jobs/{job_id}/cancel", json={"reason": "two"})
    assert (again.status_code, again.json()) == (200, first)
    held = claimed()["job_id"]
    assert client.post(f"/jobs/{held}/cancel").status_code == 202
    again = client.post(f"/jobs/{held}/cancel")
    assert (again.status_code, again.json()["seq"]) == (202, 3)


def test_an_ended_job_is_answered_unchanged(client: httpx.Client, submit: Submit, read: Read) -> None:
    job = read(submit(), wait=10)
    answer = client.post(f"/jobs/{job['job_id']}/cancel")
    assert (answer.status_code, answer.json()["state"], answer.json()["seq"]) == (200, "done", job["seq"])


def test_children_go_with_their_parent(
    client: httpx.Client, submit: Submit, read: Read, reaches: Read
) -> None:
    parent = submit(kind="own-kind")
    queued = submit(kind="own-kind", parent_id=parent)
    running = slow(submit, parent_id=parent)
    grandchild = submit(kind="own-kind", parent_id=queued)
    other = submit(kind="own-kind")
    reaches(running, "working")
    assert client.post(f"/jobs/{parent}/cancel").status_code == 200
    for job_id in (queued, grandchild, running):
        assert read(job_id, wait=20)["state"] == "cancelled"
    assert read(other)["state"] == "queued"


@pytest.mark.parametrize("body", [b"", b"  ", b"{}", b'{"reason":null}', b'{"reason":""}'])
def test_a_reason_is_not_needed(client: httpx.Client, submit: Submit, body: bytes) -> None:
    assert client.post(f"/jobs/{submit(kind='own-kind')}/cancel", content=body).status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"reason":1}', 422),
        (b'{"why":"x"}', 422),
        (b"[]", 422),
        (b"null", 422),
        (b'{"reason":"%b"}' % (b"x" * 501), 422),
        (b'{"reason":"\\u0000"}', 422),
        (b'{"reason":"\\ud800"}', 422),
        (b"{", 400),
    ],
)
def test_a_wrong_reason_is_refused_and_nothing_is_cancelled(
    client: httpx.Client, submit: Submit, read: Read, body: bytes, status: int
) -> None:
    job_id = submit(kind="own-kind")
    problem_of(client.post(f"/jobs/{job_id}/cancel", content=body), status, "invalid_request")
    assert read(job_id)["state"] == "queued"


def test_a_failed_job_is_revived_under_its_own_id(client: httpx.Client, submit: Submit, read: Read) -> None:
    job_id = submit(kind="generate", model="echo", options={"echo_fail": "permanent"}, max_attempts=3)
    failed = read(job_id, wait=10)
    assert (failed["state"], failed["error"]["code"], failed["error"]["retryable"]) == (
        "failed",
        "echo_permanent",
        False,
    )
    assert failed["attempt"] == 1
    answer = client.post(f"/jobs/{job_id}/retry")
    assert answer.status_code == 200
    job = answer.json()
    assert (job["job_id"], job["state"], job["attempt"], job["error"]) == (job_id, "queued", 0, None)
    again = read(job_id, wait=10)
    assert (again["state"], again["attempt"]) == ("failed", 1)
    assert again["seq"] == failed["seq"] + 4


def test_only_failed_jobs_are_revived(
    client: httpx.Client, submit: Submit, claimed: Claimed, read: Read
) -> None:
    done = read(submit(), wait=10)["job_id"]
    cancelled = submit(kind="own-kind")
    client.post(f"/jobs/{cancelled}/cancel")
    for job_id, state in (
        (submit(kind="own-kind"), "queued"),
        (claimed()["job_id"], "loading"),
        (done, "done"),
        (cancelled, "cancelled"),
    ):
        document = problem_of(client.post(f"/jobs/{job_id}/retry"), 409, "invalid_transition")
        assert document["state"] == state
        assert state in document["detail"]


def test_an_ended_job_can_be_deleted_and_is_gone(client: httpx.Client, submit: Submit, read: Read) -> None:
    job_id = read(submit(), wait=10)["job_id"]
    answer = client.delete(f"/jobs/{job_id}")
    assert (answer.status_code, answer.content) == (204, b"")
    problem_of(client.get(f"/jobs/{job_id}"), 404, "not_found")
    problem_of(client.delete(f"/jobs/{job_id}"), 404, "not_found")


def test_a_live_job_cannot_be_deleted(client: httpx.Client, submit: Submit, claimed: Claimed) -> None:
    for job_id, state in ((submit(kind="own-kind"), "queued"), (claimed()["job_id"], "loading")):
        assert problem_of(client.delete(f"/jobs/{job_id}"), 409, "invalid_transition")["state"] == state
