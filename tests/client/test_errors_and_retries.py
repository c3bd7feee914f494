"""What the client makes of refusals and broken connections."""

import socket
import time
from collections.abc import Iterator

import httpx
import pytest

import foreman_client as fc
from foreman_client import AsyncForeman, Foreman
from tests.client.wire_stub import ACCEPTED, Answer, WireStub, problem, running_stub
from tests.patience import AT_ONCE, LONG_WAIT

JOB_ID = "01J00000000000000000000001"


@pytest.fixture
def stub() -> Iterator[WireStub]:
    with running_stub() as stub:
        yield stub


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "invalid_request", fc.InvalidRequest),
        (422, "invalid_request", fc.InvalidRequest),
        (422, "idempotency_mismatch", fc.IdempotencyMismatch),
        (401, "unauthorized", fc.Unauthorized),
        (403, "forbidden", fc.Forbidden),
        (404, "not_found", fc.JobNotFound),
        (405, "method_not_allowed", fc.MethodNotAllowed),
        (409, "lease_lost", fc.LeaseLost),
        (409, "job_terminal", fc.JobTerminal),
        (409, "invalid_transition", fc.InvalidTransition),
        (409, "key_busy", fc.KeyBusy),
        (413, "payload_too_large", fc.PayloadTooLarge),
        (429, "queue_full", fc.QueueFull),
        (429, "rate_limited", fc.RateLimited),
        (503, "unavailable", fc.Unavailable),
        (500, "internal_error", fc.ApiError),
    ],
)
def test_each_problem_code_has_its_error(stub: WireStub, status: int, code: str, expected: type) -> None:
    stub.answers(problem(status, code, "it is like that"))
    with Foreman(stub.url, retry_seconds=0) as foreman, pytest.raises(fc.ApiError) as raised:
        foreman.get(JOB_ID)
    assert type(raised.value) is expected
    assert "it is like that" in str(raised.value)
    assert raised.value.status == status


def test_a_busy_key_names_the_job_that_holds_it(stub: WireStub) -> None:
    stub.answers(problem(409, "key_busy", existing_job_id="01JOTHER"))
    with Foreman(stub.url) as foreman, pytest.raises(fc.KeyBusy) as raised:
        foreman.submit("sync", {"origin": "a"})
    assert raised.value.existing_job_id == "01JOTHER"


def test_an_answer_that_is_no_problem_document_still_has_a_typed_error(stub: WireStub) -> None:
    stub.answers(Answer(502, b"<html>Bad Gateway</html>"))
    with Foreman(stub.url, retry_seconds=0) as foreman, pytest.raises(fc.Unavailable):
        foreman.get(JOB_ID)


def test_a_submit_that_was_cut_off_is_sent_again_with_the_same_key(stub: WireStub) -> None:
    stub.answers(Answer(cut=True), problem(503, "unavailable", retry_after=0), ACCEPTED)
    with Foreman(stub.url) as foreman:
        handle = foreman.submit("noop", {"n": 1})
    assert handle.job_id == JOB_ID
    assert len(stub.seen) == 3
    assert len({seen.headers["idempotency-key"] for seen in stub.seen}) == 1
    assert [seen.json() for seen in stub.seen] == [{"kind": "noop", "payload": {"n": 1}}] * 3


def test_two_submits_have_different_keys(stub: WireStub) -> None:
    stub.answers(ACCEPTED)
    with Foreman(stub.url) as foreman:
        foreman.submit("noop")
        foreman.submit("noop")
    assert len({seen.headers["idempotency-key"] for seen in stub.seen}) == 2


def test_an_event_that_may_have_arrived_is_not_sent_twice(stub: WireStub) -> None:
    stub.answers(Answer(cut=True))
    with Foreman(stub.url) as foreman, pytest.raises(fc.Unreachable) as raised:
        foreman.send_event(JOB_ID, "approve")
    assert raised.value.maybe_received
    assert len(stub.seen) == 1


def test_retry_after_is_honoured(stub: WireStub) -> None:
    stub.answers(problem(429, "rate_limited", retry_after=1), ACCEPTED)
    with Foreman(stub.url) as foreman:
        begun = time.monotonic()
        foreman.submit("noop")
    assert time.monotonic() - begun >= 1.0


def test_nobody_waits_for_a_retry_after_beyond_the_budget(stub: WireStub) -> None:
    stub.answers(problem(429, "queue_full", retry_after=LONG_WAIT))
    begun = time.monotonic()
    with Foreman(stub.url, retry_seconds=5) as foreman, pytest.raises(fc.QueueFull) as raised:
        foreman.submit("noop")
    assert time.monotonic() - begun < AT_ONCE
    assert raised.value.retry_after == LONG_WAIT


def test_a_refusal_for_good_is_not_repeated(stub: WireStub) -> None:
    stub.answers(problem(422, "invalid_request"))
    with Foreman(stub.url) as foreman, pytest.raises(fc.InvalidRequest):
        foreman.submit("noop")
    assert len(stub.seen) == 1


def test_a_server_that_is_not_there_is_unreachable_once_the_budget_is_spent() -> None:
    with Foreman(f"http://127.0.0.1:{unused_port()}", retry_seconds=0.5) as foreman:
        begun = time.monotonic()
        with pytest.raises(fc.Unreachable) as raised:
            foreman.submit("noop")
    assert not raised.value.maybe_received
    assert time.monotonic() - begun < AT_ONCE


@pytest.mark.parametrize("url", ["ftp://host", "localhost:8080", "http://", "http://[::1"])
def test_a_wrong_address_is_said_at_once(url: str) -> None:
    with pytest.raises(fc.ForemanError, match="address"):
        Foreman(url)


async def test_the_asynchronous_client_repeats_the_same_way(stub: WireStub) -> None:
    stub.answers(Answer(cut=True), ACCEPTED)
    async with AsyncForeman(stub.url) as foreman:
        handle = await foreman.submit("noop")
    assert handle.job_id == JOB_ID
    assert len(stub.seen) == 2


def test_the_key_goes_as_a_bearer_and_comes_from_the_environment(
    stub: WireStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREMAN_API_KEY", "fmn_secret")
    monkeypatch.setenv("FOREMAN_URL", stub.url + "/")
    stub.answers(ACCEPTED)
    with Foreman() as foreman:
        foreman.submit("noop")
    assert stub.seen[0].headers["authorization"] == "Bearer fmn_secret"
    assert stub.seen[0].path == "/jobs"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("failed", fc.JobFailed),
        ("cancelled", fc.JobCancelled),
        ("expired", fc.JobExpired),
        ("skipped", fc.JobSkipped),
        ("stale", fc.JobStale),
        ("dismissed", fc.JobDismissed),
    ],
)
def test_waiting_for_a_job_that_ends_badly_raises_its_error(
    stub: WireStub, state: str, expected: type
) -> None:
    error = {"code": "boom", "message": "it broke", "retryable": False}
    stub.answers(Answer(200, {"job_id": JOB_ID, "state": state, "error": error, "attempt": 3}))
    with Foreman(stub.url) as foreman, pytest.raises(fc.JobUnsuccessful, match="it broke") as raised:
        foreman.job(JOB_ID).wait(5)
    assert type(raised.value) is expected
    assert raised.value.job.attempt == 3
    assert raised.value.code == "boom"


def test_a_wait_that_is_over_says_so_and_is_a_timeout(stub: WireStub) -> None:
    stub.answers(Answer(200, {"job_id": JOB_ID, "state": "queued"}))
    with Foreman(stub.url) as foreman, pytest.raises(TimeoutError) as raised:
        foreman.job(JOB_ID).wait(0.2)
    assert isinstance(raised.value, fc.WaitTimeout)


async def test_a_connection_that_is_reset_as_soon_as_it_is_made_is_no_bug_of_the_callers(
    stub: WireStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What anyio makes of it, on uvloop, where the socket is gone before it was looked at."""

    async def stumble(*_: object) -> httpx.Response:
        raise AttributeError("'NoneType' object has no attribute 'getpeername'")

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", stumble)
    async with AsyncForeman(stub.url, retry_seconds=0) as foreman:
        with pytest.raises(fc.Unreachable):
            await foreman.get(JOB_ID)
        with pytest.raises(fc.Unreachable):
            async for _ in foreman.job(JOB_ID).stream():
                pass
