"""Two tenants who use the same names for everything, on one server."""

from typing import Any

import httpx
import pytest

from app.identity.scopes import ALL_SCOPES
from app.jobs.lanes import kind_lane, kind_of, worker_tenant
from app.jobs.tenants import scoped, unscoped
from tests.conftest import Server
from tests.patience import wait_until

Two = tuple[httpx.Client, httpx.Client]
OWN = {"kind": "own", "payload": {"k": 1}}


@pytest.fixture
def two(guarded: Server, tenant: str) -> Any:
    with (
        guarded.client(guarded.key(f"{tenant}-a", *ALL_SCOPES)) as one,
        guarded.client(guarded.key(f"{tenant}-b", *ALL_SCOPES)) as other,
    ):
        yield one, other


def test_names_of_tenants_never_meet() -> None:
    assert scoped("default", "x") == "x", "as it was before there were tenants"
    kept = [
        scoped(tenant, name)
        for tenant in ("default", "a", "b")
        for name in ("x", "a\x1fx", "b\x1fx", "default\x1fx")
    ]
    assert len(set(kept)) == len(kept)
    for tenant in ("default", "a"):
        for name in ("x", "a\x1fx", "default\x1fx", "\x1f"):
            assert unscoped(tenant, scoped(tenant, name)) == name


def test_lanes_say_whose_they_are() -> None:
    assert (kind_lane("own"), kind_lane("own", "acme")) == ("own", "acme/own")
    assert kind_of("acme/noop") == kind_of("noop") == "noop"
    assert [worker_tenant(lane) for lane in ("own", "acme/own", "noop", "acme/http", "llm|||m")] == [
        "default",
        "acme",
        None,
        None,
        None,
    ]


def test_idempotency_keys_are_each_tenants_own(two: Two) -> None:
    headers = {"Idempotency-Key": "same"}
    first, second = (each.post("/jobs", json=OWN, headers=headers) for each in two)
    assert first.status_code == second.status_code == 202
    assert first.json()["job_id"] != second.json()["job_id"]
    assert "idempotency-replayed" not in second.headers
    other_body = two[1].post("/jobs", json=OWN | {"payload": {"k": 2}}, headers=headers)
    assert other_body.status_code == 422, "and it is its own that it repeats"


@pytest.mark.parametrize("when_full", ["reject", "coalesce", "replace-oldest"])
def test_concurrency_keys_are_each_tenants_own(two: Two, tenant: str, when_full: str) -> None:
    queue = f"q-{tenant}"
    rules = {"key": ["k", "/k"], "when_full": when_full}
    assert two[0].put(f"/queues/{queue}", json=rules).status_code in (200, 201)
    job = OWN | {"queue": queue}
    first, second = (each.post("/jobs", json=job) for each in two)
    assert (first.json()["outcome"], second.json()["outcome"]) == ("accepted", "accepted")
    for client, mine in zip(two, (first, second), strict=True):
        job_id = mine.json()["job_id"]
        assert client.get(f"/jobs/{job_id}").json()["concurrency_key"] == "k/1"
        shown = client.get(f"/queues/{queue}/keys/k/1").json()
        assert shown["key"] == "k/1"
        assert [each["job_id"] for each in shown["queued"]] == [job_id]
        again = client.post("/jobs", json=job)
        if when_full == "reject":
            assert again.status_code == 409
            assert again.json()["existing_job_id"] == job_id
            assert again.json()["key"] == "k/1"
        elif when_full == "coalesce":
            assert again.json()["job_id"] == job_id


def test_schedules_are_each_tenants_own(two: Two) -> None:
    for n, client in enumerate(two):
        made = client.put("/schedules/nightly", json={"cron": f"{n} 3 * * *", "job": OWN})
        assert made.status_code == 201, made.text
        assert made.json()["name"] == "nightly"
    assert [client.get("/schedules/nightly").json()["cron"] for client in two] == ["0 3 * * *", "1 3 * * *"]
    assert two[0].delete("/schedules/nightly").status_code == 204
    assert [client.get("/schedules/nightly").status_code for client in two] == [404, 200]


def test_a_schedule_makes_jobs_of_its_tenant_under_its_own_name(two: Two) -> None:
    one, other = two
    one.put("/schedules/often", json={"cron": "* * * * * *", "job": OWN})
    wait_until(lambda: one.get("/jobs").json()["jobs"])
    assert one.get("/jobs").json()["jobs"][0]["metadata"]["schedule"] == "often"
    assert other.get("/jobs").json()["jobs"] == []
    one.delete("/schedules/often")


def test_related_jobs_must_be_ones_own(two: Two) -> None:
    one, other = two
    theirs = one.post("/jobs", json=OWN).json()["job_id"]
    missing = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    for field, wrap in (("parent_id", str), ("depends_on", lambda name: [name])):
        answers = [other.post("/jobs", json=OWN | {field: wrap(name)}) for name in (theirs, missing)]
        assert answers[0].status_code == 422
        assert answers[0].text.replace(theirs, missing) == answers[1].text


@pytest.mark.parametrize("kinds", [None, ["own"], ["noop", "http"]])
def test_workers_claim_what_is_their_tenants_and_nothing_else(
    two: Two, tenant: str, kinds: list[str] | None
) -> None:
    one, other = two
    queue = f"q-{tenant}"
    paused = {"queue": queue, "delay_seconds": 0}
    one.post("/jobs", json=OWN | paused)
    # What Foreman's own workers would run: far too late for them to come first.
    one.post(
        "/jobs",
        json={
            "kind": "http",
            "payload": {"method": "GET", "url": "http://127.0.0.1:9/"},
            "queue": queue,
            "delay_seconds": 0,
        },
    )
    claim: dict[str, Any] = {"worker": "w", "queues": [queue], "limit": 10, "wait_seconds": 0.5}
    if kinds is not None:
        claim["kinds"] = kinds
    assert other.post("/claims", json=claim).json() == {"jobs": []}
    if kinds != ["noop", "http"]:
        assert [job["kind"] for job in one.post("/claims", json=claim).json()["jobs"]] == ["own"]


def test_a_waiting_claim_wakes_for_its_own_tenants_new_kinds(two: Two, tenant: str) -> None:
    one, other = two
    queue = f"q-{tenant}"
    one.post("/jobs", json={"kind": "never-seen", "payload": {}, "queue": queue, "delay_seconds": 0.3})
    claim = {"worker": "w", "queues": [queue], "limit": 1}
    assert other.post("/claims", json=claim | {"wait_seconds": 1}).json() == {"jobs": []}
    assert one.post("/claims", json=claim | {"wait_seconds": 30}).json()["jobs"][0]["kind"] == "never-seen"


def test_foremans_own_workers_run_everybodys(two: Two) -> None:
    for client in two:
        done = client.post("/jobs", json={"kind": "noop"}, headers={"Prefer": "wait=60"})
        assert (done.status_code, done.json()["state"]) == (200, "done")
        chat = client.post(
            "/api/chat",
            json={"model": "echo", "stream": False, "messages": [{"role": "user", "content": "hi"}]},
        )
        assert chat.status_code == 200, chat.text


def test_lists_and_sums_have_ones_own(two: Two) -> None:
    one, other = two
    job_id = one.post("/jobs", json=OWN | {"metadata": {"m": "x"}}).json()["job_id"]
    assert [job["job_id"] for job in one.get("/jobs", params={"metadata.m": "x"}).json()["jobs"]] == [job_id]
    for query in ({}, {"metadata.m": "x"}, {"state": "queued"}, {"kind": "own"}):
        assert other.get("/jobs", params=query).json()["jobs"] == []
    chat = {"model": "echo", "stream": False, "messages": [{"role": "user", "content": "hi"}]}
    assert one.post("/api/chat", json=chat).status_code == 200
    wait_until(lambda: one.get("/usage").json()["usage"])
    assert other.get("/usage").json()["usage"] == []
    counted = other.post(
        "/bulk-operations", json={"action": "cancel", "filter": {"kind": "own"}, "dry_run": True}
    )
    assert counted.json()["matched"] == 0


def test_a_lease_is_bound_to_the_key_that_claimed(guarded: Server, tenant: str) -> None:
    mine, colleague, stranger = (
        guarded.key(each, *ALL_SCOPES) for each in (tenant, tenant, f"{tenant}-other")
    )
    with (
        guarded.client(mine) as worker,
        guarded.client(colleague) as thief,
        guarded.client(stranger) as foreigner,
    ):
        job_id = worker.post("/jobs", json=OWN | {"queue": tenant}).json()["job_id"]
        claim = {"worker": "w", "queues": [tenant], "limit": 1}
        lease = {"lease_token": worker.post("/claims", json=claim).json()["jobs"][0]["lease_token"]}
        verbs: dict[str, dict[str, Any]] = {
            "heartbeat": {},
            "progress": {"message": "x"},
            "logs": {"entries": [{"level": "info", "message": "x"}]},
            "start": {},
            "fail": {"error": {"code": "x", "message": "y"}},
            "defer": {},
            "release": {},
            "complete": {"result": 1},
        }
        for verb, more in verbs.items():
            assert thief.post(f"/jobs/{job_id}/{verb}", json=lease | more).status_code == 409, verb
            assert foreigner.post(f"/jobs/{job_id}/{verb}", json=lease | more).status_code == 404, verb
        batch = [
            {"job_id": job_id, "verb": verb, **lease, **more}
            for verb, more in verbs.items()
            if verb != "logs"
        ]
        for entry in batch:
            for client in (thief, foreigner):
                [answer] = client.post("/settlements", json={"settlements": [entry]}).json()["settlements"]
                assert answer["ok"] is False
        headers = {"X-Foreman-Lease-Token": lease["lease_token"]}
        assert thief.put(f"/jobs/{job_id}/artifacts/a", content=b"x", headers=headers).status_code == 409
        assert foreigner.put(f"/jobs/{job_id}/artifacts/a", content=b"x", headers=headers).status_code == 404
        events = worker.get(f"/jobs/{job_id}/events").json()["events"]
        late = [event for event in events if event["type"] == "late_settlement"]
        assert len(late) == len(verbs) + len(batch), "who is of another tenant leaves no trace"
        for verb in ("heartbeat", "progress", "start", "complete"):
            answer = worker.post(f"/jobs/{job_id}/{verb}", json=lease | verbs[verb])
            assert answer.status_code == 200, (verb, answer.text)
        assert worker.get(f"/jobs/{job_id}").json()["state"] == "done"
        assert worker.post(f"/jobs/{job_id}/complete", json=lease | verbs["complete"]).status_code == 200, (
            "said twice"
        )
        assert foreigner.post(f"/jobs/{job_id}/complete", json=lease | verbs["complete"]).status_code == 404
