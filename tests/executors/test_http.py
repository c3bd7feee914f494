"""Kind `http`: what goes out, what comes back, and what each ending means for the job."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from app.errors import InvalidRequest
from app.executors.http import MAX_BODY_BYTES, HttpExecutor
from app.executors.http_call import parse_call
from app.executors.protocol import ClaimedJob
from app.jobs.outcomes import Deferred, Failed, Outcome, Retry, Succeeded
from app.outbound.client import GuardedClient
from app.outbound.guard import AddressPolicy
from tests.conftest import Server, free_port, wait_until
from tests.outbound.receivers import Receiver, Visit, once, once_and_close
from tests.patience import until
from tests.rows import made_up
from tests.serving import serving

JOB_ID = "01JZ7Q0C3N8W9V5T4R2E1D6A7B"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Context:
    """The engine's end of the line."""

    def __init__(self) -> None:
        self.started = 0

    async def start(self) -> None:
        self.started += 1

    def output(self, part: str | dict[str, Any]) -> None:
        raise AssertionError("an http job says nothing")

    async def progress(self, **fields: Any) -> None:
        raise AssertionError("an http job reports no progress")

    async def log(self, level: str, message: str) -> None:
        raise AssertionError("an http job logs nothing")


@pytest.fixture
async def executor() -> AsyncIterator[HttpExecutor]:
    client = GuardedClient(AddressPolicy(allow_loopback=True))
    yield HttpExecutor(client)
    await client.aclose()


def claimed(payload: dict[str, Any] | str, **changes: Any) -> ClaimedJob:
    fields: dict[str, Any] = {
        "id": JOB_ID,
        "tenant": "default",
        "queue": "default",
        "lane": "http",
        "kind": "http",
        "payload": payload if isinstance(payload, str) else json.dumps(payload),
        "model": None,
        "target": None,
        "attempt": 1,
        "max_attempts": 5,
        "deferrals": 0,
        "lease_token": "t",
        "deadline": None,
        "max_duration_seconds": None,
        "traceparent": TRACE,
    }
    return made_up(ClaimedJob, **{**fields, **changes})


async def run(executor: HttpExecutor, payload: dict[str, Any] | str, **changes: Any) -> Outcome:
    context = Context()
    outcome = await executor.run(claimed(payload, **changes), context)
    assert context.started == 1
    return outcome


async def result_of(executor: HttpExecutor, payload: dict[str, Any], **changes: Any) -> dict[str, Any]:
    outcome = await run(executor, payload, **changes)
    assert isinstance(outcome, Succeeded), outcome
    answered: dict[str, Any] = json.loads(outcome.result)
    return answered


def answer(body: bytes, content_type: str = "text/plain", status: int = 200, extra: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\n{extra}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def sent(receiver: Receiver, index: int = 0) -> tuple[str, dict[str, str], bytes]:
    head, _, body = receiver.requests[index].partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}, body


async def test_a_call_goes_out_as_described_with_the_jobs_identity_on_it(executor: HttpExecutor) -> None:
    async with Receiver(answer(b"ok")) as receiver:
        await result_of(
            executor,
            {
                "method": "PUT",
                "url": receiver.url + "?a=b",
                "headers": {"X-Mine": "yes"},
                "body": "plain",
                "timeout_seconds": 7,
            },
        )
        line, headers, body = sent(receiver)
    assert line == "PUT /hook?a=b HTTP/1.1"
    assert headers["x-mine"] == "yes"
    assert headers["idempotency-key"] == JOB_ID
    assert headers["traceparent"] == TRACE
    assert headers["x-foreman-timeout"] == "7"
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert body == b"plain"


async def test_a_body_of_json_goes_out_byte_for_byte(executor: HttpExecutor) -> None:
    async with Receiver(answer(b"ok")) as receiver:
        payload = f'{{"url":"{receiver.url}","body":{{"b":1.10,"a":[10000000000000000000001]}}}}'
        await run(executor, payload)
        line, headers, body = sent(receiver)
    assert line.startswith("POST ")
    assert headers["content-type"] == "application/json"
    assert body == b'{"b":1.10,"a":[10000000000000000000001]}'


async def test_a_content_type_of_the_callers_own_stays(executor: HttpExecutor) -> None:
    async with Receiver(answer(b"ok")) as receiver:
        await run(executor, {"url": receiver.url, "body": "a=b", "headers": {"Content-Type": "text/csv"}})
        assert sent(receiver)[1]["content-type"] == "text/csv"


async def test_without_a_body_it_is_a_get(executor: HttpExecutor) -> None:
    async with Receiver(answer(b"ok")) as receiver:
        await run(executor, {"url": receiver.url})
        line, headers, body = sent(receiver)
    assert line.startswith("GET ")
    assert "content-type" not in headers
    assert body == b""


async def test_the_time_that_the_job_has_left_bounds_the_call(executor: HttpExecutor) -> None:
    async with Receiver(answer(b"ok")) as receiver:
        await run(executor, {"url": receiver.url}, deadline=datetime.now(UTC) + timedelta(seconds=5))
        assert 3 < float(sent(receiver)[1]["x-foreman-timeout"]) <= 5


@pytest.mark.parametrize(
    ("body", "content_type", "encoding", "shown"),
    [
        (b'{"b": 1.10, "a": [2]}', "application/json", "json", {"b": 1.10, "a": [2]}),
        (b'{"x": 1}', "application/problem+json; charset=utf-8", "json", {"x": 1}),
        (b"{broken", "application/json", "text", "{broken"),
        (b'{"x": "\\ud800"}', "application/json", "text", '{"x": "\\ud800"}'),
        (b'{"x": 1}', "text/plain", "text", '{"x": 1}'),
        ("grün".encode(), "text/html", "text", "grün"),
        ("grün".encode("latin-1"), "text/html; charset=ISO-8859-1", "text", "grün"),
        (b"\x89PNG\r\n\xff", "image/png", "base64", "iVBORw0K/w=="),
        (b"", "application/json", "text", ""),
    ],
)
async def test_the_body_stands_in_the_result_as_what_it_is(
    executor: HttpExecutor, body: bytes, content_type: str, encoding: str, shown: object
) -> None:
    async with Receiver(answer(body, content_type)) as receiver:
        result = await result_of(executor, {"url": receiver.url})
    assert (result["status"], result["encoding"], result["body"]) == (200, encoding, shown)
    assert result["truncated"] is False
    assert result["headers"]["content-type"] == content_type


async def test_json_comes_back_to_the_last_digit(executor: HttpExecutor) -> None:
    async with Receiver(answer(b'{"n": 1.10}', "application/json")) as receiver:
        outcome = await run(executor, {"url": receiver.url})
    assert isinstance(outcome, Succeeded)
    assert '{"n": 1.10}' in outcome.result


async def test_headers_are_kept_and_repeated_ones_joined(executor: HttpExecutor) -> None:
    extra = "x-a: 1\r\nX-A: 2\r\nset-cookie: a=b\r\nset-cookie: c=d\r\n"
    async with Receiver(answer(b"", extra=extra)) as receiver:
        headers = (await result_of(executor, {"url": receiver.url}))["headers"]
    assert headers["x-a"] == "1, 2"
    assert headers["set-cookie"] == "a=b\nc=d"


async def test_an_answer_beyond_the_cap_is_cut_off_and_says_so(executor: HttpExecutor) -> None:
    text = "ü" * MAX_BODY_BYTES
    async with Receiver(answer(b"x" + text.encode(), "text/plain")) as receiver:
        result = await result_of(executor, {"url": receiver.url})
    assert result["truncated"] is True
    assert result["encoding"] == "text"
    assert result["body"].startswith("xüü")
    assert len(result["body"].encode()) <= MAX_BODY_BYTES


async def test_a_bomb_is_not_unpacked_beyond_the_cap(executor: HttpExecutor) -> None:
    bomb = gzip.compress(bytes(64 * MAX_BODY_BYTES), 9)
    async with Receiver(answer(bomb, extra="content-encoding: gzip\r\n")) as receiver:
        result = await result_of(executor, {"url": receiver.url})
    assert result["truncated"] is True
    assert len(result["body"]) <= MAX_BODY_BYTES


@pytest.mark.parametrize("status", [500, 502, 503, 429])
async def test_trouble_on_the_other_side_is_tried_again(executor: HttpExecutor, status: int) -> None:
    async with Receiver(answer(b"", status=status)) as receiver:
        outcome = await run(executor, {"url": receiver.url})
    assert isinstance(outcome, Retry)
    assert outcome.error.code == f"http_{status}"
    assert outcome.error.retryable
    assert outcome.delay_seconds is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7),
        ("999999999", 86_400),
        ("9" * 400, 86_400),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400),
        ("Sat, 01 Jan 0001 00:00:00 GMT", 0),
        # Offsets that no clock has, and no integer holds.
        ("Fri, 31 Dec 9999 23:59:59 +99999999999999999999", None),
        ("1e30", None),
        ("-5", None),
    ],
)
async def test_retry_after_decides_when_but_not_never(
    executor: HttpExecutor, value: str, seconds: float | None
) -> None:
    async with Receiver(answer(b"", status=503, extra=f"retry-after: {value}\r\n")) as receiver:
        outcome = await run(executor, {"url": receiver.url})
    assert isinstance(outcome, Retry)
    assert outcome.delay_seconds == seconds


@pytest.mark.parametrize("status", [301, 400, 401, 404, 410])
async def test_any_other_refusal_is_final(executor: HttpExecutor, status: int) -> None:
    async with Receiver(answer(b"", status=status, extra="location: http://127.0.0.1:1/\r\n")) as receiver:
        outcome = await run(executor, {"url": receiver.url})
    assert isinstance(outcome, Failed)
    assert outcome.error.code == f"http_{status}"


async def test_the_caller_says_which_statuses_are_success(executor: HttpExecutor) -> None:
    async with Receiver(answer(b"", status=404)) as receiver:
        assert (await result_of(executor, {"url": receiver.url, "success": [200, 404]}))["status"] == 404
    async with Receiver(answer(b"", status=503)) as receiver:
        assert (await result_of(executor, {"url": receiver.url, "success": [503]}))["status"] == 503
    async with Receiver(answer(b"", status=200)) as receiver:
        assert isinstance(await run(executor, {"url": receiver.url, "success": [204]}), Failed)


async def test_a_time_out_is_tried_again(executor: HttpExecutor) -> None:
    async def script(visit: Visit) -> None:
        await visit.read_request()
        await visit.wait_for_hang_up()

    async with Receiver(script) as receiver:
        outcome = await run(executor, {"url": receiver.url, "timeout_seconds": 0.2})
    assert isinstance(outcome, Retry)
    assert outcome.error.code == "timeout"


async def test_an_answer_that_breaks_off_is_tried_again(executor: HttpExecutor) -> None:
    async with Receiver(once_and_close(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")) as receiver:
        outcome = await run(executor, {"url": receiver.url})
    assert isinstance(outcome, Retry)
    assert outcome.error.code == "bad_answer"


async def test_nobody_there_is_not_the_jobs_fault_and_is_waited_for_ever_longer(
    executor: HttpExecutor,
) -> None:
    url = f"http://127.0.0.1:{free_port()}/"
    first = await run(executor, {"url": url})
    tenth = await run(executor, {"url": url}, deferrals=10)
    assert isinstance(first, Deferred)
    assert isinstance(tenth, Deferred)
    assert first.reason == "unreachable"
    assert 0.8 <= first.delay_seconds <= 1.2
    assert 240 <= tenth.delay_seconds <= 360


async def test_what_the_guard_refuses_is_final_and_no_connection_is_opened() -> None:
    client = GuardedClient(AddressPolicy())
    async with Receiver(answer(b"ok")) as receiver:
        outcome = await run(HttpExecutor(client), {"url": receiver.url})
        assert isinstance(outcome, Failed)
        assert outcome.error.code == "outbound_refused"
        assert receiver.accepted == 0
    await client.aclose()


async def test_cancelling_the_run_hangs_up(executor: HttpExecutor) -> None:
    async def script(visit: Visit) -> None:
        await visit.read_request()
        await visit.wait_for_hang_up()

    async with Receiver(script) as receiver:
        task = asyncio.create_task(run(executor, {"url": receiver.url}))
        await until(lambda: receiver.requests)
        task.cancel()
        await until(lambda: receiver.hang_ups)


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({}, "payload.url"),
        ({"url": 5}, "payload.url"),
        ({"url": "http://a/", "method": "TRACE"}, "payload.method"),
        ({"url": "http://a/", "method": "get"}, "payload.method"),
        ({"url": "http://a/", "headers": {"Host": "b"}}, "payload.headers"),
        ({"url": "http://a/", "headers": {"Transfer-Encoding": "chunked"}}, "payload.headers"),
        ({"url": "http://a/", "headers": {"Proxy-Authorization": "x"}}, "payload.headers"),
        ({"url": "http://a/", "headers": {"X": "a\r\nHost: b"}}, "payload.headers"),
        ({"url": "http://a/", "headers": {"Idempotency-Key": "mine"}}, "payload.headers"),
        ({"url": "http://a/", "headers": {"X": 1}}, "payload.headers"),
        ({"url": "http://a/", "timeout_seconds": 0}, "payload.timeout_seconds"),
        ({"url": "http://a/", "timeout_seconds": 1e9}, "payload.timeout_seconds"),
        ({"url": "http://a/", "success": []}, "payload.success"),
        ({"url": "http://a/", "success": [99]}, "payload.success"),
        ({"url": "http://a/", "success": 200}, "payload.success"),
        ({"url": "http://a/", "method": "GET", "body": "x"}, "payload.body"),
        ({"url": "http://a/", "follow_redirects": True}, "payload.follow_redirects"),
    ],
)
def test_a_wrong_payload_is_named_by_its_field(payload: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_call(json.dumps(payload))
    assert caught.value.extra["errors"][0]["field"] == field


# -- through the server -------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    allowed = {"FOREMAN_OUTBOUND_ALLOW": "127.0.0.0/8", "FOREMAN_POLL_SECONDS": "0.1"}
    with serving(postgres, tmp_path_factory.mktemp("server"), **allowed) as server:
        yield server


async def submitted(server: Server, payload: dict[str, Any], **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(f"{server.url}/jobs", json={"kind": "http", "payload": payload, **fields})


async def finished(server: Server, job_id: str) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=30) as client:
        answered: dict[str, Any] = (
            await client.get(f"{server.url}/jobs/{job_id}", params={"wait": 20})
        ).json()
        return answered


async def test_a_job_of_kind_http_makes_its_call_and_keeps_the_answer(server: Server) -> None:
    async with Receiver(answer(b'{"hello": "there"}', "application/json")) as receiver:
        job_id = (await submitted(server, {"url": receiver.url, "body": {"a": 1}})).json()["job_id"]
        job = await finished(server, job_id)
        assert job["state"] == "done"
        assert job["result"]["body"] == {"hello": "there"}
        assert job["kind"] == "http"
        _, headers, _ = sent(receiver)
        assert headers["idempotency-key"] == job_id
        assert headers["traceparent"] == job["trace"]["traceparent"]


async def test_a_job_is_tried_again_when_retry_after_says_so_and_then_done(server: Server) -> None:
    answers = iter([answer(b"", status=503, extra="retry-after: 1\r\n"), answer(b"fine")])

    async def script(visit: Visit) -> None:
        while True:
            await visit.read_request()
            await visit.send(next(answers))

    async with Receiver(script) as receiver:
        job_id = (await submitted(server, {"url": receiver.url})).json()["job_id"]
        job = await finished(server, job_id)
        assert (job["state"], job["attempt"]) == ("done", 2)
        assert [sent(receiver, n)[1]["idempotency-key"] for n in (0, 1)] == [job_id, job_id]


async def test_a_job_whose_receiver_is_away_waits_for_it_without_spending_attempts(server: Server) -> None:
    port = free_port()
    job_id = (await submitted(server, {"url": f"http://127.0.0.1:{port}/"}, max_attempts=1)).json()["job_id"]

    def deferred() -> bool:
        return bool(httpx.get(f"{server.url}/jobs/{job_id}").json()["deferrals"] >= 1)

    await asyncio.to_thread(wait_until, deferred)
    receiver = Receiver(once(answer(b"back")))
    receiver._server = await asyncio.start_server(receiver._serve, "127.0.0.1", port)
    try:
        job = await finished(server, job_id)
    finally:
        await receiver.__aexit__()
    assert (job["state"], job["attempt"]) == ("done", 1)
    assert job["deferrals"] >= 1


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"url": "http://10.0.0.1/"}, "payload.url"),
        ({"url": "http://169.254.169.254/"}, "payload.url"),
        ({"url": "gopher://a/"}, "payload.url"),
        ({"url": "http://a:b@c/"}, "payload.url"),
        ({"method": "GET"}, "payload.url"),
        ({"url": "http://a/", "headers": {"Host": "b"}}, "payload.headers"),
    ],
)
async def test_what_cannot_be_called_is_a_422_at_submit(
    server: Server, payload: dict[str, Any], field: str
) -> None:
    refused = await submitted(server, payload)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == field
