"""A job that failed for good leaves a line in the log: which one and why, but nothing that was in it."""

import json
from typing import Any

import httpx

from tests.conftest import MakeServer, Server, wait_until
from tests.engine.fleet import QUICK


def claimed(server: Server, kind: str, lease_seconds: float = 60, **fields: Any) -> dict[str, Any]:
    httpx.post(f"{server.url}/jobs", json={"kind": kind, "payload": {"password": "hunter2"}, **fields})
    body = {"worker": "tester", "queues": ["default"], "kinds": [kind], "lease_seconds": lease_seconds}
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

    shown = ("level", "kind", "queue", "attempt", "code")
    assert [
        [lines()[job["job_id"]][name] for name in shown] for job in (broken, rude, lost)
    ] == [
        ["warning", "broken", "default", 1, "no_such_table"],
        ["warning", "rude", "default", 1, None],
        ["warning", "lost", "default", 1, "lease_expired"],
    ]  # fmt: skip
    assert "hunter2" not in server.log()
