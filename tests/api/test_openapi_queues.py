"""Queues, dead letters, bulk operations, schedules and deliveries: real answers are what the document says."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.api.conftest import Submit, problem_of
from tests.conftest import ROOT, wait_until

Answered = Callable[..., httpx.Response]
NO_ID = "0" * 26


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return dict(json.loads((ROOT / "openapi" / "openapi.json").read_text()))


@pytest.fixture
def answered(client: httpx.Client, document: dict[str, Any]) -> Answered:
    """Calls a route by its path in the document; its answer, which has the status and is as described."""

    def answered(
        status: int, method: str, path: str, names: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        answer = client.request(method, path.format(**(names or {})), **more)
        assert answer.status_code == status, answer.text
        described = document["paths"][path][method.lower()]["responses"][str(status)]
        known = {name.lower() for name in described.get("headers", ())}
        assert known >= {"location", "link", "preference-applied"} & answer.headers.keys()
        content = described.get("content")
        if content is None:
            assert answer.content == b""
            return answer
        [(media, body)] = content.items()
        assert answer.headers["content-type"].split(";")[0] == media
        schema = {**body["schema"], "components": document["components"]}
        jsonschema_rs.validate(schema, answer.json(), validate_formats=True)
        return answer

    return answered


@pytest.fixture
def fail(client: httpx.Client, claimed: Callable[..., dict[str, Any]]) -> Callable[..., str]:
    """A job that has failed for good; its id."""

    def fail() -> str:
        job = claimed(max_attempts=1)
        settled = client.post(
            f"/jobs/{job['job_id']}/fail",
            json={"lease_token": job["lease_token"], "error": {"code": "broken", "message": "x"}},
        )
        assert settled.json()["state"] == "failed", settled.text
        return str(job["job_id"])

    return fail


def test_queues(answered: Answered, queue: str) -> None:
    path, names = "/queues/{name}", {"name": queue}
    settings = {
        "max_depth": 9,
        "rate": {"limit": 5},
        "retention": {"done": 60},
        "key": ["/customer"],
        "payload_schema": {"type": "object"},
    }
    made = answered(201, "PUT", path, names, json=settings).json()
    assert made["rate"] == {"limit": 5}
    assert made["retention"]["done"] == 60
    assert made["max_active"] == 1
    changed = answered(200, "PUT", path, names, json={}).json()
    assert changed["max_depth"] is None
    assert answered(200, "GET", path, names).json() == changed
    assert queue in [each["name"] for each in answered(200, "GET", "/queues").json()["queues"]]
    assert answered(200, "POST", f"{path}/pause", names).json()["gated_by"] == "paused"
    assert answered(200, "POST", f"{path}/resume", names).json()["paused"] is False
    answered(404, "GET", path, {"name": "no-such-queue"})
    answered(404, "GET", path, {"name": "no%20name"})
    answered(400, "PUT", path, names, content=b"{")
    answered(422, "PUT", path, names, json={"max_depth": 0})
    for verb in ("pause", "resume"):
        answered(422, "POST", f"{path}/{verb}", {"name": "no%20name"})


def test_a_wrong_name_is_refused_before_the_body_is_looked_at(client: httpx.Client) -> None:
    for path in ("/queues/no%20name", "/schedules/no%20name"):
        problem = problem_of(client.put(path, content=b"{"), 422, "invalid_request")
        assert [each["field"] for each in problem["errors"]] == ["name"]


def test_keys(client: httpx.Client, answered: Answered, submit: Submit, queue: str) -> None:
    kind = f"own-{uuid.uuid4().hex[:8]}"
    answered(201, "PUT", "/queues/{name}", {"name": queue}, json={"key": ["/customer"], "max_queued": 5})
    first, second = (submit(kind=kind, payload={"customer": "a/b"}) for _ in range(2))
    claim = {"worker": "tester", "queues": [queue], "kinds": [kind], "lease_seconds": 60}
    [held] = client.post("/claims", json=claim).json()["jobs"]
    path, names = "/queues/{name}/keys/{key}", {"name": queue, "key": held["concurrency_key"]}
    shown = answered(200, "GET", path, names).json()
    assert [each["job_id"] for each in shown["active"]] == [first]
    assert [each["job_id"] for each in shown["queued"]] == [second]
    answered(404, "GET", path, {"name": "no-such-queue", "key": "a"})
    answered(404, "GET", path, {"name": queue, "key": "a%00b"})


def test_dead_letters(answered: Answered, fail: Callable[..., str], queue: str) -> None:
    ids = [fail(), fail()]
    first = answered(200, "GET", "/dead-letters", params={"queue": queue, "limit": 1})
    assert [each["job_id"] for each in first.json()["dead_letters"]] == ids[1:]
    assert first.links["next"]["url"].startswith("/dead-letters?")
    following = {"queue": queue, "limit": 1, "cursor": first.json()["next_cursor"]}
    second = answered(200, "GET", "/dead-letters", params=following)
    assert [each["job_id"] for each in second.json()["dead_letters"]] == ids[:1]
    path = "/dead-letters/{job_id}"
    assert answered(200, "POST", f"{path}/replay", {"job_id": ids[0]}).json()["state"] == "queued"
    assert answered(200, "POST", f"{path}/dismiss", {"job_id": ids[1]}).json()["state"] == "dismissed"
    for verb in ("replay", "dismiss"):
        answered(409, "POST", f"{path}/{verb}", {"job_id": ids[1]})
        for name in (NO_ID, "nothing"):
            answered(404, "POST", f"{path}/{verb}", {"job_id": name})


@pytest.mark.parametrize(
    ("query", "field", "message"),
    [
        ({"state": "failed"}, "state", "is not a filter here: dead letters are failed jobs"),
        ({"states": "failed"}, "states", "is not a known filter"),
        ({"limit": "0"}, "limit", "must be a number from 1 to 200"),
        ({"since": "soon"}, "since", "must be an RFC 3339 timestamp"),
        ({"cursor": "no"}, "cursor", "is not a cursor of ours"),
        ({"queue": "a\0"}, "queue", "has a NUL character"),
    ],
)
def test_a_wrong_filter_of_dead_letters_is_named(
    answered: Answered, query: dict[str, str], field: str, message: str
) -> None:
    problem = answered(422, "GET", "/dead-letters", params=query).json()
    assert problem["errors"] == [{"field": field, "message": message}]


def test_many_dead_letters(answered: Answered, fail: Callable[..., str], queue: str) -> None:
    fail()
    for verb in ("dismiss", "replay"):
        path = f"/dead-letters/{verb}"
        counted = answered(200, "POST", path, json={"filter": {"queue": queue}, "dry_run": True})
        assert counted.json()["matched"] == 1
        answered(400, "POST", path, content=b"{")
        answered(422, "POST", path, json={})
        named = answered(422, "POST", path, json={"filter": {}, "action": "retry"}).json()
        assert named["errors"] == [{"field": "action", "message": "is in the path already"}]
    filters = {"queue": queue, "state": "failed", "since": "2020-01-01T00:00:00Z", "metadata": {}}
    done = answered(
        200, "POST", "/dead-letters/replay", json={"filter": filters}, headers={"Prefer": "wait=30"}
    )
    assert done.headers["preference-applied"] == "wait=30"
    assert done.json()["moved"] == 1
    assert done.json()["filter"]["state"] == ["failed"]
    begun = answered(202, "POST", "/dead-letters/dismiss", json={"filter": {"queue": queue}}).json()
    assert begun["filter"] == {"queue": queue}


def test_bulk_operations(answered: Answered, queue: str) -> None:
    wanted = {"action": "delete", "filter": {"queue": queue}}
    begun = answered(202, "POST", "/bulk-operations", json=wanted)
    operation_id = begun.json()["operation_id"]
    assert begun.headers["location"] == f"/bulk-operations/{operation_id}"
    path, names = "/bulk-operations/{operation_id}", {"operation_id": operation_id}

    def done() -> bool:
        return bool(answered(200, "GET", path, names).json()["state"] == "done")

    wait_until(done, 15, lambda: "the operation is not done")
    listed = answered(200, "GET", "/bulk-operations").json()["operations"]
    assert operation_id in [each["operation_id"] for each in listed]
    assert answered(409, "POST", f"{path}/stop", names).json()["state"] == "done"
    assert answered(200, "POST", "/bulk-operations", json=wanted | {"dry_run": True}).json()["matched"] == 0
    answered(200, "POST", "/bulk-operations", json=wanted, headers={"Prefer": "wait=30"})
    for name in (NO_ID, "nothing"):
        answered(404, "GET", path, {"operation_id": name})
        answered(404, "POST", f"{path}/stop", {"operation_id": name})
    answered(400, "POST", "/bulk-operations", content=b"{")


@pytest.mark.parametrize(
    ("wrong", "field", "message"),
    [
        ({"action": "rename"}, "action", "must be one of cancel, retry, dismiss, delete"),
        ({"extra": 1}, "extra", "is not a known field"),
        ({"filter": {"state": "no"}}, "filter.state", None),
        ({"filter": {"state": "queued"}}, "filter.state", "retry works on jobs that are failed"),
        ({"filter": {"until": "soon"}}, "filter.until", "must be an RFC 3339 timestamp"),
        ({"filter": {"kind": "\0"}}, "filter", "has a NUL character"),
    ],
)
def test_a_wrong_bulk_operation_is_refused(
    answered: Answered, wrong: dict[str, Any], field: str, message: str | None
) -> None:
    body = {"action": "retry", "filter": {}, "dry_run": True} | wrong
    [error] = answered(422, "POST", "/bulk-operations", json=body).json()["errors"]
    assert error["field"] == field
    assert message in {None, error["message"]}


def test_schedules(answered: Answered) -> None:
    path, names = "/schedules/{name}", {"name": f"s-{uuid.uuid4().hex[:8]}"}
    wanted = {"cron": "0 3 1 1 *", "job": {"kind": "noop", "payload": {"exact": 1}}}
    made = answered(201, "PUT", path, names, json=wanted).json()
    assert (made["timezone"], made["job"]) == ("UTC", wanted["job"])
    answered(200, "PUT", path, names, json={**wanted, "timezone": "Europe/Berlin"})
    assert answered(200, "GET", path, names).json()["timezone"] == "Europe/Berlin"
    listed = answered(200, "GET", "/schedules").json()["schedules"]
    assert names["name"] in [each["name"] for each in listed]
    answered(400, "PUT", path, names, content=b"{")
    for wrong in ({"cron": "never"}, {"timezone": "Nowhere"}, {"job": {"kind": ""}}, {"more": 1}, {"job": 1}):
        answered(422, "PUT", path, names, json=wanted | wrong)
    answered(204, "DELETE", path, names)
    for method in ("GET", "DELETE"):
        answered(404, method, path, names)
        answered(404, method, path, {"name": "no%20name"})


def test_deliveries(answered: Answered, submit: Submit, read: Callable[..., dict[str, Any]]) -> None:
    host = f"{uuid.uuid4().hex[:12]}.invalid"
    job_id = submit(state_webhook_url=f"http://{host}/hook", webhook_events=["queued", "done"])
    assert read(job_id, 15)["state"] == "done"
    path, names = "/jobs/{job_id}/webhooks", {"job_id": job_id}
    found = answered(200, "GET", path, names).json()
    assert "next_after" not in found
    assert [each["type"] for each in found["deliveries"]] == ["queued", "done"]
    first, second = found["deliveries"]
    after = answered(200, "GET", path, names, params={"after": first["seq"]}).json()["deliveries"]
    assert [each["delivery_id"] for each in after] == [second["delivery_id"]]
    page = answered(200, "GET", "/webhooks", params={"host": host, "limit": 1})
    [listed] = page.json()["deliveries"]
    assert (listed["job_id"], listed["delivery_id"]) == (job_id, second["delivery_id"])
    assert page.links["next"]["url"].startswith("/webhooks?")
    rest = {"host": host, "limit": 1, "cursor": page.json()["next_cursor"]}
    [listed] = answered(200, "GET", "/webhooks", params=rest).json()["deliveries"]
    assert listed["delivery_id"] == first["delivery_id"]
    again = f"{path}/{{delivery_id}}/redeliver"
    answered(202, "POST", again, names | {"delivery_id": first["delivery_id"]})
    for wrong in (f"{job_id}-999", f"{NO_ID}-1", "nothing"):
        answered(404, "POST", again, names | {"delivery_id": wrong})
    for name in (NO_ID, "nothing"):
        answered(404, "GET", path, {"job_id": name})
        answered(404, "POST", again, {"job_id": name, "delivery_id": f"{name}-1"})
    for number in ("-1", "many", "", "2147483648"):
        [error] = answered(422, "GET", path, names, params={"after": number}).json()["errors"]
        assert error == {"field": "after", "message": "must be a seq"}


@pytest.mark.parametrize(
    ("query", "field", "message"),
    [
        ({"state": "lost"}, "state", "must be one of pending, delivered, given_up, refused"),
        ({"hosts": "a"}, "hosts", "is not a known filter"),
        ({"host": "a\0"}, "host", "has a NUL character"),
        ({"limit": ""}, "limit", "must be a number from 1 to 200"),
        ({"limit": "201"}, "limit", "must be a number from 1 to 200"),
        ({"cursor": "no"}, "cursor", "is not a cursor of ours"),
    ],
)
def test_a_wrong_filter_of_deliveries_is_named(
    answered: Answered, query: dict[str, str], field: str, message: str
) -> None:
    problem = answered(422, "GET", "/webhooks", params=query).json()
    assert problem["errors"] == [{"field": field, "message": message}]
