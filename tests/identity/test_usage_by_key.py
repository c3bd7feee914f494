"""Whose key submitted a job, by whichever way it came in; and what each key of a tenant used."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.identity.scopes import ALL_SCOPES
from tests.conftest import Server
from tests.patience import wait_until

OWN = {"kind": "own", "payload": {}}
CHAT = {"model": "echo", "messages": [{"role": "user", "content": "Hello there"}]}


@pytest.fixture
def admin(guarded: Server, tenant: str) -> Iterator[httpx.Client]:
    """All that a key of this tenant may do."""
    with guarded.client(guarded.key(tenant, *ALL_SCOPES)) as client:
        yield client


def key_of(guarded: Server, tenant: str, name: str) -> tuple[str, str]:
    """A new key: its id and itself."""
    with guarded.client() as first:
        body = {"name": name, "tenant": tenant, "scopes": ["jobs:write", "jobs:read"]}
        made = first.post("/keys", json=body)
    assert made.status_code == 201, made.text
    return made.json()["key_id"], made.json()["key"]


def submitted(client: httpx.Client) -> dict[str, str]:
    """A job by each of the ways in."""
    short = client.post("/jobs", json=OWN)
    ordinary = client.post("/jobs", json=OWN, headers={"Prefer": "wait=0", "X-Unusual": "1"})
    batch = client.post("/jobs/batch", json={"jobs": [OWN, OWN]})
    whole = client.post("/api/chat", json=CHAT | {"stream": False})
    openai = client.post("/v1/chat/completions", json=CHAT)
    for answer in (short, ordinary, batch, whole, openai):
        assert answer.status_code in {200, 202}, answer.text
    return {
        "short": short.json()["job_id"],
        "ordinary": ordinary.json()["job_id"],
        "first of a batch": batch.json()["jobs"][0]["job_id"],
        "last of a batch": batch.json()["jobs"][1]["job_id"],
        "ollama": whole.headers["x-foreman-job-id"],
        "openai": openai.headers["x-foreman-job-id"],
    }


def test_a_job_says_whose_key_submitted_it_whichever_way_it_came(
    guarded: Server, tenant: str, admin: httpx.Client
) -> None:
    key_id, key = key_of(guarded, tenant, "orchestrator")
    with guarded.client(key) as client:
        jobs = submitted(client)
    shown = {way: admin.get(f"/jobs/{job_id}").json().get("submitted_by") for way, job_id in jobs.items()}
    assert shown == dict.fromkeys(jobs, key_id)
    listed = {each["job_id"]: each["submitted_by"] for each in admin.get("/jobs").json()["jobs"]}
    assert listed == dict.fromkeys(jobs.values(), key_id)


def test_a_job_of_a_schedule_is_no_keys(admin: httpx.Client) -> None:
    put = admin.put("/schedules/often", json={"cron": "* * * * * *", "job": {"kind": "noop"}})
    assert put.status_code == 201, put.text
    [job, *_] = wait_until(lambda: admin.get("/jobs").json()["jobs"])
    assert admin.delete("/schedules/often").status_code == 204
    assert "submitted_by" not in job


def by_key(client: httpx.Client, **query: str) -> list[dict[str, Any]]:
    answer = client.get("/usage", params={"by": "key", **query})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["usage"]
    return found


def test_usage_by_key_names_each_key_of_the_tenant_and_adds_up(
    guarded: Server, tenant: str, admin: httpx.Client
) -> None:
    keys = {name: key_of(guarded, tenant, name) for name in ("reports", "mails")}
    for number, (_, key) in enumerate(keys.values(), start=1):
        with guarded.client(key) as client:
            for _ in range(number):
                assert client.post("/api/chat", json=CHAT | {"stream": False}).status_code == 200
    rows = {row["name"]: row for row in by_key(admin)}
    assert {name: (row["key_id"], row["jobs"], row["caller"]) for name, row in rows.items()} == {
        "reports": (keys["reports"][0], 1, tenant),
        "mails": (keys["mails"][0], 2, tenant),
    }
    [total] = admin.get("/usage").json()["usage"]
    assert "key_id" not in total
    for figure in ("jobs", "prompt_tokens", "completion_tokens"):
        assert total[figure] == sum(row[figure] for row in rows.values()) > 0
    with guarded.client() as first:
        assert first.delete(f"/keys/{keys['mails'][0]}").status_code == 204
    assert {row["name"] for row in by_key(admin)} == {"reports", "mails"}, "a revoked key still has its name"
    assert by_key(admin, model="another") == []


def test_what_keys_of_another_tenant_used_is_theirs(
    guarded: Server, tenant: str, admin: httpx.Client
) -> None:
    _, key = key_of(guarded, f"{tenant}-other", "theirs")
    with guarded.client(key) as client:
        assert client.post("/api/chat", json=CHAT | {"stream": False}).status_code == 200
    assert by_key(admin) == []


@pytest.mark.parametrize("by", ["", "model", "KEY", "key,model"])
def test_whatever_else_it_is_to_be_summed_by_is_refused(admin: httpx.Client, by: str) -> None:
    answer = admin.get("/usage", params={"by": by})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["errors"][0]["field"] == "by"
