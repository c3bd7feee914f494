"""What goes wrong on Anthropic's surface: its shape, its statuses, the classes of its own client."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import MessageParam

from app.identity.scopes import Scope
from tests.conftest import Server
from tests.fakes import FakeOllama
from tests.fakes.openai_llama import MODEL

HELLO: list[MessageParam] = [{"role": "user", "content": "Hello, world"}]
BODY = {"model": "llama3.2", "max_tokens": 30, "messages": HELLO}


def check_shape(answer: httpx.Response, status: int, kind: str) -> str:
    assert answer.status_code == status, answer.text
    said = answer.json()
    assert set(said) == {"type", "error"}
    assert said["type"] == "error"
    assert said["error"]["type"] == kind
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    return str(said["error"]["message"])


def as_key(foreman: Server, key: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=foreman.url, api_key=key, max_retries=0)


@pytest.fixture
def strangers(foreman: Server) -> Iterator[httpx.Client]:
    with foreman.client("") as made:
        yield made


def test_an_unknown_model_is_not_found(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as refused:
        client.messages.create(model="nothing", max_tokens=9, messages=HELLO)
    assert refused.value.body == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "model 'nothing' not found"},
    }
    assert refused.value.request_id


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("max_tokens", {"max_tokens": -1}),
        ("container", {"container": "c"}),
        ("tools", {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}]},
        ),
    ],
)
def test_bad_input_is_refused_by_its_name_and_leaves_no_job(
    client: anthropic.Anthropic, caller: httpx.Client, name: str, wrong: dict[str, Any]
) -> None:
    before = caller.get("/jobs").json()["jobs"]
    with pytest.raises(anthropic.BadRequestError, match=name) as refused:
        client.messages.create(model="llama3.2", max_tokens=9, messages=HELLO, extra_body=wrong)
    assert refused.value.type == "invalid_request_error"
    assert caller.get("/jobs").json()["jobs"] == before


def test_what_is_no_request_at_all_is_refused(caller: httpx.Client) -> None:
    for content in (b"", b"{", b"[]", b'"x"', b"\xff", b'{"model": NaN}', b"[" * 100):
        check_shape(caller.post("/v1/messages", content=content), 400, "invalid_request_error")
        check_shape(caller.post("/v1/messages/count_tokens", content=content), 400, "invalid_request_error")


def test_what_is_not_offered_is_refused_in_the_shape_of_the_surface(caller: httpx.Client) -> None:
    check_shape(caller.get("/v1/messages"), 404, "not_found_error")
    check_shape(caller.delete("/v1/messages/count_tokens"), 404, "not_found_error")
    for path in ("/v1/messages/batches", "/v1/messages/", "//v1/messages"):
        answer = caller.post(f"{caller.base_url}".rstrip("/") + path, json=BODY)
        assert "not offered" in check_shape_of_unknown(answer)


def check_shape_of_unknown(answer: httpx.Response) -> str:
    assert (answer.status_code, answer.json()["type"]) == (404, "error")
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/other"])
def test_without_a_key_nobody_comes_in(strangers: httpx.Client, path: str) -> None:
    check_shape(strangers.post(path, json=BODY), 401, "authentication_error")
    wrong = {"x-api-key": "sk-ant-wrong"}
    check_shape(strangers.post(path, json=BODY, headers=wrong), 401, "authentication_error")


def test_a_key_is_known_by_either_header_and_its_scopes_hold(foreman: Server) -> None:
    key = foreman.key("default", Scope.JOBS_WRITE)
    as_bearer = anthropic.Anthropic(base_url=foreman.url, auth_token=key, max_retries=0)
    for client in (as_key(foreman, key), as_bearer):
        with client:
            answer = client.messages.create(model="llama3.2", max_tokens=9, messages=HELLO)
            assert answer.role == "assistant"
    with as_key(foreman, foreman.key("default", Scope.JOBS_READ)) as reading:
        with pytest.raises(anthropic.PermissionDeniedError) as refused:
            reading.messages.create(model="llama3.2", max_tokens=9, messages=HELLO)
        assert refused.value.type == "permission_error"
        with pytest.raises(anthropic.PermissionDeniedError):
            reading.messages.count_tokens(model=MODEL, messages=HELLO)
    with as_key(foreman, "wrong") as stranger, pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(model="llama3.2", max_tokens=9, messages=HELLO)


def test_messages_of_other_tenants_are_not_there(foreman: Server) -> None:
    with as_key(foreman, foreman.key("ours")) as ours:
        job_id = ours.messages.create(model="llama3.2", max_tokens=9, messages=HELLO).id.removeprefix("msg_")
    with foreman.client(foreman.key("theirs")) as theirs:
        assert theirs.get(f"/jobs/{job_id}").status_code == 404
        assert theirs.get(f"/jobs/{job_id}/stream").status_code == 404


def test_too_many_requests_are_a_rate_limit(foreman: Server) -> None:
    key = foreman.key("default", limits={"jobs": 1})
    with foreman.client(key) as other:
        other.post("/jobs", json={"kind": "noop", "delay_seconds": 3600}).raise_for_status()
    with as_key(foreman, key) as client, pytest.raises(anthropic.RateLimitError) as refused:
        client.messages.create(model="llama3.2", max_tokens=9, messages=HELLO)
    assert refused.value.type == "rate_limit_error"


def test_a_body_that_is_too_large_is_said_to_be(caller: httpx.Client) -> None:
    answer = caller.post("/v1/messages", content=b" " * (17 * 1024 * 1024))
    check_shape(answer, 413, "request_too_large")


@pytest.mark.parametrize(
    ("status", "raised", "kind", "streams"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error", True),
        (400, anthropic.BadRequestError, "invalid_request_error", False),
        (500, anthropic.InternalServerError, "api_error", True),
        (500, anthropic.InternalServerError, "api_error", False),
        (529, anthropic.InternalServerError, "overloaded_error", True),
        # Tried again, so that a stream may have begun by then.
        (429, anthropic.RateLimitError, "rate_limit_error", False),
        (503, anthropic.InternalServerError, "overloaded_error", False),
    ],
)
def test_a_targets_refusal_is_told_in_its_own_words(
    client: anthropic.Anthropic,
    fake: FakeOllama,
    status: int,
    raised: type[anthropic.APIStatusError],
    kind: str,
    streams: bool,
) -> None:
    fault = {"kind": "error", "status": status, "message": "not like this", "path": "/api/chat"}
    fake.control(faults=[fault])
    with pytest.raises(raised) as refused:
        client.messages.create(model="llama3.2", max_tokens=9, messages=HELLO, stream=streams)
    assert (refused.value.status_code, refused.value.type) == (status, kind)
    assert refused.value.api_message == "not like this"


def test_an_answer_that_breaks_in_the_middle_ends_with_an_error(
    client: anthropic.Anthropic, caller: httpx.Client, fake: FakeOllama
) -> None:
    fake.control(faults=[{"kind": "error", "after": 2, "path": "/api/chat", "message": "out of memory"}])
    headers = {"x-foreman-deadline-seconds": "3"}
    with caller.stream("POST", "/v1/messages", json={**BODY, "stream": True}, headers=headers) as answer:
        assert answer.status_code == 200
        *_, name, data, empty = answer.iter_lines()
    assert (name, empty) == ("event: error", "")
    assert data.startswith('data: {"type":"error","error":{"type":')
    with (
        client.messages.stream(
            model="llama3.2", max_tokens=9, messages=HELLO, extra_headers=headers
        ) as stream,
        pytest.raises(anthropic.APIStatusError),
    ):
        stream.get_final_message()


def test_a_deadline_that_passes_is_a_time_out(caller: httpx.Client, fake: FakeOllama) -> None:
    fake.control(prefill_seconds=60)
    headers = {"x-foreman-deadline-seconds": "1"}
    with caller.stream("POST", "/v1/messages", json={**BODY, "stream": True}, headers=headers) as answer:
        *_, name, data, _ = answer.iter_lines()
    assert name == "event: error"
    assert data == (
        'data: {"type":"error","error":{"type":"timeout_error","message":"the job\'s deadline has passed"}}'
    )


def test_versions_and_betas_of_any_name_are_taken(caller: httpx.Client) -> None:
    headers = {"anthropic-version": "2099-01-01", "anthropic-beta": "what-2099,ever"}
    answer = caller.post("/v1/messages", json=BODY, headers=headers, params={"beta": "true"})
    assert answer.status_code == 200
    assert answer.headers["x-foreman-job-id"] == answer.json()["id"].removeprefix("msg_")
