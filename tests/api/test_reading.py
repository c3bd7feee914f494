"""GET /jobs/{id}: the job, its ETag, waiting for its end."""

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.api.conftest import Submit, problem_of
from tests.patience import AT_ONCE, LONG_WAIT

Read = Callable[..., dict[str, Any]]


def test_the_etag_is_the_seq_and_an_unchanged_job_is_a_304(client: httpx.Client, submit: Submit) -> None:
    job_id = submit(kind="own-kind")
    answer = client.get(f"/jobs/{job_id}")
    assert answer.headers["etag"] == '"1"'
    for given in ('"1"', 'W/"1"', '"7", "1"', 'W/"0",W/"1"', "*"):
        unchanged = client.get(f"/jobs/{job_id}", headers={"If-None-Match": given})
        assert (unchanged.status_code, unchanged.content) == (304, b""), given
        assert unchanged.headers["etag"] == '"1"'
    for given in ('"2"', "1", '"11"', "", '"1'):
        assert client.get(f"/jobs/{job_id}", headers={"If-None-Match": given}).status_code == 200, given


def test_the_etag_moves_with_the_job(client: httpx.Client, submit: Submit) -> None:
    job_id = submit(kind="own-kind")
    client.post(f"/jobs/{job_id}/cancel")
    answer = client.get(f"/jobs/{job_id}", headers={"If-None-Match": '"1"'})
    assert (answer.status_code, answer.headers["etag"], answer.json()["seq"]) == (200, '"2"', 2)


@pytest.mark.parametrize(
    "job_id",
    ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "x", "01arz3ndektsv4rrffq69g5fav", "%00", "a%2Fb", "%F0%9F%98%80"],
)
def test_an_unknown_job_is_a_404_whatever_is_asked_of_it(client: httpx.Client, job_id: str) -> None:
    problem_of(client.get(f"/jobs/{job_id}"), 404, "not_found")
    problem_of(client.get(f"/jobs/{job_id}?wait=5"), 404, "not_found")
    problem_of(client.delete(f"/jobs/{job_id}"), 404, "not_found")
    problem_of(client.post(f"/jobs/{job_id}/cancel"), 404, "not_found")
    problem_of(client.post(f"/jobs/{job_id}/retry"), 404, "not_found")


def test_wait_answers_as_soon_as_the_job_has_ended(submit: Submit, read: Read) -> None:
    job_id = submit(kind="generate", model="echo", prompt="a b c", options={"echo_delay_ms": 200})
    began = time.monotonic()
    assert read(job_id, wait=LONG_WAIT)["state"] == "done"
    assert time.monotonic() - began < AT_ONCE


def test_wait_ends_with_the_job_as_it_is(submit: Submit, read: Read) -> None:
    job_id = submit(kind="own-kind")
    began = time.monotonic()
    assert read(job_id, wait=0.5)["state"] == "queued"
    assert time.monotonic() - began > 0.45


def test_wait_on_an_ended_job_answers_at_once(submit: Submit, read: Read) -> None:
    job_id = submit()
    read(job_id, wait=10)
    began = time.monotonic()
    assert read(job_id, wait=LONG_WAIT)["state"] == "done"
    assert time.monotonic() - began < AT_ONCE


def test_many_may_wait_for_the_same_job(api: Any, submit: Submit, client: httpx.Client) -> None:
    job_id = submit(kind="own-kind")
    states: list[str] = []

    def wait() -> None:
        states.append(httpx.get(f"{api.url}/jobs/{job_id}", params={"wait": 30}, timeout=40).json()["state"])

    waiters = [threading.Thread(target=wait) for _ in range(20)]
    for waiter in waiters:
        waiter.start()
    client.post(f"/jobs/{job_id}/cancel")
    for waiter in waiters:
        waiter.join(20)
    assert states == ["cancelled"] * 20


def test_a_job_that_is_deleted_while_somebody_waits_is_gone_for_them_too(
    submit: Submit, client: httpx.Client, api: Any
) -> None:
    job_id = submit(kind="own-kind")
    answers: list[httpx.Response] = []

    def wait() -> None:
        answers.append(httpx.get(f"{api.url}/jobs/{job_id}", params={"wait": 30}, timeout=40))

    waiter = threading.Thread(target=wait)
    waiter.start()
    client.post(f"/jobs/{job_id}/cancel")
    client.delete(f"/jobs/{job_id}")
    waiter.join(20)
    assert answers[0].status_code in {200, 404}  # it may have seen the end before the deletion


@pytest.mark.parametrize("wait", ["-1", "301", "abc", "", "nan", "inf", "1e9", "0x1"])
def test_a_wait_that_is_no_number_in_range_is_refused(
    client: httpx.Client, submit: Submit, wait: str
) -> None:
    document = problem_of(client.get(f"/jobs/{submit()}", params={"wait": wait}), 422, "invalid_request")
    assert document["errors"][0]["field"] == "wait"


def test_times_say_how_long_each_phase_took(submit: Submit, read: Read) -> None:
    job = read(submit(kind="generate", model="echo", prompt="a b c", options={"echo_delay_ms": 100}), wait=20)
    assert job["timings"]["working_seconds"] >= 0.25
    assert job["timings"]["loading_seconds"] >= 0
    running = read(submit(kind="own-kind"))
    assert running["timings"]["queued_seconds"] >= 0
    assert job["created_at"] <= job["started_at"] <= job["completed_at"]


def test_an_ended_job_holds_no_lease_and_has_no_place_in_the_queue(submit: Submit, read: Read) -> None:
    job = read(submit(), wait=10)
    assert job["lease_expires_at"] is None
    assert "queue_position" not in job
    assert "lease_token" not in job
