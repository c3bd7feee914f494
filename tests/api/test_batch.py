"""POST /jobs/batch: one commit, answers in order; one wrong entry and nothing is enqueued."""

from typing import Any

import httpx
import pytest

from app.api.jobs import _batch_answer
from app.store.idempotency import Answer, Receipt
from tests.api.conftest import Submit, problem_of


def in_queue(client: httpx.Client, queue: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    params = {"queue": queue, "limit": "200"}
    while True:
        page = client.get("/jobs", params=params).json()
        found += page["jobs"]
        if page["next_cursor"] is None:
            return found
        params["cursor"] = page["next_cursor"]


def test_answers_come_in_the_order_of_the_entries(client: httpx.Client, queue: str) -> None:
    jobs = [{"kind": "own-kind", "queue": queue, "metadata": {"n": str(n)}} for n in range(25)]
    answer = client.post("/jobs/batch", json={"jobs": jobs})
    assert answer.status_code == 202
    entries = answer.json()["jobs"]
    assert {(each["state"], each["outcome"]) for each in entries} == {("queued", "accepted")}
    listed = {job["job_id"]: job["metadata"]["n"] for job in in_queue(client, queue)}
    assert [listed[each["job_id"]] for each in entries] == [str(n) for n in range(25)]


def test_a_batch_is_claimed_in_its_order(client: httpx.Client, queue: str) -> None:
    jobs = [{"kind": "own-kind", "queue": queue} for _ in range(40)]
    entries = client.post("/jobs/batch", json={"jobs": jobs}).json()["jobs"]
    claimed = client.post(
        "/claims", json={"worker": "w", "queues": [queue], "kinds": ["own-kind"], "limit": 40}
    )
    assert [job["job_id"] for job in claimed.json()["jobs"]] == [each["job_id"] for each in entries]


def test_a_thousand_entries_are_taken_in_one_commit(client: httpx.Client, queue: str) -> None:
    answer = client.post("/jobs/batch", json={"jobs": [{"kind": "own-kind", "queue": queue}] * 1000})
    assert answer.status_code == 202
    jobs = in_queue(client, queue)
    assert len(jobs) == 1000
    assert len({job["created_at"] for job in jobs}) == 1


def test_a_thousand_and_one_are_too_many(client: httpx.Client, queue: str) -> None:
    answer = client.post("/jobs/batch", json={"jobs": [{"kind": "own-kind", "queue": queue}] * 1001})
    assert "1000" in problem_of(answer, 422, "invalid_request")["detail"]
    assert in_queue(client, queue) == []


@pytest.mark.parametrize(
    ("wrong", "fields"),
    [
        ({"kind": "noop", "priority": 1000}, ["priority"]),
        ({"kind": "noop", "nonsense": 1}, ["nonsense"]),
        ({"messages": []}, ["model"]),
        ([], []),
        (None, []),
        ("job", []),
    ],
)
def test_a_wrong_entry_is_named_by_its_index_and_nothing_is_enqueued(
    client: httpx.Client, queue: str, wrong: Any, fields: list[str]
) -> None:
    fine = {"kind": "own-kind", "queue": queue}
    document = problem_of(
        client.post("/jobs/batch", json={"jobs": [fine, fine, wrong, fine]}), 422, "invalid_request"
    )
    assert document["index"] == 2
    assert document["detail"].startswith("jobs[2]")
    assert [error["field"] for error in document["errors"]] == fields
    assert in_queue(client, queue) == []


def test_a_wrong_parent_is_named_by_its_index_too(client: httpx.Client, queue: str, submit: Submit) -> None:
    fine = {"kind": "own-kind", "queue": queue}
    missing = {**fine, "parent_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
    document = problem_of(client.post("/jobs/batch", json={"jobs": [fine, missing]}), 422, "invalid_request")
    assert document["index"] == 1
    assert in_queue(client, queue) == []
    ended = submit(kind="own-kind")
    client.post(f"/jobs/{ended}/cancel")
    document = problem_of(
        client.post("/jobs/batch", json={"jobs": [fine, fine, {**fine, "parent_id": ended}]}),
        409,
        "job_terminal",
    )
    assert document["index"] == 2
    assert len(in_queue(client, queue)) == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "jobs"),
        ({"jobs": []}, "jobs"),
        ({"jobs": {}}, "jobs"),
        ({"jobs": None}, "jobs"),
        ({"jobs": "x"}, "jobs"),
        ({"jobs": [{"kind": "noop"}], "extra": 1}, "extra"),
    ],
)
def test_a_batch_of_another_shape_is_refused(client: httpx.Client, body: Any, field: str) -> None:
    document = problem_of(client.post("/jobs/batch", json=body), 422, "invalid_request")
    assert document["errors"][0]["field"] == field


def test_an_unparsable_batch_is_a_400(client: httpx.Client) -> None:
    problem_of(client.post("/jobs/batch", content=b'{"jobs": ['), 400, "invalid_request")
    problem_of(client.post("/jobs/batch", content=b""), 400, "invalid_request")
    problem_of(client.post("/jobs/batch", content=b"[]"), 422, "invalid_request")


def test_all_jobs_of_a_batch_share_its_trace(client: httpx.Client, queue: str) -> None:
    answer = client.post("/jobs/batch", json={"jobs": [{"kind": "own-kind", "queue": queue}] * 3})
    traces = [job["trace"] for job in in_queue(client, queue)]
    assert len({trace["traceparent"] for trace in traces}) == 1
    assert {trace["request_id"] for trace in traces} == {answer.headers["x-request-id"]}


def test_the_answer_written_by_hand_is_the_one_that_is_encoded() -> None:
    ids = ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW"]
    plain, replayed = Receipt(ids), Receipt(ids, answers=[Answer(each) for each in ids])
    assert _batch_answer(plain) == _batch_answer(replayed)
