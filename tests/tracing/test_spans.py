"""Every way in which a wait or a run ends is a span, with its verb; and what is no trace is none."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.jobs.ids import new_id, new_traceparent
from app.jobs.states import Verb
from app.store.attempts import ended_attempts
from app.store.changes import Changes
from app.store.claims import Claimant, Claims
from app.store.control import cancel, dismiss, revive
from app.store.database import Database
from app.store.idempotency import Receipt, Submission
from app.store.managed import ManagedEnqueue
from app.store.queues import QueueBook, configure
from app.store.settle import Settlement, settle
from app.store.sweep import sweep
from app.telemetry import SPANS
from app.tracing import spans
from app.tracing.exporter import MAX_QUEUED, SpanExporter
from app.tracing.spans import Span
from app.tracing.tracer import MAX_UNREAD, Tracer
from tests.store.making import TENANT, backdate, claim_one, job, put_one, running

ERROR = '{"code":"broken","message":"It broke.","retryable":true}'
Verbs = Callable[[Database, str, str], Awaitable[Changes[Any]]]


def settling(verb: Verb, **more: Any) -> Verbs:
    async def run(database: Database, job_id: str, token: str) -> Changes[Any]:
        return await settle(database, [Settlement(job_id, token, verb, **more)])

    return run


def sweeping(column: str) -> Verbs:
    async def run(database: Database, job_id: str, token: str) -> Changes[Any]:
        await backdate(database, job_id, column)
        found = await sweep(database, cancel_grace_seconds=10)
        assert found is not None
        return found.changes

    return run


async def cancelling(database: Database, job_id: str, token: str) -> Changes[Any]:
    asked = await cancel(database, [job_id], TENANT, None)
    assert not asked.left
    return await settle(database, [Settlement(job_id, token, Verb.RELEASE)])


ENDS: dict[str, tuple[Verbs, str, str | None]] = {
    "complete": (settling(Verb.COMPLETE, result="1"), "complete", None),
    "fail": (settling(Verb.FAIL, error=ERROR), "fail", "broken"),
    "fail with an odd code": (settling(Verb.FAIL, error='{"code":"so many words"}'), "fail", "fail"),
    "fail with no error at all": (settling(Verb.FAIL), "fail", "fail"),
    "retry": (settling(Verb.RETRY, error=ERROR), "retry", "broken"),
    "defer": (settling(Verb.DEFER, error=ERROR, delay_seconds=60), "defer", None),
    "release": (settling(Verb.RELEASE), "release", None),
    "cancel": (cancelling, "cancel", None),
    "rescue": (sweeping("lease_expires_at"), "rescue", "lease_expired"),
    "expire": (sweeping("deadline"), "expire", "expire"),
}


async def written(database: Database, changes: Changes[Any]) -> list[Span]:
    found = await ended_attempts(database, changes.left)
    return [span for each in found for span in spans.of_attempt(each)]


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("started", [True, False])
async def test_a_run_ends_with_its_verb(database: Database, name: str, started: bool) -> None:
    end, verb, error = ENDS[name]
    job_id, token = await running(database, traceparent=new_traceparent())
    if started:
        begun = await settle(database, [Settlement(job_id, token, Verb.START)])
        assert not begun.left
    changes = await end(database, job_id, token)
    [run, *parts] = await written(database, changes)
    assert (run.name, run.attributes["foreman.outcome"], run.error) == ("foreman.run", verb, error)
    assert [part.name for part in parts] == (
        ["foreman.loading", "foreman.working"] if started else ["foreman.loading"]
    )
    assert (parts[0].start, parts[-1].end) == (run.start, run.end)
    assert {part.parent_id for part in parts} == {run.span_id}
    assert (run.attributes["foreman.attempt"], run.attributes["foreman.worker"]) == (1, "tester")


async def test_each_run_of_a_job_is_its_own(database: Database) -> None:
    """Also once its history is so long that claims are written into the log of events."""
    job_id = await put_one(database, traceparent=new_traceparent(), max_attempts=100)
    seen = set()
    for attempt in range(1, 20):
        token = await claim_one(database, job_id)
        changes = await settle(
            database, [Settlement(job_id, token, Verb.RETRY, error=ERROR, delay_seconds=0)]
        )
        [run, *_] = await written(database, changes)
        assert run.attributes["foreman.attempt"] == attempt
        seen.add(run.span_id)
    assert len(seen) == 19


async def test_what_was_settled_long_after_another_had_ended_it_is_the_others(database: Database) -> None:
    job_id, token = await running(database, traceparent=new_traceparent())
    rescued = await sweeping("lease_expires_at")(database, job_id, token)
    late = await settle(database, [Settlement(job_id, token, Verb.COMPLETE, result="1")])
    assert late.left == []
    await claim_one(database, job_id)
    # Read only now, when the next run is under way.
    [run, *_] = await written(database, rescued)
    assert run.attributes["foreman.outcome"] == "rescue"


async def test_a_dead_letter_that_is_revived_or_dismissed_ends_nothing(database: Database) -> None:
    for verb in (revive, dismiss):
        job_id, token = await running(database, traceparent=new_traceparent())
        await settle(database, [Settlement(job_id, token, Verb.FAIL, error=ERROR)])
        assert await written(database, await verb(database, [job_id], TENANT)) == []


async def test_a_job_that_made_way_for_another(database: Database) -> None:
    await configure(database, "keyed", {"key": ["k"], "max_queued": 1, "when_full": "replace-oldest"})
    book = QueueBook(database)
    await book.refresh()
    managed = ManagedEnqueue(database, book)
    for _ in range(3):
        new = job(queue="keyed", concurrency_key="k", traceparent=new_traceparent())
        changes = await managed.enqueue([Submission([new])])
    [wait] = await written(database, changes)
    assert (wait.name, wait.attributes["foreman.outcome"], wait.error) == ("foreman.queued", "skip", None)


async def test_a_wait_is_from_when_it_could_be_claimed(database: Database) -> None:
    job_id = await put_one(database, traceparent=new_traceparent())
    await backdate(database, job_id, "ready_at")
    changes = await Claims(database, QueueBook(database)).claim("default", ["noop"], [Claimant("w", 1, 30)])
    [wait] = [spans.of_wait(each) for each in changes.claimed]
    assert wait is not None
    assert 3600 <= (wait.end - wait.start) / 1e9 < 7200


async def test_jobs_that_are_gone_or_have_no_trace_are_passed_over(database: Database) -> None:
    without = await put_one(database)
    assert await ended_attempts(database, [(new_id(), 3), (without, 1)]) == []


@pytest.mark.parametrize("given", [None, "", "t", "00-a-b-01", f"00-{'0' * 32}-{'1' * 16}-01", "00-x" * 1000])
def test_what_is_no_traceparent_is_no_context(given: str | None) -> None:
    assert spans.context_of(given) is None


@pytest.mark.parametrize("more", ["", "-more", "-\n-"])
def test_later_versions_of_a_traceparent_may_have_more(more: str) -> None:
    context = spans.context_of(f"cc-{'a' * 32}-{'b' * 16}-03{more}")
    assert context is not None
    assert context.traceparent(1) == f"00-{'a' * 32}-{1:016x}-03"


# -- what is sampled, and what there is no room for -----------------------------------------------------------


def dropped() -> float:
    return float(SPANS.labels("dropped")._value.get())


def made(database: Database) -> tuple[Tracer, SpanExporter]:
    exporter = SpanExporter("all")
    return Tracer(database, exporter, 1), exporter


@pytest.mark.parametrize(
    ("sampler", "argument", "flags", "goes_on"),
    [
        ("parentbased_always_on", "", "01", [True, False]),
        ("parentbased_traceidratio", "0", "00", [True, False]),
        ("always_on", "", "01", [True, True]),
        ("always_off", "", "00", [False, False]),
        ("what is this", "", "01", [True, False]),
    ],
)
@pytest.mark.filterwarnings("ignore")
async def test_a_trace_that_begins_here_is_recorded_as_the_sampler_has_it(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    sampler: str,
    argument: str,
    flags: str,
    goes_on: list[bool],
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    tracer, exporter = made(database)
    submission = Submission([job(), job()])
    tracer.receive(submission)
    [traceparent] = {each.traceparent or "" for each in submission.jobs}
    assert traceparent.endswith(f"-{flags}")
    contexts = [spans.context_of(f"00-{'a' * 32}-{'b' * 16}-{sent}") for sent in ("01", "00")]
    assert [exporter.continues(each) for each in contexts if each] == goes_on
    tracer.submitted([submission], [Receipt([each.id for each in submission.jobs])])
    assert [span.parent_id for span in exporter._wanted(exporter._take())] == (
        [None] if flags == "01" else []
    )


async def test_what_there_is_no_room_for_is_dropped_and_counted(database: Database) -> None:
    tracer, exporter = made(database)
    before = dropped()
    submission = Submission([job()])
    tracer.receive(submission)
    count = MAX_QUEUED + 7
    tracer.submitted([submission] * count, [Receipt([submission.jobs[0].id])] * count)
    assert dropped() - before == 7
    tracer.announced(Changes(left=[(new_id(), 2)] * (MAX_UNREAD + 5)))
    assert dropped() - before == 12
    exporter._exporter = None
    await tracer.stop()
    assert dropped() - before == 12 + MAX_QUEUED
