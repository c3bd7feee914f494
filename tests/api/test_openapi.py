"""The OpenAPI document is the code's, and real answers are what it says."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest

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


@pytest.fixture(scope="module")
def conforms(document: dict[str, Any]) -> Callable[[httpx.Response, str, str], None]:
    """Whether a real answer is one of those that the document promises."""

    def conforms(answer: httpx.Response, method: str, path: str) -> None:
        responses = document["paths"][path][method.lower()]["responses"]
        assert str(answer.status_code) in responses, (method, path, answer.status_code)
        content = responses[str(answer.status_code)].get("content")
        if content is None:
            assert answer.content == b""
            return
        [(media, described)] = content.items()
        assert answer.headers["content-type"].split(";")[0] == media
        schema = {**described["schema"], "components": document["components"]}
        jsonschema_rs.validate(schema, answer.json())

    return conforms


Conforms = Callable[[httpx.Response, str, str], None]


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
    for route in ("/healthz", "/readyz", "/version"):
        conforms(client.get(route), "GET", route)
