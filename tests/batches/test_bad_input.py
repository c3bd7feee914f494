"""What is wrong with files and batches is said in OpenAI's words, and names the parameter or the line."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from app.jobs.ids import new_id
from tests.batches.conftest import CHAT, as_file, begun, client_of, line, settled
from tests.conftest import Server
from tests.fakes import FakeOllama


@pytest.fixture
def wire(foreman: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=foreman.url) as made:
        yield made


def form(wire: httpx.Client, files: Any = None, **data: str) -> httpx.Response:
    given = {"file": as_file(line("x"))} if files is None else files
    return wire.post("/v1/files", data=data, files=given)


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({}, "purpose"),
        ({"purpose": "fine-tune"}, "purpose"),
        ({"purpose": "batch", "colour": "red"}, "colour"),
        ({"purpose": "batch", "expires_after[anchor]": "now"}, "expires_after[anchor]"),
        ({"purpose": "batch", "expires_after[seconds]": "60"}, "expires_after[anchor]"),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "-1"},
            "expires_after[seconds]",
        ),
        ({"purpose": "batch", "note": "x" * 5000}, "note"),
    ],
)
def test_a_form_that_is_wrong(wire: httpx.Client, data: dict[str, str], param: str) -> None:
    assert error_of(form(wire, **data))["param"] == param


def test_a_form_without_a_file(wire: httpx.Client) -> None:
    assert error_of(form(wire, {"other": ("x", b"x")}, purpose="batch"))["param"] in {"other", "file"}
    assert error_of(form(wire, {"purpose": (None, b"batch")}))["param"] == "file"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"{}", "application/json"),
        (b"", "multipart/form-data"),
        (b"no form", "multipart/form-data; boundary=x"),
        (
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nabc',
            "multipart/form-data; boundary=x",
        ),
        (b"", "multipart/form-data; boundary=" + "x" * 300),
        (
            b"--x\r\nContent-Type: " + b"y" * 20_000 + b"\r\n\r\n\r\n--x--\r\n",
            "multipart/form-data; boundary=x",
        ),
    ],
)
def test_what_is_no_form(wire: httpx.Client, body: bytes, content_type: str) -> None:
    error_of(wire.post("/v1/files", content=body, headers={"content-type": content_type}))


def test_a_file_that_is_too_large_is_refused_while_it_comes_in(
    foreman: Server, client: openai.OpenAI
) -> None:
    for size in (100_001, 400_000):
        with pytest.raises(openai.APIStatusError) as refused:
            client.files.create(file=("large.jsonl", b"x" * size), purpose="batch")
        assert refused.value.status_code == 413
    assert client.files.create(file=("fits.jsonl", b"x" * 100_000), purpose="batch").bytes == 100_000


def test_a_name_with_folders_and_oddities_is_made_plain(client: openai.OpenAI) -> None:
    made = client.files.create(file=("../../etc/passwd", b"x"), purpose="batch")
    assert made.filename == "passwd"
    assert client.files.create(file=("ü.jsonl", b""), purpose="batch").bytes == 0


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=10001", "limit"),
        ("order=up", "order"),
        ("after=nonsense", "after"),
        ("purpose=assistants", "purpose"),
        ("colour=red", "colour"),
    ],
)
def test_lists_refuse_what_they_do_not_know(wire: httpx.Client, query: str, param: str) -> None:
    assert error_of(wire.get(f"/v1/files?{query}"))["param"] == param


@pytest.mark.parametrize("name", ["file-1", "file-" + "0" * 26, "%00", "batch_x", "a/b"])
def test_what_is_not_there(wire: httpx.Client, name: str) -> None:
    for path in (f"/v1/files/{name}", f"/v1/files/{name}/content", f"/v1/batches/{name}"):
        error_of(wire.get(path), 404)
    error_of(wire.delete(f"/v1/files/{name}"), 404)
    error_of(wire.post(f"/v1/batches/{name}/cancel"), 404)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": ""}, "completion_window"),
        ({"completion_window": "0s"}, "completion_window"),
        ({"completion_window": "99999999d"}, "completion_window"),
        ({"completion_window": "1m1h"}, "completion_window"),
        ({"input_file_id": "file-" + "0" * 26}, "input_file_id"),
        ({"input_file_id": "nonsense"}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "\0"}}, "metadata"),
        ({"colour": "red"}, "colour"),
        ({"output_expires_after": {"anchor": "now", "seconds": 1}}, "output_expires_after"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 0}}, "output_expires_after"),
        ({"endpoint": None}, "endpoint"),
    ],
)
def test_a_batch_that_cannot_be(wire: httpx.Client, change: dict[str, Any], param: str) -> None:
    file = form(wire, purpose="batch").json()["id"]
    good = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    assert error_of(wire.post("/v1/batches", json=good | change))["param"] == param
    missing = {name: value for name, value in good.items() if name != "endpoint"}
    assert error_of(wire.post("/v1/batches", json=missing))["param"] == "endpoint"


def test_all_wrong_lines_are_listed_and_none_is_run(client: openai.OpenAI, foreman: Server) -> None:
    batch = begun(
        client,
        line("good"),
        "this is no JSON",
        line("good"),
        "",
        line("url", url="/v1/embeddings"),
        line("method", method="GET"),
        line(""),
        line("n" * 513),
        {"custom_id": "no body", "method": "POST", "url": CHAT},
        line("stream", body={"model": "llama3.2", "messages": [{}], "stream": True}),
        line("no model", body={}),
        line("odd", extra=1),
        line("list", body=[]),
        '["a list"]',
        line("null"),
        json.dumps(line("x")).replace('"x"', '"\\u0000"'),
        json.dumps(line("y")).replace('"y"', '"\\ud800"'),
        line("deep", body={"model": "llama3.2", "messages": [json.loads("[" * 70 + "]" * 70)]}),
        json.dumps(line("number")).replace('"POST"', "1e999"),
    )
    failed = settled(client, batch, "failed")
    assert failed.errors is not None
    assert failed.failed_at is not None
    found = [(each.line, each.code, each.param) for each in failed.errors.data or []]
    assert found == [
        (2, "invalid_json_line", None),
        (3, "duplicate_custom_id", "custom_id"),
        (5, "invalid_url", "url"),
        (6, "invalid_method", "method"),
        (7, "invalid_custom_id", "custom_id"),
        (8, "invalid_custom_id", "custom_id"),
        (9, "missing_required_parameter", "body"),
        (10, "invalid_request", "body.stream"),
        (11, "invalid_request", "body"),
        (12, "unknown_parameter", "extra"),
        (13, "invalid_request", "body"),
        (14, "invalid_json_line", None),
        (16, "invalid_custom_id", "custom_id"),
        (17, "invalid_json_line", None),
        (18, "invalid_json_line", None),
        (19, "invalid_method", "method"),
    ]
    job = httpx.get(f"{foreman.url}/jobs/{batch.id.removeprefix('batch_')}").json()
    assert (job["state"], job["error"]["code"]) == ("failed", "invalid_batch")
    assert httpx.get(f"{foreman.url}/jobs/{job['job_id']}/family").json()["children"]["total"] == 0
    assert (failed.output_file_id, failed.error_file_id) == (None, None)
    # Its input is not in use any more.
    assert client.files.delete(batch.input_file_id).deleted


@pytest.mark.parametrize("content", [b"", b"\n \n\t\r\n"])
def test_a_file_without_lines(client: openai.OpenAI, content: bytes) -> None:
    file = client.files.create(file=("empty.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    failed = settled(client, batch, "failed")
    assert failed.errors is not None
    assert [each.code for each in failed.errors.data or []] == ["empty_file"]


def test_bytes_that_are_no_text(client: openai.OpenAI) -> None:
    file = client.files.create(file=("bytes.jsonl", b"\xff\xfe\n\0"), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    failed = settled(client, batch, "failed")
    assert failed.errors is not None
    assert [each.line for each in failed.errors.data or []] == [1, 2]


def test_the_same_key_begins_one_batch_only(wire: httpx.Client) -> None:
    wanted = {
        "input_file_id": form(wire, purpose="batch").json()["id"],
        "endpoint": CHAT,
        "completion_window": "1h30m",
    }
    key = {"Idempotency-Key": new_id()}
    first, second = (wire.post("/v1/batches", json=wanted, headers=key).json() for _ in range(2))
    assert first["id"] == second["id"]
    error_of(wire.post("/v1/batches", json=wanted | {"completion_window": "2h"}, headers=key))


def test_a_job_that_is_no_batch_is_not_cancelled_as_one(wire: httpx.Client) -> None:
    job = wire.post("/jobs", json={"kind": "batch", "payload": {}}).json()["job_id"]
    error_of(wire.get(f"/v1/batches/batch_{job}"), 404)
    error_of(wire.post(f"/v1/batches/batch_{job}/cancel"), 404)
    # Somebody's own kind of that name goes to somebody's own workers.
    [claimed] = wire.post("/claims", json={"worker": "w", "queues": ["default"], "kinds": ["batch"]}).json()[
        "jobs"
    ]
    assert claimed["job_id"] == job


def test_a_worker_over_http_gets_no_batches(
    wire: httpx.Client, client: openai.OpenAI, fake: FakeOllama
) -> None:
    fake.control(token_seconds=60)
    batch = begun(client, line("x"))
    claim = {"worker": "w", "queues": ["batches", "batch-lines"], "limit": 10}
    assert wire.post("/claims", json=claim).json()["jobs"] == []
    assert wire.post("/claims", json=claim | {"kinds": ["batch"]}).json()["jobs"] == []
    client.batches.cancel(batch.id)
    settled(client, batch, "cancelled")


def test_other_tenants_have_no_such_files_and_batches(make_server: Any, fake: FakeOllama) -> None:
    server = make_server(FOREMAN_AUTH="on", FOREMAN_OLLAMA_URL=fake.url)
    rights = ("jobs:write", "jobs:read")
    with (
        client_of(server, server.key("a", *rights)) as ours,
        client_of(server, server.key("b", *rights)) as theirs,
        client_of(server, server.key("a", "jobs:read")) as reader,
    ):
        _keep_apart(ours, theirs, reader)
    with server.client() as admin:
        assert 'foreman_batches_ended_total{state="done"} 1.0' in admin.get("/metrics").text


def _keep_apart(ours: openai.OpenAI, theirs: openai.OpenAI, reader: openai.OpenAI) -> None:
    batch = settled(ours, begun(ours, line("x")))
    for file_id in (batch.input_file_id, batch.output_file_id or ""):
        for call in (theirs.files.retrieve, theirs.files.content, theirs.files.delete):
            with pytest.raises(openai.NotFoundError):
                call(file_id)
    for ask in (theirs.batches.retrieve, theirs.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            ask(batch.id)
    assert theirs.files.list().data == []
    assert theirs.batches.list().data == []
    with pytest.raises(openai.BadRequestError):
        theirs.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")
    assert [each.id for each in reader.batches.list()] == [batch.id]
    with pytest.raises(openai.PermissionDeniedError):
        reader.files.create(file=as_file(line("x")), purpose="batch")
    with pytest.raises(openai.PermissionDeniedError):
        reader.batches.cancel(batch.id)
