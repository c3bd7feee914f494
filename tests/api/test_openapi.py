"""The OpenAPI document is the code's, and real answers are what it says."""

import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import httpx
import jsonschema_rs
import pytest

from app.api import artifacts, events, feed, jobs, stream, workers
from app.openapi import render
from tests.api.conftest import Submit
from tests.conftest import ROOT

DOCUMENT = ROOT / "openapi" / "openapi.json"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return dict(json.loads(DOCUMENT.read_text()))


def test_the_committed_document_is_the_rendered_one() -> None:
    assert DOCUMENT.read_text() == render(), "run `make openapi` and commit the result"


def test_the_server_serves_the_same_document(client: httpx.Client, document: dict[str, Any]) -> None:
    answer = client.get("/openapi.json")
    assert answer.status_code == 200
    assert answer.json() == document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_every_route_of_the_core_is_described(document: dict[str, Any]) -> None:
    described = {(method, path) for method, path, _ in operations(document)}
    assert described >= {
        ("POST", "/jobs"),
        ("POST", "/jobs/batch"),
        ("GET", "/jobs"),
        ("GET", "/jobs/{job_id}"),
        ("DELETE", "/jobs/{job_id}"),
        ("POST", "/jobs/{job_id}/cancel"),
        ("POST", "/jobs/{job_id}/retry"),
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/version"),
    }


def test_every_operation_has_a_summary_and_an_id_of_its_own(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    assert all(operation.get("summary") for _, _, operation in operations(document))


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                yield node["$ref"]
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    found = set(references(document))
    assert found
    for reference in found:
        kind, name = reference.removeprefix("#/components/").split("/")
        assert name in document["components"][kind], reference


def test_errors_are_described_as_problem_documents(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        # The synchronous surfaces answer as those whom they stand for.
        synchronous = path.startswith(("/api/", "/v1/"))
        expected = ["application/json"] if synchronous else ["application/problem+json"]
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert list(response["content"]) == expected, (method, path, status)


class Conforms:
    """Whether a real answer is one of those that the document promises; and of which operations it was asked."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self.asked: set[tuple[str, str]] = set()

    def __call__(self, answer: httpx.Response, method: str, path: str, status: int | None = None) -> Any:
        self.asked.add((method, path))
        assert status is None or answer.status_code == status, answer.text
        responses = self._document["paths"][path][method.lower()]["responses"]
        assert str(answer.status_code) in responses, (method, path, answer.status_code)
        promised = responses[str(answer.status_code)]
        if answer.is_success:
            # No header that is described under another status is there unsaid.
            described = {name.lower() for each in responses.values() for name in each.get("headers", {})}
            said = {name.lower() for name in promised.get("headers", {})}
            assert described & set(answer.headers) <= said, (method, path, answer.status_code)
        if "content" not in promised:
            assert answer.content == b""
            return None
        content = promised["content"]
        media = answer.headers["content-type"].split(";")[0]
        schema = (content.get(media) or content["*/*"])["schema"]
        if schema.get("type") == "string":
            return answer.content
        document = answer.json()
        jsonschema_rs.validate({**schema, "components": self._document["components"]}, document)
        return document


@pytest.fixture
def conforms(document: dict[str, Any]) -> Conforms:
    return Conforms(document)


def test_real_answers_of_every_route_are_as_described(
    client: httpx.Client, submit: Submit, queue: str, conforms: Conforms
) -> None:
    body = {"kind": "noop", "queue": queue}
    job = client.post("/jobs", json=body, headers={"Prefer": "wait=10"})
    assert job.status_code == 200
    conforms(job, "POST", "/jobs")
    conforms(client.post("/jobs", json=body), "POST", "/jobs")
    conforms(client.post("/jobs", content=b"{"), "POST", "/jobs")
    conforms(client.post("/jobs", json={"kind": "a b"}), "POST", "/jobs")
    conforms(client.post("/jobs/batch", json={"jobs": [body, body]}), "POST", "/jobs/batch")
    conforms(client.post("/jobs/batch", json={"jobs": [1]}), "POST", "/jobs/batch")
    conforms(client.get("/jobs", params={"queue": queue}), "GET", "/jobs")
    conforms(client.get("/jobs", params={"limit": 0}), "GET", "/jobs")
    one, path = "/jobs/{job_id}", f"/jobs/{job.json()['job_id']}"
    conforms(client.get(path), "GET", one)
    conforms(client.get(path, headers={"If-None-Match": "*"}), "GET", one)
    conforms(client.get("/jobs/nothing"), "GET", one)
    conforms(client.get(f"{path}/explain"), "GET", f"{one}/explain")
    conforms(client.get("/jobs/nothing/explain"), "GET", f"{one}/explain")
    conforms(client.post(f"{path}/cancel"), "POST", f"{one}/cancel")
    conforms(client.post(f"{path}/cancel", content=b"["), "POST", f"{one}/cancel")
    conforms(client.post(f"{path}/retry"), "POST", f"{one}/retry")
    chat = {
        "model": "echo",
        "messages": [{"role": "user", "content": "hi"}],
        "options": {"echo_fail": "permanent"},
    }
    failed = client.post("/jobs", json=chat, headers={"Prefer": "wait=10"})
    conforms(failed, "POST", "/jobs")
    conforms(client.post(f"/jobs/{failed.json()['job_id']}/retry"), "POST", f"{one}/retry")
    conforms(client.delete(path), "DELETE", one)
    conforms(client.delete(path), "DELETE", one)
    assert conforms.asked == declared(jobs)
    for route in ("/healthz", "/readyz", "/version", "/metrics"):
        conforms(client.get(route), "GET", route)


JOB = "/jobs/{job_id}"


def test_real_answers_to_workers_are_as_described(
    client: httpx.Client, submit: Submit, queue: str, conforms: Conforms
) -> None:
    def claimed() -> tuple[str, dict[str, str]]:
        job_id = submit(kind="own-kind")
        asked = {"worker": "a worker", "queues": [queue], "wait_seconds": 10}
        [job] = conforms(client.post("/claims", json=asked), "POST", "/claims", 200)["jobs"]
        assert job["job_id"] == job_id
        return job_id, {"lease_token": job["lease_token"]}

    conforms(client.post("/claims", json={"worker": "a worker", "queues": [queue]}), "POST", "/claims", 200)
    conforms(client.post("/claims", json={"worker": ""}), "POST", "/claims", 422)
    endings: list[tuple[str, dict[str, Any]]] = [
        ("complete", {"result": {"a": 1}}),
        ("fail", {}),
        ("release", {}),
        ("defer", {}),
    ]
    for settles, more in endings:
        job_id, token = claimed()
        said: list[tuple[str, dict[str, Any]]] = [
            ("start", {}),
            ("heartbeat", {"lease_seconds": 60}),
            ("progress", {"fraction": 0.5}),
            ("logs", {"entries": [{"message": "well"}]}),
            (settles, more),
        ]
        for verb, fields in said:
            path = f"/jobs/{job_id}/{verb}"
            conforms(client.post(path, json={**token, **fields}), "POST", f"{JOB}/{verb}", 200)
        path, described = f"/jobs/{job_id}/{settles}", f"{JOB}/{settles}"
        conforms(client.post(path, json={"lease_token": "another"}), "POST", described, 409)
        conforms(client.post(path, json={}), "POST", described, 422)
        conforms(client.post(f"/jobs/nothing/{settles}", json=token), "POST", described, 404)
        conforms(client.post(f"/jobs/{job_id}/cancel"), "POST", f"{JOB}/cancel", 200)
    (first, token), (second, other), (third, last) = claimed(), claimed(), claimed()
    entries = [
        {"job_id": first, "verb": "heartbeat", **token},
        {"job_id": second, "verb": "progress", **other},
        {"job_id": third, "verb": "start", **last},
        {"job_id": first, "verb": "complete", **token},
        {"job_id": second, "verb": "complete", "lease_token": "another"},
        {"job_id": "nothing", "verb": "complete", **token},
    ]
    answers = conforms(
        client.post("/settlements", json={"settlements": entries}), "POST", "/settlements", 200
    )
    assert [each["ok"] for each in answers["settlements"]] == [True, True, True, True, False, False]
    conforms(client.post("/settlements", json={"settlements": []}), "POST", "/settlements", 422)
    conforms(client.get("/workers"), "GET", "/workers", 200)
    assert conforms.asked - {("POST", f"{JOB}/cancel")} == declared(workers)


def test_real_answers_of_events_and_artifacts_are_as_described(
    client: httpx.Client, submit: Submit, queue: str, conforms: Conforms
) -> None:
    job_id = submit(kind="own-kind")
    asked = {"worker": "a worker", "queues": [queue], "wait_seconds": 10}
    [job] = client.post("/claims", json=asked).json()["jobs"]
    token = {"X-Foreman-Lease-Token": job["lease_token"]}
    streams = {"Accept": "text/event-stream"}

    log, path = f"{JOB}/events", f"/jobs/{job_id}/events"
    conforms(client.post(path, json={"type": "approve", "payload": [1]}), "POST", log, 201)
    conforms(client.post(path, json={"type": "done"}), "POST", log, 422)
    conforms(client.post("/jobs/nothing/events", json={"type": "approve"}), "POST", log, 404)
    conforms(client.get(path), "GET", log, 200)
    conforms(client.get(path, params={"after": "x"}), "GET", log, 422)
    conforms(client.get("/jobs/nothing/events"), "GET", log, 404)

    one, path = f"{JOB}/artifacts/{{name}}", f"/jobs/{job_id}/artifacts/report"
    conforms(client.put(path, content=b"text", headers=token), "PUT", one, 201)
    conforms(client.put(path, content=b"text", headers=token), "PUT", one, 200)
    conforms(client.put(path, content=b"text"), "PUT", one, 422)
    etag = client.get(path).headers["etag"]
    assert conforms(client.get(path), "GET", one, 200) == b"text"
    assert conforms(client.get(path, headers={"Range": "bytes=1-2"}), "GET", one, 206) == b"ex"
    conforms(client.get(path, headers={"If-None-Match": etag}), "GET", one, 304)
    conforms(client.get(path, headers={"Range": "bytes=9-"}), "GET", one, 416)
    conforms(client.get(f"/jobs/{job_id}/artifacts/nothing"), "GET", one, 404)

    client.post(f"/jobs/{job_id}/complete", json={"lease_token": job["lease_token"]})
    done = client.get(f"/jobs/{job_id}/events").json()["next_after"]
    conforms(client.post(f"/jobs/{job_id}/events", json={"type": "approve"}), "POST", log, 409)
    conforms(client.get(f"/jobs/{job_id}/events", headers=streams), "GET", log, 200)
    resumed = {**streams, "Last-Event-ID": str(done)}
    conforms(client.get(f"/jobs/{job_id}/events", headers=resumed), "GET", log, 204)

    chat = submit(kind="chat", model="echo", messages=[{"role": "user", "content": "hi"}])
    tokens = f"{JOB}/stream"
    conforms(client.get(f"/jobs/{chat}/stream"), "GET", tokens, 200)
    conforms(client.get(f"/jobs/{chat}/stream", headers=streams), "GET", tokens, 200)
    conforms(client.get(f"/jobs/{job_id}/stream"), "GET", tokens, 422)
    conforms(client.get("/jobs/nothing/stream"), "GET", tokens, 404)

    page = conforms(client.get("/events", params={"after": "0.0"}), "GET", "/events", 200)
    assert page["events"]
    conforms(client.get("/events", params={"after": "x"}), "GET", "/events", 422)
    assert conforms.asked == declared(events, feed, stream, artifacts)


def declared(*files: ModuleType) -> set[tuple[str, str]]:
    return {(route.method, route.path_format) for each in files for route in each.routes}
