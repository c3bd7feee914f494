"""A job that ended badly leaves a line in the log: which one and why, but nothing that was in it."""

import json
from typing import Any

import httpx

from tests.conftest import MakeServer, Server, wait_until
from tests.engine.fleet import QUICK


def claimed(server: Server, kind: str, lease_seconds: float = 60, **fields: Any) -> dict[str, Any]:
    queue = fields.get("queue", "default")
    headers = {"x-request-id": f"of-{kind}"}
    job = {"kind": kind, "payload": {"password": "hunter2"}, **fields}
    httpx.post(f"{server.url}/jobs", json=job, headers=headers)
    body = {"worker": "tester", "queues": [queue], "kinds": [kind], "lease_seconds": lease_seconds}
    [job] = httpx.post(f"{server.url}/claims", json=body).json()["jobs"]
    return dict(job)


def test_a_failed_job_leaves_a_line_with_its_code_but_not_with_its_words(make_server: MakeServer) -> None:
    server = make_server(**QUICK)

    def fail(job: dict[str, Any], code: str) -> None:
        error = {"code": code, "message": "Bearer hunter2"}
        body = {"lease_token": job["lease_token"], "error": error, "retryable": False}
        assert httpx.post(f"{server.url}/jobs/{job['job_id']}/fail", json=body).status_code == 200

    def lines() -> dict[str, dict[str, Any]]:
        told = [json.loads(line) for line in server.log().splitlines() if "job.failed" in line]
        by_job = {line["job_id"]: line for line in told}
        assert len(by_job) == len(told)
        return by_job

    broken, rude = claimed(server, "broken"), claimed(server, "rude")
    fail(broken, "no_such_table")
    fail(broken, "no_such_table")
    fail(rude, "\x1b[2J hunter2")
    lost = claimed(server, "lost", 0.2, max_attempts=1)
    wait_until(lambda: lost["job_id"] in lines())

    shown = ("level", "kind", "queue", "attempt", "code", "request_id")
    assert [
        [lines()[job["job_id"]][name] for name in shown] for job in (broken, rude, lost)
    ] == [
        ["warning", "broken", "default", 1, "no_such_table", "of-broken"],
        ["warning", "rude", "default", 1, None, "of-rude"],
        ["warning", "lost", "default", 1, "lease_expired", "of-lost"],
    ]  # fmt: skip
    assert "hunter2" not in server.log()


def lines_about(server: Server, *job_ids: str) -> list[list[Any]]:
    told = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    return [
        [each[name] for name in ("event", "job_id", "queue", "attempt", "code", "request_id")]
        for each in told
        if each.get("job_id") in job_ids
    ]


def test_one_that_was_late_or_superseded_leaves_a_line_and_one_that_was_cancelled_none(
    make_server: MakeServer,
) -> None:
    server = make_server(**QUICK)
    httpx.put(f"{server.url}/queues/keyed", json={"key": ["k"]})
    late = claimed(server, "late", deadline_seconds=0.3)["job_id"]
    stale = claimed(server, "stale", 0.2, queue="keyed")["job_id"]
    cancelled = httpx.post(f"{server.url}/jobs", json={"kind": "x", "delay_seconds": 60}).json()["job_id"]
    httpx.post(f"{server.url}/jobs/{cancelled}/cancel")
    wait_until(lambda: len(lines_about(server, late, stale, cancelled)) == 2)
    assert sorted(lines_about(server, late, stale, cancelled)) == [
        ["job.expired", late, "default", 1, "deadline", "of-late"],
        ["job.stale", stale, "keyed", 1, "lease_expired", "of-stale"],
    ]
    assert "hunter2" not in server.log()


def test_thousands_that_end_badly_at_once_leave_few_lines_and_their_number(make_server: MakeServer) -> None:
    server = make_server(**QUICK)
    jobs = [{"kind": "late", "delay_seconds": 60, "deadline_seconds": 0.2}] * 1000
    for _ in range(5):
        assert httpx.post(f"{server.url}/jobs/batch", json={"jobs": jobs}, timeout=60).status_code == 202

    def told() -> tuple[int, int]:
        lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
        own = [each for each in lines if each["event"] == "job.expired"]
        more = [each["more"] for each in lines if each["event"] == "log.and_more"]
        assert all(each["of"] == "job.expired" for each in lines if each["event"] == "log.and_more")
        return len(own), sum(more)

    wait_until(lambda: sum(told()) == 5000, 60)
    own, more = told()
    assert own >= 50
    assert more > own
