"""Jobs to be followed, and workers over HTTP to run them."""

import uuid
from typing import Any

import httpx

from tests.conftest import Server


def words(count: int) -> str:
    return " ".join(f"word{number}" for number in range(count))


def chat(server: Server, text: str, delay_ms: float = 0, **more: Any) -> str:
    """A job for echo; returns its id."""
    body = {
        "model": "echo",
        "messages": [{"role": "user", "content": text}],
        "options": {"echo_delay_ms": delay_ms, **more.pop("options", {})},
        **more,
    }
    return submit(server, body)


def submit(server: Server, body: dict[str, Any]) -> str:
    answer = httpx.post(f"{server.url}/jobs", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job_id"])


def held(server: Server, **more: Any) -> str:
    """A job that nobody runs, unless it is claimed by its kind, which no other has."""
    return submit(server, {"kind": f"held-{uuid.uuid4().hex[:12]}", "payload": {}, **more})


def running(server: Server, **more: Any) -> dict[str, Any]:
    """A job that we have claimed ourselves, with its lease token."""
    return claim(server, job(server, held(server, **more))["kind"])


def claim(server: Server, kind: str, **more: Any) -> dict[str, Any]:
    body = {
        "worker": "tester",
        "queues": ["default"],
        "kinds": [kind],
        "limit": 1,
        "lease_seconds": 60,
        **more,
    }
    [claimed] = httpx.post(f"{server.url}/claims", json=body).json()["jobs"]
    assert isinstance(claimed, dict)
    return claimed


def settle(server: Server, job: dict[str, Any], verb: str, **more: Any) -> httpx.Response:
    return httpx.post(
        f"{server.url}/jobs/{job['job_id']}/{verb}", json={"lease_token": job["lease_token"], **more}
    )


def post_event(server: Server, job_id: str, type_: str, payload: Any = None) -> httpx.Response:
    return httpx.post(f"{server.url}/jobs/{job_id}/events", json={"type": type_, "payload": payload})


def read(server: Server, job_id: str, **query: Any) -> dict[str, Any]:
    answer = httpx.get(f"{server.url}/jobs/{job_id}/events", params=query, timeout=150)
    assert answer.status_code == 200, answer.text
    page = answer.json()
    assert isinstance(page, dict)
    return page


def types(page: dict[str, Any]) -> list[str]:
    return [event["type"] for event in page["events"]]


def job(server: Server, job_id: str, wait: float = 0) -> dict[str, Any]:
    answer = httpx.get(f"{server.url}/jobs/{job_id}", params={"wait": wait}, timeout=wait + 60)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert isinstance(document, dict)
    return document
