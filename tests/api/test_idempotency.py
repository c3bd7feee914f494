"""Idempotency-Key: the first answer again, whoever asks and however often; another body is refused."""

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.api.conftest import problem_of


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def post(client: httpx.Client, queue: str) -> Callable[..., httpx.Response]:
    def post(key: str, path: str = "/jobs", **fields: Any) -> httpx.Response:
        body: dict[str, Any] = {"kind": "own-kind", "queue": queue, **fields}
        if path == "/jobs/batch":
            body = {"jobs": [body, body]}
        return client.post(path, json=body, headers={"Idempotency-Key": key})

    return post


Post = Callable[..., httpx.Response]


def test_the_same_key_and_body_get_the_first_answer_again(post: Post, key: str) -> None:
    first, second = post(key), post(key)
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json() == second.json()
    assert first.headers["location"] == second.headers["location"]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"


def test_quoted_and_bare_are_the_same_key(post: Post, key: str) -> None:
    assert post(f'"{key}"').json() == post(key).json()


def test_the_same_key_with_another_body_is_a_mismatch(post: Post, key: str) -> None:
    assert post(key).status_code == 202
    problem_of(post(key, priority=1), 422, "idempotency_mismatch")


def test_the_same_key_on_another_route_is_a_mismatch(post: Post, key: str) -> None:
    assert post(key).status_code == 202
    problem_of(post(key, "/jobs/batch"), 422, "idempotency_mismatch")


def test_a_batch_is_replayed_whole(post: Post, key: str) -> None:
    first, second = post(key, "/jobs/batch"), post(key, "/jobs/batch")
    assert first.status_code == 202
    assert len(first.json()["jobs"]) == 2
    assert first.json() == second.json()
    assert second.headers["idempotency-replayed"] == "true"


def test_fifty_at_once_make_one_job(api: Any, client: httpx.Client, queue: str, key: str) -> None:
    body = {"kind": "own-kind", "queue": queue}

    def post(_: int) -> httpx.Response:
        # A connection each, so that they really come at once.
        return httpx.post(f"{api.url}/jobs", json=body, headers={"Idempotency-Key": key}, timeout=30)

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(post, range(50)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["job_id"] for answer in answers}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    assert len(client.get("/jobs", params={"queue": queue}).json()["jobs"]) == 1


def test_a_replay_may_wait_for_the_end_of_the_first(client: httpx.Client, key: str) -> None:
    body = {
        "model": "echo",
        "messages": [{"role": "user", "content": "a b"}],
        "options": {"echo_delay_ms": 300},
    }
    first = client.post("/jobs", json=body, headers={"Idempotency-Key": key})
    second = client.post("/jobs", json=body, headers={"Idempotency-Key": key, "Prefer": "wait=20"})
    assert (second.status_code, second.json()["state"]) == (200, "done")
    assert second.json()["job_id"] == first.json()["job_id"]
    assert second.headers["idempotency-replayed"] == "true"


def test_a_job_that_was_deleted_since_is_not_said_to_be_queued(
    client: httpx.Client, post: Post, key: str
) -> None:
    job_id = post(key).json()["job_id"]
    client.post(f"/jobs/{job_id}/cancel")
    assert post(key).status_code == 202
    assert client.delete(f"/jobs/{job_id}").status_code == 204
    problem = problem_of(post(key), 404, "not_found")
    assert (problem["job_ids"], problem["deleted"]) == ([job_id], [job_id])
    # And it is not run once more.
    problem_of(post(key, priority=1), 422, "idempotency_mismatch")


def test_a_batch_of_which_jobs_were_deleted_says_which(client: httpx.Client, post: Post, key: str) -> None:
    first, second = (each["job_id"] for each in post(key, "/jobs/batch").json()["jobs"])
    client.post(f"/jobs/{second}/cancel")
    client.delete(f"/jobs/{second}")
    problem = problem_of(post(key, "/jobs/batch"), 404, "not_found")
    assert (problem["job_ids"], problem["deleted"]) == ([first, second], [second])


def test_a_managed_queue_tells_of_deleted_jobs_alike(
    client: httpx.Client, post: Post, queue: str, key: str
) -> None:
    client.put(f"/queues/{queue}", json={"max_depth": 5})
    job_id = post(key).json()["job_id"]
    client.post(f"/jobs/{job_id}/cancel")
    client.delete(f"/jobs/{job_id}")
    problem_of(post(key), 404, "not_found")


def test_a_refused_submission_uses_up_no_key(post: Post, key: str) -> None:
    problem_of(post(key, priority=1000), 422, "invalid_request")
    answer = post(key)
    assert answer.status_code == 202
    assert "idempotency-replayed" not in answer.headers


@pytest.mark.parametrize("odd", ["", '""', "x" * 256, "tab\there", "gr\u00fc\u00df"])
def test_a_key_that_cannot_be_one_is_refused(client: httpx.Client, queue: str, odd: str) -> None:
    answer = client.post(
        "/jobs", json={"kind": "noop", "queue": queue}, headers=[(b"Idempotency-Key", odd.encode("latin-1"))]
    )
    problem_of(answer, 422, "invalid_request")
    assert client.get("/jobs", params={"queue": queue}).json()["jobs"] == []


def test_without_a_key_every_request_is_a_job_of_its_own(client: httpx.Client, queue: str) -> None:
    body = {"kind": "own-kind", "queue": queue}
    assert client.post("/jobs", json=body).json() != client.post("/jobs", json=body).json()
