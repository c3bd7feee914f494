"""Attempts end to end: retryable, permanent and crashing runs, the backoff ladder, revival."""

import itertools
from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx
import pytest

from tests.api.conftest import Submit

Read = Callable[..., dict[str, Any]]


@pytest.fixture
def fail(submit: Submit, read: Read) -> Callable[..., dict[str, Any]]:
    """Submit a job that fails on purpose, and wait for its end."""

    def fail(how: str, **fields: Any) -> dict[str, Any]:
        given = {"kind": "generate", "model": "echo", "prompt": "a", "options": {"echo_fail": how}, **fields}
        return read(submit(**given), wait=60)

    return fail


Fail = Callable[..., dict[str, Any]]


def states(client: httpx.Client, job_id: str) -> list[tuple[str, str]]:
    """(type, reason) of the transitions, from the event log."""
    events = client.get(f"/jobs/{job_id}/events").json()["events"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    return [(event["type"], event["reason"]) for event in events]


def test_a_retryable_failure_uses_up_its_attempts_and_ends_failed(client: httpx.Client, fail: Fail) -> None:
    job = fail("retryable", max_attempts=3, backoff_seconds=0.1)
    assert (job["state"], job["attempt"], job["max_attempts"]) == ("failed", 3, 3)
    assert job["reason"] == "attempts_exhausted"
    assert job["error"]["code"] == "echo_retryable"
    assert job["error"]["retryable"] is True
    assert job["result"] is None
    again = [("queued", "retry"), ("loading", "claim"), ("working", "start")]
    assert states(client, job["job_id"]) == [
        ("queued", "enqueue"),
        ("loading", "claim"),
        ("working", "start"),
        *again,
        *again,
        ("failed", "fail"),
    ]


def test_a_permanent_failure_fails_at_once(client: httpx.Client, fail: Fail) -> None:
    job = fail("permanent", max_attempts=3)
    assert (job["state"], job["attempt"], job["error"]["retryable"]) == ("failed", 1, False)
    assert job["reason"] == "fail"
    assert [event for event, _ in states(client, job["job_id"])] == ["queued", "loading", "working", "failed"]


def test_a_crash_of_the_executor_is_retried_and_told_without_its_insides(fail: Fail) -> None:
    job = fail("crash", max_attempts=2, backoff_seconds=0.05)
    assert (job["state"], job["attempt"], job["error"]["code"]) == ("failed", 2, "executor_crashed")
    assert "Traceback" not in job["error"]["message"]
    assert "on purpose" not in job["error"]["message"]


def test_the_ladder_is_climbed_with_jitter(client: httpx.Client, fail: Fail) -> None:
    job = fail("retryable", max_attempts=4, backoff_seconds=[0.2, 0.6])
    events = client.get(f"/jobs/{job['job_id']}/events").json()["events"]
    moments = [(event["type"], datetime.fromisoformat(event["at"])) for event in events]
    waits = [
        (later - earlier).total_seconds()
        for (type_, earlier), (next_type, later) in itertools.pairwise(moments)
        if (type_, next_type) == ("queued", "loading")
    ][1:]
    assert len(waits) == 3
    for waited, rung in zip(waits, (0.2, 0.6, 0.6), strict=True):
        assert waited >= rung * 0.8
    assert sum(waits) < 30


def test_retry_revives_and_the_attempts_start_over(client: httpx.Client, fail: Fail, read: Read) -> None:
    job = fail("retryable", max_attempts=2, backoff_seconds=0.05)
    revived = client.post(f"/jobs/{job['job_id']}/retry")
    assert (revived.status_code, revived.json()["attempt"]) == (200, 0)
    again = read(job["job_id"], wait=30)
    assert (again["state"], again["attempt"]) == ("failed", 2)
    assert ("queued", "revive") in states(client, job["job_id"])
    assert again["started_at"] == job["started_at"]


def test_an_unknown_way_to_fail_is_the_jobs_own_failure(fail: Fail) -> None:
    job = fail("sideways", max_attempts=3)
    assert (job["state"], job["attempt"], job["error"]["code"]) == ("failed", 1, "invalid_payload")
