"""A job is one trace, whoever has a part in it: replicas that only take in or only run, and workers over HTTP."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import ROOT, Server, free_port, wait_until
from tests.serving import serving
from tests.tracing.collector import Collector, Exported, collecting

CLIENT, PRODUCER, CONSUMER = 3, 4, 5
# Everything that a job of ours says about itself and that nobody else may read.
SECRET = "words-that-nobody-else-may-read"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def server(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[Server]:
    """The replica that takes in; another one on the same database runs."""
    folder = tmp_path_factory.mktemp("replicas")
    environment = {
        "FOREMAN_OUTBOUND_ALLOW": "127.0.0.0/8",
        "FOREMAN_SWEEP_SECONDS": "0.2",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    with serving(postgres, folder, FOREMAN_ROLE="api", **environment) as taking_in:
        running = Server(
            taking_in.database_url,
            free_port(),
            {"FOREMAN_ROLE": "worker", "OTEL_SERVICE_NAME": "runner", **environment},
            log_path=folder / "worker.log",
        )
        try:
            running.start()
            yield taking_in
        finally:
            running.stop()


def submit(server: Server, headers: dict[str, str] | None = None, **body: Any) -> str:
    """The job's traceparent."""
    answer = httpx.post(f"{server.url}/jobs", json={"kind": "noop", **body}, headers=headers)
    assert answer.status_code == 202, answer.text
    return str(job(server, answer.json()["job_id"])["trace"]["traceparent"])


def job(server: Server, job_id: str) -> dict[str, Any]:
    answered: dict[str, Any] = httpx.get(f"{server.url}/jobs/{job_id}").json()
    return answered


def named(spans: list[Exported], name: str) -> list[Exported]:
    return [each for each in spans if each.name == f"foreman.{name}"]


def one(spans: list[Exported], name: str) -> Exported:
    [found] = named(spans, name)
    return found


def check(spans: list[Exported], caller: str = "") -> None:
    """No span twice, none without its parent, none that ends before it begins; and nothing that is secret."""
    ids = [each.span_id for each in spans]
    assert len(set(ids)) == len(ids)
    assert {each.parent_id for each in spans} <= {caller, *ids}
    assert sum(each.parent_id == caller for each in spans) >= 1
    assert all(0 < each.start <= each.end for each in spans)
    assert SECRET not in repr(spans)


def fresh() -> tuple[str, str]:
    """A caller's traceparent, and its span."""
    span_id = secrets.token_hex(8)
    return f"00-{secrets.token_hex(16)}-{span_id}-01", span_id


def test_from_submit_to_webhook_over_two_replicas(server: Server, collector: Collector) -> None:
    payload = {"method": "POST", "url": f"{collector.url}/target?{SECRET}", "body": SECRET}
    hook = f"{collector.url}/hook/{SECRET}"
    parent = submit(server, kind="http", payload=payload, state_webhook_url=hook, metadata={"a": SECRET})
    spans = collector.trace(parent, submit=1, queued=1, run=1, working=1, webhook=4)
    check(spans)
    submitted, queued, run = one(spans, "submit"), one(spans, "queued"), one(spans, "run")
    # Nobody sent a trace: it begins with the submission, by the span that the job's row names.
    assert (submitted.span_id, submitted.parent_id) == (parent.split("-")[2], "")
    assert {queued.parent_id, run.parent_id} == {submitted.span_id}
    assert one(spans, "working").parent_id == run.span_id
    assert {each.parent_id for each in named(spans, "webhook")} == {submitted.span_id}
    assert submitted.start <= queued.start <= queued.end == run.start
    assert run.start <= one(spans, "working").start <= one(spans, "working").end == run.end
    assert (submitted.kind, run.kind, named(spans, "webhook")[0].kind) == (PRODUCER, CONSUMER, CLIENT)
    assert (submitted.resource["service.name"], submitted.resource["foreman.role"]) == ("foreman", "api")
    assert (run.resource["service.name"], run.resource["foreman.role"]) == ("runner", "worker")
    assert run.resource["deployment.environment.name"] == "test"
    assert run.attributes["foreman.outcome"] == "complete"
    assert run.attributes["messaging.destination.name"] == run.attributes["foreman.queue"] == "default"
    assert run.attributes["foreman.job_id"] == submitted.attributes["foreman.job_id"]
    assert [each.error for each in spans] == [None] * len(spans)
    # Whom the run calls hangs below the run, who is told of the job below the job.
    calls = [(path.partition("?")[0], headers["traceparent"]) for path, headers in collector.calls]
    assert ("/target", f"{parent[:36]}{run.span_id}-01") in calls
    assert calls.count((f"/hook/{SECRET}", parent)) == 4


def test_a_callers_trace_goes_on(server: Server, collector: Collector) -> None:
    sent, caller = fresh()
    parent = submit(server, {"traceparent": sent, "tracestate": "vendor=1"})
    assert parent == sent
    spans = collector.trace(parent, submit=1, queued=1, run=1)
    check(spans, caller)
    assert {each.parent_id for each in spans if each.name != "foreman.loading"} == {caller}
    assert one(spans, "run").state == "vendor=1"


@pytest.mark.parametrize("state", ["====,,,", "no state at all", "a=1," * 100, "A=\t,=", "a=1,a=2"])
def test_an_absurd_trace_state_harms_nothing(server: Server, collector: Collector, state: str) -> None:
    sent, caller = fresh()
    check(
        collector.trace(
            submit(server, {"traceparent": sent, "tracestate": state}), submit=1, queued=1, run=1
        ),
        caller,
    )


def test_a_trace_that_its_caller_does_not_record_is_not_exported(
    server: Server, collector: Collector
) -> None:
    sent, _ = fresh()
    unwanted = submit(server, {"traceparent": f"{sent[:-2]}00"})
    wanted = submit(server)
    collector.trace(wanted, submit=1, queued=1, run=1)
    assert unwanted == f"{sent[:-2]}00"
    assert not collector.of_trace(unwanted.split("-")[1])


def test_an_attempt_that_fails_and_the_next_one(server: Server, collector: Collector) -> None:
    url = f"{collector.url}/target/flaky"
    parent = submit(server, kind="http", payload={"method": "POST", "url": url}, backoff_seconds=[0.01])
    spans = collector.trace(parent, submit=1, queued=2, run=2)
    check(spans)
    first, second = named(spans, "run")
    assert (first.error, first.attributes["error.type"]) == ("http_500", "http_500")
    assert (first.attributes["foreman.outcome"], first.events) == ("retry", ["foreman.retry"])
    assert (second.error, second.attributes["foreman.outcome"]) == (None, "complete")
    waits = named(spans, "queued")
    assert [each.attributes["foreman.attempt"] for each in [*waits, first, second]] == [1, 2, 1, 2]
    # Not from when it failed, but from when it could be claimed again.
    assert first.end <= waits[1].start <= waits[1].end == second.start


def test_a_webhook_that_fails_is_an_error_and_the_next_try_a_span_of_its_own(
    server: Server, collector: Collector
) -> None:
    hook = f"{collector.url}/hook/flaky"
    parent = submit(server, state_webhook_url=hook, webhook_events=["done"])
    spans = collector.trace(parent, submit=1, run=1, webhook=1)
    tried = one(spans, "webhook")
    assert (tried.error, tried.attributes["http.response.status_code"]) == ("500", 500)
    assert tried.attributes["server.address"] == f"127.0.0.1:{collector.port}"


def test_a_batch_is_one_submission(server: Server, collector: Collector) -> None:
    answer = httpx.post(f"{server.url}/jobs/batch", json={"jobs": [{"kind": "noop"}] * 3})
    parent = job(server, answer.json()["jobs"][0]["job_id"])["trace"]["traceparent"]
    spans = collector.trace(parent, submit=1, queued=3, run=3)
    check(spans)
    assert one(spans, "submit").attributes["messaging.batch.message_count"] == 3
    assert len({each.attributes["foreman.job_id"] for each in named(spans, "run")}) == 3


def test_a_call_that_waits_for_its_answer(server: Server, collector: Collector) -> None:
    sent, caller = fresh()
    body = {"model": "echo", "messages": [{"role": "user", "content": SECRET}], "stream": False}
    assert httpx.post(f"{server.url}/api/chat", json=body, headers={"traceparent": sent}).status_code == 200
    spans = collector.trace(sent, submit=1, queued=1, run=1)
    check(spans, caller)
    said = one(spans, "run").attributes
    assert (said["gen_ai.operation.name"], said["gen_ai.request.model"]) == ("chat", "echo")
    assert said["gen_ai.usage.output_tokens"] >= 1


def test_a_schedules_job(server: Server, collector: Collector) -> None:
    schedule = {"cron": "* * * * * *", "timezone": "UTC", "job": {"kind": "noop", "queue": "ticks"}}
    assert httpx.put(f"{server.url}/schedules/traced", json=schedule).status_code in {200, 201}

    def ticked() -> list[Exported]:
        return [each for each in named(collector.spans, "run") if each.attributes["foreman.queue"] == "ticks"]

    [run, *_] = wait_until(ticked, 30)
    httpx.delete(f"{server.url}/schedules/traced")
    wait_until(lambda: named(collector.of_trace(run.trace_id), "submit"), 30)
    check(collector.of_trace(run.trace_id))


def test_what_never_ran(server: Server, collector: Collector) -> None:
    answer = httpx.post(f"{server.url}/jobs", json={"kind": "noop", "delay_seconds": 3600})
    job_id = answer.json()["job_id"]
    httpx.post(f"{server.url}/jobs/{job_id}/cancel", json={})
    late = submit(server, kind="for.nobody", deadline_seconds=0.01)
    cancelled = collector.trace(job(server, job_id)["trace"]["traceparent"], submit=1, queued=1)
    expired = collector.trace(late, submit=1, queued=1)
    check(cancelled)
    check(expired)
    assert (one(cancelled, "queued").attributes["foreman.outcome"], one(cancelled, "queued").error) == (
        "cancel",
        None,
    )
    assert (one(expired, "queued").attributes["foreman.outcome"], one(expired, "queued").error) == (
        "expire",
        "expire",
    )


@pytest.fixture(scope="module")
def sdk_worker(server: Server, collector: Collector) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tracing.sdk_worker", server.url],
        cwd=ROOT,
        env=os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "a-worker"},
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.usefixtures("sdk_worker")
def test_through_a_worker_over_http_and_what_it_submits(server: Server, collector: Collector) -> None:
    sent, caller = fresh()
    submit(server, {"traceparent": sent}, kind="traced.outer", payload={"a": SECRET})
    trace_id = sent.split("-")[1]
    wait_until(
        lambda: any(each.name == "foreman.work traced.inner" for each in collector.of_trace(trace_id)), 30
    )
    spans = collector.trace(sent, submit=2, queued=2, run=2)
    check(spans, caller)
    by_name = {each.name: each for each in spans}
    outer, own, inner = (
        by_name[name] for name in ("foreman.work traced.outer", "my own", "foreman.work traced.inner")
    )
    assert (outer.parent_id, own.parent_id, inner.parent_id) == (caller, outer.span_id, own.span_id)
    assert {each.parent_id for each in named(spans, "submit")} == {caller, own.span_id}
    assert outer.resource["service.name"] == "a-worker"
    assert outer.attributes["foreman.outcome"] == "complete"
    [nested] = httpx.get(f"{server.url}/jobs", params={"kind": "traced.inner"}).json()["jobs"]
    assert job(server, nested["job_id"])["result"] == inner.span_id


@pytest.mark.usefixtures("sdk_worker")
def test_a_handler_that_fails_says_its_code_and_nothing_else(server: Server, collector: Collector) -> None:
    parent = submit(server, kind="traced.failing", payload={})
    spans = collector.trace(parent, submit=1, queued=1, run=1)
    wait_until(lambda: any("work" in each.name for each in collector.of_trace(spans[0].trace_id)), 30)
    spans = collector.of_trace(spans[0].trace_id)
    check(spans)
    [worked] = [each for each in spans if each.name == "foreman.work traced.failing"]
    assert worked.error == one(spans, "run").error == "no_luck"
    assert "secret words" not in repr(spans)
