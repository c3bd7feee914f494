"""`Prefer: return=minimal` on a claim: of each job only what it takes to run it."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.api.conftest import Submit

ALWAYS = {
    "job_id",
    "kind",
    "queue",
    "attempt",
    "max_attempts",
    "deferrals",
    "lease_token",
    "lease_expires_at",
    "payload",
    "trace",
}
PAYLOAD = '{"b": 1.0, "a": [1e400, "\\u00e9"]}'


def claim(
    client: httpx.Client, queue: str, prefer: str | None = "return=minimal", **more: Any
) -> httpx.Response:
    body = {"worker": "w", "queues": [queue], "lease_seconds": 60, **more}
    answer = client.post("/claims", json=body, headers={} if prefer is None else {"Prefer": prefer})
    assert answer.status_code == 200, answer.text
    return answer


def test_a_plain_job_is_told_in_a_few_members(client: httpx.Client, submit: Submit, queue: str) -> None:
    job_id = submit(kind="own-brief")
    answer = claim(client, queue)
    assert answer.headers["preference-applied"] == "return=minimal"
    [job] = answer.json()["jobs"]
    assert job.keys() == ALWAYS
    assert (job["job_id"], job["attempt"]) == (job_id, 1)
    assert job["trace"].keys() == {"traceparent"}
    settled = client.post(f"/jobs/{job_id}/complete", json={"lease_token": job["lease_token"], "result": 1})
    assert settled.json()["state"] == "done"


def test_what_is_told_is_what_the_job_says(client: httpx.Client, submit: Submit, queue: str) -> None:
    parent = submit(kind="own-parent", queue=f"{queue}-parents")
    body = {"kind": "own-brief", "queue": queue, "metadata": {"a": "b"}, "deadline_seconds": 600}
    text = f'{json.dumps(body)[:-1]}, "parent_id": "{parent}", "payload": {PAYLOAD}}}'
    headers = {
        "content-type": "application/json",
        "tracestate": "a=1",
        "traceparent": f"00-{'1' * 32}-{'2' * 16}-01",
    }
    assert client.post("/jobs", content=text, headers=headers).status_code == 202
    answer = claim(client, queue)
    [job] = answer.json()["jobs"]
    assert job.keys() == ALWAYS | {"metadata", "deadline", "parent_id"}
    # Verbatim, as everywhere.
    assert f'"payload":{PAYLOAD}' in answer.text
    whole = client.get(f"/jobs/{job['job_id']}").json()
    told = job.keys() - {"lease_token", "trace", "payload"}
    assert {name: job[name] for name in told} == {name: whole[name] for name in told}
    assert job["trace"] == {name: whole["trace"][name] for name in ("traceparent", "tracestate")}


@pytest.mark.parametrize(
    ("prefer", "minimal"),
    [
        (None, False),
        ("return=representation", False),
        ("return=minimalist", False),
        ("whatever=1", False),
        ("wait=1, return=minimal", True),
        ('respond-async; Return = "minimal"', False),
        ('RETURN = "minimal"; a=b', True),
    ],
)
def test_other_preferences_are_ignored(
    client: httpx.Client, submit: Submit, queue: str, prefer: str | None, minimal: bool
) -> None:
    submit(kind="own-brief")
    answer = claim(client, queue, prefer)
    [job] = answer.json()["jobs"]
    assert (job.keys() == ALWAYS, "preference-applied" in answer.headers) == (minimal, minimal)
    assert ("state" in job) is not minimal


def test_claimers_of_both_kinds_get_each_job_once_and_in_the_form_that_they_asked_for(
    client: httpx.Client, submit: Submit, queue: str
) -> None:
    expected = {submit(kind="own-brief") for _ in range(40)}
    forms = ["return=minimal", None] * 10

    def one(prefer: str | None) -> list[str]:
        jobs = claim(client, queue, prefer, limit=2).json()["jobs"]
        assert {("state" in job) for job in jobs} <= {prefer is None}
        return [job["job_id"] for job in jobs]

    with ThreadPoolExecutor(len(forms)) as pool:
        taken = [job_id for jobs in pool.map(one, forms) for job_id in jobs]
    assert sorted(taken) == sorted(expected)
    assert claim(client, queue).json() == {"jobs": []}


def test_a_fair_and_limited_queue_is_claimed_in_the_short_form(
    client: httpx.Client, submit: Submit, queue: str
) -> None:
    rules = {"fair_by": "who", "max_running": 3}
    assert client.put(f"/queues/{queue}", json=rules).status_code in {200, 201}
    for who in "aaaab":
        submit(kind="own-brief", metadata={"who": who})
    jobs = claim(client, queue, limit=5).json()["jobs"]
    assert sorted(job["metadata"]["who"] for job in jobs) == ["a", "a", "b"]
