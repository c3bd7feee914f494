"""No input, however odd, gets a 500; each gets the status that the specification says, as a problem document."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.api.conftest import problem_of
from tests.api.wire import say
from tests.conftest import Server

POSTS = ["/jobs", "/jobs/batch"]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model":',
        b"not json",
        b"model=echo",
        b'{"model":"echo",}',
        b"{'model':'echo'}",
        b'\xef\xbb\xbf{"model":"echo"}',
        '{"model":"echo"}'.encode("utf-16-le"),
        b'{"a":"\x00"}',
    ],
)
def test_what_cannot_be_parsed_is_a_400(client: httpx.Client, path: str, body: bytes) -> None:
    problem_of(client.post(path, content=body), 400, "invalid_request")


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"1",
        b"null",
        b'"x"',
        b'{"model":"\xff"}',
        '{"model":"echo"}'.encode("utf-16"),
        b'{"model":"\\ud800"}',
        b'{"model":"echo","x":"\\udfff"}',
        b'{"model":"echo","\\ud800":1}',
        b'{"model":"echo","x":NaN}',
        b'{"model":"echo","x":-Infinity}',
        b'{"model":"echo","x":' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"x":' * 1000 + b"1" + b"}" * 1000,
        b"[" * 100_000,
        b'{"kind":"a b"}',
        b'{"kind":"noop","priority":1e999}',
        b'{"kind":"noop","priority":' + b"9" * 5000 + b"}",
        b'{"model":"echo","options":{"num_ctx":' + b"9" * 5000 + b"}}",
    ],
)
def test_what_is_well_formed_but_wrong_is_a_422(client: httpx.Client, path: str, body: bytes) -> None:
    problem_of(client.post(path, content=body), 422, "invalid_request")


@pytest.mark.parametrize("depth", [64, 65])
def test_sixty_four_levels_are_taken_and_sixty_five_are_not(
    client: httpx.Client, queue: str, depth: int
) -> None:
    # Two of the levels are the body and its payload.
    nested = "[" * (depth - 2) + "]" * (depth - 2)
    answer = client.post(
        "/jobs", content=f'{{"kind":"own-kind","queue":"{queue}","payload":{{"x":{nested}}}}}'
    )
    if depth == 64:
        assert answer.status_code == 202
        assert nested in client.get(answer.headers["location"]).text
    else:
        problem_of(answer, 422, "invalid_request")


def test_wrong_fields_are_named_all_at_once(client: httpx.Client) -> None:
    body = {"kind": "noop", "queue": "a b", "priority": "high", "max_attempts": 0, "deadline": "soon"}
    document = problem_of(client.post("/jobs", json=body), 422, "invalid_request")
    assert {error["field"] for error in document["errors"]} == {
        "queue",
        "priority",
        "max_attempts",
        "deadline",
    }
    assert all(error["message"] for error in document["errors"])


def test_unknown_fields_beside_a_payload_are_named(client: httpx.Client) -> None:
    document = problem_of(client.post("/jobs", json={"kind": "noop", "prioriti": 1}), 422, "invalid_request")
    assert [error["field"] for error in document["errors"]] == ["prioriti"]


def test_a_refusal_repeats_odd_text_without_harm(client: httpx.Client) -> None:
    """A lone surrogate in the error's own body would be a 500 on the way out."""
    for name in ("\u0000", "\U0001f600", '"', "\\", "<script>", "x" * 5000):
        body = {"kind": "noop", name: 1}
        document = problem_of(client.post("/jobs", json=body), 422, "invalid_request")
        assert document["errors"][0]["field"] == name
    problem_of(client.post("/jobs", content=b'{"kind":"noop","\\ud800":1}'), 422, "invalid_request")


@pytest.mark.parametrize("secret", ["whsec_" + "a" * 32, "", "\u0000"])
def test_webhook_secrets_are_taken_or_refused_and_never_shown(
    client: httpx.Client, queue: str, secret: str
) -> None:
    body = {
        "kind": "own-kind",
        "queue": queue,
        "state_webhook_url": "https://example.org/hook",
        "webhook_events": ["done", "null"],
        "webhook_secret": secret,
    }
    answer = client.post("/jobs", json=body)
    assert answer.status_code in {202, 422}, answer.text
    if secret and answer.status_code == 202:
        assert secret not in client.get(answer.headers["location"]).text


@pytest.mark.parametrize(
    "url", ["https://example.org/\u0000", "not a url", "ftp://example.org/", "\U0001f600"]
)
def test_an_odd_webhook_address_is_never_a_500(client: httpx.Client, queue: str, url: str) -> None:
    answer = client.post("/jobs", json={"kind": "own-kind", "queue": queue, "state_webhook_url": url})
    assert answer.status_code in {202, 422}, answer.text


def test_one_bad_submission_does_not_harm_those_that_come_with_it(api: Server, queue: str) -> None:
    """They share a commit; see the batcher."""
    fine = {"kind": "own-kind", "queue": queue}
    bad = [
        {**fine, "parent_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"},
        {**fine, "metadata": {"a": "\u0000"}},
        {**fine, "priority": 101},
    ]

    def post(body: dict[str, Any]) -> int:
        return httpx.post(f"{api.url}/jobs", json=body, timeout=30).status_code

    with ThreadPoolExecutor(16) as pool:
        mixed = [fine if n % 3 else bad[n % len(bad)] for n in range(60)]
        statuses = list(pool.map(post, mixed))
    for body, status in zip(mixed, statuses, strict=True):
        assert status == 202 if body is fine else status in {202, 422}, (body, status)


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        ("start", {}),
        ("heartbeat", {}),
        ("complete", {"result": "\0"}),
        ("complete", {"result": 1, "usage": {"\0": "\0"}}),
        ("fail", {"error": {"code": "\0", "message": "x"}, "retryable": False}),
        ("fail", {"error": {"code": "x", "message": "\0"}, "retryable": True}),
        ("defer", {"reason": "\0"}),
        ("release", {"reason": "\0"}),
        ("progress", {"message": "\0", "step": "\0"}),
        ("logs", {"entries": [{"level": "info", "message": "\0", "at": "\0"}]}),
    ],
)
def test_a_nul_from_a_worker_is_never_a_500(
    client: httpx.Client, claimed: Callable[..., dict[str, Any]], verb: str, fields: dict[str, Any]
) -> None:
    job = claimed()
    path = f"/jobs/{job['job_id']}/{verb}"
    for token in ("\0", job["lease_token"]):
        answer = client.post(path, json={"lease_token": token, **fields})
        assert answer.status_code < 500, answer.text
    assert client.get(f"/jobs/{job['job_id']}").status_code == 200
    assert client.get(f"/jobs/{job['job_id']}/events").status_code == 200


# -- paths and methods -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/nowhere", "/jobs/", "/jobs/x/y", "/JOBS", "/jobs//cancel", "/%00", "/..%2f..", "/openapi.yaml"],
)
def test_an_unknown_path_is_a_404(client: httpx.Client, path: str) -> None:
    problem_of(client.get(path), 404, "not_found")


JOB = "/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/jobs", {"GET", "POST"}),
        ("DELETE", "/jobs", {"GET", "POST"}),
        ("PATCH", JOB, {"GET", "DELETE"}),
        ("POST", JOB, {"GET", "DELETE"}),
        ("GET", f"{JOB}/cancel", {"POST"}),
        ("GET", f"{JOB}/retry", {"POST"}),
        ("POST", "/healthz", {"GET", "HEAD"}),
        ("PROPFIND", "/jobs", {"GET", "POST"}),
    ],
)
def test_a_wrong_method_is_a_405_and_says_which_are_right(
    client: httpx.Client, method: str, path: str, allowed: set[str]
) -> None:
    answer = client.request(method, path)
    problem_of(answer, 405, "method_not_allowed")
    named = {each.strip() for each in answer.headers["allow"].split(",")}
    assert named == allowed


def test_head_is_answered_without_a_body(client: httpx.Client) -> None:
    answer = client.head("/healthz")
    assert answer.status_code in {200, 405}
    assert answer.content == b""


@pytest.mark.parametrize("accept", ["text/html", "application/xml", "*/*;q=0", "nonsense"])
def test_an_error_is_a_problem_document_whatever_is_accepted(client: httpx.Client, accept: str) -> None:
    problem_of(client.get("/nowhere", headers={"Accept": accept}), 404, "not_found")


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "x"]
)
def test_a_json_body_is_taken_for_what_it_is_whatever_it_is_called(
    client: httpx.Client, queue: str, content_type: str
) -> None:
    """curl -d says form-urlencoded."""
    body = json.dumps({"kind": "own-kind", "queue": queue})
    answer = client.post("/jobs", content=body, headers={"Content-Type": content_type})
    assert answer.status_code == 202


# -- the wire --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"NONSENSE\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
        b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /jobs HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50,  # somebody speaks TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /jobs/\xff\xfe HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_and_closed(api: Server, request_bytes: bytes) -> None:
    answer = say(api, request_bytes, patience=8)
    assert answer.closed
    assert answer.statuses
    assert all(status in {400, 404, 405, 422} for status in answer.statuses), answer.raw
    assert b"application/problem+json" in answer.raw
    assert b'"code":' in answer.body
    assert b"Traceback" not in answer.raw


@pytest.mark.parametrize(
    "head",
    [
        b"GET http://elsewhere/healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade, close\r\n\r\n",
        b"GET /jobs?" + b"a=b&" * 3000 + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        b"GET /" + b"%2e%2e/" * 3000 + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        b"GET /jobs?%zz=%&cursor=%00 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    ],
)
def test_odd_but_valid_requests_are_answered(api: Server, head: bytes) -> None:
    answer = say(api, head, patience=8)
    assert answer.statuses
    assert all(status < 500 for status in answer.statuses), answer.raw


def test_pipelined_requests_are_answered_in_order(api: Server) -> None:
    one = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    bad = b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n"
    last = b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    assert say(api, one + bad + one + last).statuses == [200, 404, 200, 200]


def test_the_log_shows_no_failed_request(api: Server, client: httpx.Client) -> None:
    """Whatever the tests before sent to this server: nothing was a bug."""
    assert client.get("/healthz").status_code == 200
    assert "request.failed" not in api.log()
