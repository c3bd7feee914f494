"""A job that could run, but whose kind nobody asks for, says so; it is worked out when the job is read."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import Server, wait_until
from tests.engine.fleet import fetch
from tests.serving import serving


@pytest.fixture(scope="module")
def server(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that takes in and answers, but runs nothing."""
    with serving(postgres, tmp_path_factory.mktemp("server"), FOREMAN_ROLE="api") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture
def kind() -> str:
    return f"kind-{uuid.uuid4().hex[:8]}"


def submit(client: httpx.Client, **fields: Any) -> str:
    return str(client.post("/jobs", json=fields).json()["job_id"])


def both_ways(client: httpx.Client, job_id: str, kind: str) -> list[tuple[Any, Any]]:
    """(reason, since when) as the job itself and as the list tell them."""
    [listed] = client.get("/jobs", params={"kind": kind}).json()["jobs"]
    job = client.get(f"/jobs/{job_id}").json()
    return [(each["reason"], each.get("reason_since")) for each in (job, listed)]


def claim(client: httpx.Client, queue: str, *kinds: str, worker: str, **fields: Any) -> list[dict[str, Any]]:
    body = {"worker": worker, "queues": [queue], **({"kinds": list(kinds)} if kinds else {}), **fields}
    jobs: list[dict[str, Any]] = client.post("/claims", json=body).json()["jobs"]
    return jobs


def test_a_job_whose_kind_nobody_has_asked_for_says_so_and_since_when(
    server: Server, client: httpx.Client, kind: str
) -> None:
    job_id = submit(client, kind=kind)
    created = client.get(f"/jobs/{job_id}").json()["created_at"]
    assert both_ways(client, job_id, kind) == [("no_worker", created)] * 2
    # It is nobody's doing: no event, no new number.
    assert client.get(f"/jobs/{job_id}").headers["etag"] == '"1"'

    # Somebody asks: in another queue first, then for other kinds, then for this one.
    worker = f"worker-{kind}"
    claim(client, "elsewhere", kind, worker=worker)
    claim(client, "default", f"not-{kind}", worker=f"not-{worker}")
    assert client.get(f"/jobs/{job_id}").json()["reason"] == "no_worker"
    [job] = claim(client, "default", kind, worker=worker)
    client.post(f"/jobs/{job_id}/release", json={"lease_token": job["lease_token"]})
    wait_until(lambda: [reason for reason, _ in both_ways(client, job_id, kind)] == ["release"] * 2)

    # It has not come back for a while.
    [seen] = fetch(
        server.database_url,
        "UPDATE workers SET last_seen_at = now() - interval '3 minutes' WHERE name = $1 RETURNING last_seen_at",
        worker,
    )
    wait_until(lambda: [reason for reason, _ in both_ways(client, job_id, kind)] == ["no_worker"] * 2)
    since = datetime.fromisoformat(client.get(f"/jobs/{job_id}").json()["reason_since"])
    assert since > seen["last_seen_at"]


def test_a_worker_that_names_no_kinds_or_waits_on_the_line_or_is_busy_is_there(
    server: Server, client: httpx.Client, kind: str
) -> None:
    queue = f"queue-{kind}"
    with ThreadPoolExecutor(1) as waiting:
        line = waiting.submit(claim, client, queue, f"first-{kind}", worker=kind, wait_seconds=20)
        wait_until(lambda: fetch(server.database_url, "SELECT 1 FROM workers WHERE name = $1", kind))
        first = submit(client, kind=f"first-{kind}", queue=queue)
        assert [job["job_id"] for job in line.result(30)] == [first]
    # Its hands are full: it asks for nothing more, but it will.
    fetch(
        server.database_url,
        "UPDATE workers SET last_seen_at = now() - interval '3 minutes' WHERE name = $1",
        kind,
    )
    second = submit(client, kind=f"first-{kind}", queue=queue)
    wait_until(lambda: client.get(f"/jobs/{second}").json()["reason"] is None)

    third = submit(client, kind=kind, queue=queue, priority=-1)
    wait_until(lambda: client.get(f"/jobs/{third}").json()["reason"] == "no_worker")
    claim(client, queue, worker=f"any-{kind}")
    wait_until(lambda: client.get(f"/jobs/{third}").json()["reason"] is None)


@pytest.mark.parametrize("body", [{"kind": "noop"}, {"model": "echo", "messages": []}])
def test_foremans_own_kinds_say_it_when_no_process_runs_jobs(
    client: httpx.Client, body: dict[str, Any]
) -> None:
    # Whoever names no kinds does not get these.
    claim(client, "default", worker="takes-anything")
    assert client.get(f"/jobs/{submit(client, **body)}").json()["reason"] == "no_worker"


def test_a_job_that_could_not_run_anyway_keeps_its_own_reason(client: httpx.Client, kind: str) -> None:
    later = submit(client, kind=kind, delay_seconds=3600)
    assert client.get(f"/jobs/{later}").json()["reason"] != "no_worker"
    client.post(f"/jobs/{later}/cancel")
    assert "reason_since" not in client.get(f"/jobs/{later}").json()
