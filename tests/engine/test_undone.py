"""PostgreSQL undoes a transaction to let others go on (a deadlock with a migration): no caller is bothered with that."""

from collections.abc import Callable

import httpx
import pytest

from tests.conftest import MakeServer
from tests.engine.fleet import fetch

# The first two times; what a sequence has counted is not undone.
UNDO = """
CREATE FUNCTION undo() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('undone') <= 2 THEN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END IF;
    RETURN coalesce(NEW, OLD);
END $$
"""


def submit(client: httpx.Client, queue: str) -> httpx.Response:
    return client.post("/jobs", json={"kind": "own", "queue": queue, "payload": {"customer": 1}})


def submit_with_a_key(client: httpx.Client) -> int:
    return submit(client, "keyed").status_code


def claim_within_a_limit(client: httpx.Client) -> int:
    job_id = submit(client, "limited").json()["job_id"]
    answer = client.post("/claims", json={"worker": "w", "queues": ["limited"], "kinds": ["own"]})
    assert [job["job_id"] for job in answer.json()["jobs"]] == [job_id]
    return answer.status_code


def delete(client: httpx.Client) -> int:
    job_id = submit(client, "plain").json()["job_id"]
    client.post(f"/jobs/{job_id}/cancel")
    return client.delete(f"/jobs/{job_id}").status_code


def put_an_artifact(client: httpx.Client) -> int:
    job_id = submit(client, "plain").json()["job_id"]
    [job] = client.post("/claims", json={"worker": "w", "queues": ["plain"], "kinds": ["own"]}).json()["jobs"]
    headers = {"X-Foreman-Lease-Token": job["lease_token"]}
    return client.put(f"/jobs/{job_id}/artifacts/a", content=b"a", headers=headers).status_code


@pytest.mark.parametrize(
    ("when", "call", "status"),
    [
        ("INSERT ON queued", submit_with_a_key, 202),
        ("INSERT ON running", claim_within_a_limit, 200),
        ("DELETE ON jobs", delete, 204),
        ("INSERT ON artifacts", put_an_artifact, 201),
    ],
)
def test_what_was_undone_is_done_again_and_nobody_is_told(
    make_server: MakeServer, database_url: str, when: str, call: Callable[[httpx.Client], int], status: int
) -> None:
    server = make_server(FOREMAN_ROLE="api")
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.put("/queues/keyed", json={"key": ["/customer"], "max_active": 1, "max_queued": 10})
        client.put("/queues/limited", json={"max_running": 3})
        fetch(database_url, "CREATE SEQUENCE undone")
        fetch(database_url, UNDO)
        fetch(database_url, f"CREATE TRIGGER undo BEFORE {when} FOR EACH ROW EXECUTE FUNCTION undo()")
        assert call(client) == status
    [row] = fetch(database_url, "SELECT last_value FROM undone")
    assert row["last_value"] == 3
