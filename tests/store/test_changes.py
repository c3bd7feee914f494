"""Every verb of the store says what it changed, and whoever must hear of it does.

First the source is walked: no verb keeps what it did to itself, and nobody who calls one does. Then each verb is run,
and what it says is compared field by field. How the hub tells it is in tests/events/test_announcing.py.
"""

import ast
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, cast

import pytest

from app.jobs.states import Verb
from app.store import artifacts, bulk, dependencies, keys, outbox, queues, schedules, targets
from app.store.arrivals import Arrival, arrive
from app.store.artifacts import NewArtifact
from app.store.changes import Changes, Durations, Failure
from app.store.claims import Claimant, Claims
from app.store.control import cancel, delete, delete_in, delete_locked, dismiss, prune_locked, revive
from app.store.database import Database
from app.store.enqueue import enqueue
from app.store.events import NewEvent, append
from app.store.idempotency import Receipt, Submission
from app.store.locks import lock
from app.store.low_water import LowWater
from app.store.managed import ManagedEnqueue
from app.store.promote import promote
from app.store.prune import plan_walks, prune
from app.store.queues import QueueBook
from app.store.read import Filter
from app.store.reconcile import reconcile
from app.store.settle import Settlement, note_late, settle
from app.store.sweep import sweep
from app.telemetry import (
    BULK,
    CLAIM_SECONDS,
    CLAIMED,
    ENDED,
    ENQUEUED,
    EVENTS_APPENDED,
    GATES_PASSED,
    JOB_RUN,
    JOB_WAIT,
    LEASES_LOST,
    PRUNED,
    REFUSED,
    RETRIED,
    SETTLEMENTS,
    SKIPPED,
    SWEPT,
    TOKENS,
)
from tests.live_tables import write
from tests.store import verbs
from tests.store.making import TENANT, backdate, claim_one, job, put_one, row_of, running

ERROR = '{"code":"broken","message":"It broke.","retryable":true}'
URL = "https://receiver.example/hook"
MODEL = "llm|||m"
HERE = ("default", "noop")
KEYED = ("keyed", "k")

# Verbs that tell of what they did by another value, which has a `Changes` in it.
WRAPPED = {
    "app.store.arrivals.arrive": "Arrived",
    "app.store.enqueue.enqueue": "Enqueued",
    "app.store.managed.ManagedEnqueue.enqueue": "Enqueued",
    "app.store.managed.ManagedEnqueue.enqueue_in": "Enqueued",
    "app.store.prune.prune": "Pruned | None",
    "app.store.sweep.sweep": "Swept | None",
}
# Those after which nobody has to be told by the store, and why.
UNTOLD = {
    "app.store.bulk.stop": "the next step looks for itself, and there is none",
    "app.store.enqueue.insert": "a part of both ways to enqueue, in whose transaction it runs",
    "app.store.outbox.claim": "by the dispatcher itself, who is the only one to hear of deliveries",
    "app.store.outbox.record": "by the dispatcher itself",
    "app.store.schedules.delete": "the scheduler wakes for nothing, once",
    "app.store.schedules.move_on": "by the scheduler itself, who looks for the next right after it",
}
# Who hands the changes on to somebody who announces them, in another way than by returning them.
HANDED_ON = {
    "app.targets.registry.Registry._unpark": "app.engine.target_dispatcher.TargetDispatcher._targets_ready",
    "app.engine.scheduler.Scheduler._enqueue": "app.engine.scheduler.Scheduler._tick",
    "app.engine.intake.Intake.__init__": "app.engine.intake.Intake._batcher",
    "app.api.jobs.retry": "app.api.jobs.moved_document",
    "app.api.dead_letters.replay": "app.api.jobs.moved_document",
    "app.api.dead_letters.dismiss": "app.api.jobs.moved_document",
}
# Verbs that are methods: how they are called.
METHODS = (
    "self.managed.enqueue",
    "_intake.managed.enqueue_in",
    "._claims.claim",
    "._claims.claim_whole",
    "._claims.claim_brief",
)


def verbs_of_the_store() -> set[str]:
    return set(verbs.movers()) - set(UNTOLD)


# -- the source ---------------------------------------------------------------------------------------------


def test_every_verb_returns_what_it_changed() -> None:
    movers = verbs.movers()
    assert set(UNTOLD) | set(WRAPPED) <= set(movers), "an exception that is none any more"
    for name, function in movers.items():
        if name in WRAPPED:
            assert verbs.returned(function) == WRAPPED[name], name
        elif name not in UNTOLD:
            assert "Changes[" in verbs.returned(function), f"{name} moves jobs and does not say so"


def test_whoever_calls_a_verb_announces_what_it_returns_or_returns_it_on() -> None:
    wanted = verbs_of_the_store()
    everything = {
        f"{module.name}.{name}": (module, name, function)
        for module in verbs.modules()
        for name, function in module.functions.items()
    }
    callers = {
        full: function
        for full, (module, name, function) in everything.items()
        if not module.name.startswith("app.store.")
        and (module.used(name) & wanted or any(called.endswith(METHODS) for called in _called(function)))
    }
    assert set(HANDED_ON) <= set(callers), "an exception that is none any more"
    assert len(callers) > 20
    for full, function in callers.items():
        teller = everything[HANDED_ON[full]][2] if full in HANDED_ON else function
        tells = any(called.endswith((".announce", ".configured")) for called in _called(teller))
        assert tells or "Changes[" in verbs.returned(function), f"{full} keeps to itself what it changed"


def _called(function: ast.AST) -> set[str]:
    """The methods that it calls, as they stand there."""
    return {
        ast.unparse(node.func)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }


def test_nobody_drops_what_a_verb_returns() -> None:
    wanted = verbs_of_the_store()
    for module in verbs.modules():
        for name, function in module.functions.items():
            for node in ast.walk(function):
                if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Await)):
                    continue
                called = node.value.value
                if isinstance(called, ast.Call):
                    # Not its arguments: what is handed to somebody is not dropped.
                    dropped = verbs.Module(module.path, {"it": _as_function(called.func)}, module.imported)
                    assert not dropped.used("it") & wanted, f"{module.name}.{name}, line {node.lineno}"


def _as_function(node: ast.expr) -> ast.FunctionDef:
    made = ast.parse("def it(): pass").body[0]
    assert isinstance(made, ast.FunctionDef)
    made.body = [ast.Expr(node)]
    return made


def test_nobody_rings_a_bell_of_another() -> None:
    """Each part wakes its own loops, by what it heard. The hub alone tells others."""
    for module in verbs.modules():
        if module.name.startswith("app.loops.") or module.name == "app.events.hub":
            continue
        for name, function in module.functions.items():
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    rung = ast.unparse(node.func)
                    # A loop of its own, or the loop that it is.
                    own = rung == "self.wake" or (rung.startswith("self._") and rung.count(".") == 2)
                    assert node.func.attr != "wake" or own, f"{module.name}.{name}: {rung}"
                    assert "hub._" not in rung, f"{module.name}.{name}: {rung}"
    [hub] = [module for module in verbs.modules() if module.name == "app.events.hub"]
    public = {name for name in hub.functions if name.startswith("Hub.") and "._" not in name}
    telling = public - {f"Hub.{name}" for name in ("start", "stop", "close_watches", "log_is_read")}
    assert telling == {
        "Hub.announce",
        "Hub.nudge",
        "Hub.subscribe",
        "Hub.wakes",
        "Hub.any_change",
        "Hub.watch",
    }


# -- the verbs ----------------------------------------------------------------------------------------------

Scenario = Callable[[Database], Awaitable[tuple[Changes[Any], Changes[Any]]]]
SCENARIOS: dict[str, Scenario] = {}
WALKED: set[str] = set()


def scenario(verb: Any) -> Callable[[Scenario], Scenario]:
    """Runs the verb; returns what it said it changed, and what it has changed."""

    def register(run: Scenario) -> Scenario:
        SCENARIOS[run.__name__] = run
        WALKED.add(f"{verb.__module__}.{verb.__qualname__}")
        return run

    return register


def counted(*counts: tuple[Any, ...]) -> Counter[Any]:
    """One each of (metric, label, …)."""
    return Counter({(metric, labels): 1 for metric, *rest in counts for labels in (tuple(rest),)})


def took(*timed: tuple[Any, ...]) -> Durations:
    """One duration each of (histogram, label, …); how long is not compared."""
    durations = Durations()
    for metric, *labels in timed:
        durations[metric, tuple(labels)].append(0.0)
    return durations


def ended(state: str, queue: str = "default") -> tuple[Any, ...]:
    return ENDED, queue, "noop", state


CLAIM = took((CLAIM_SECONDS, "default"), (JOB_WAIT, "default", "noop"))


def run(verb: str, queue: str = "default") -> Durations:
    return took((JOB_RUN, queue, "noop", verb))


@scenario(enqueue)
async def enqueue_plain(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    said = await enqueue(database, [Submission([job()])])
    return said, Changes(work={HERE}, accepted=Counter(default=1), counts=counted((ENQUEUED,)))


@scenario(enqueue)
async def enqueue_with_a_delay(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    said = await enqueue(database, [Submission([job(delay_seconds=60)])])
    expected: Changes[Any] = Changes(work={HERE}, delayed=True, accepted=Counter(default=1))
    return said, replace(expected, counts=counted((ENQUEUED,)))


@scenario(enqueue)
async def enqueue_with_a_webhook(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    new = job(webhook_url=URL)
    said = await enqueue(database, [Submission([new])])
    expected: Changes[Any] = Changes(work={HERE}, webhooks=[(new.id, URL)], accepted=Counter(default=1))
    return said, replace(expected, counts=counted((ENQUEUED,)))


@scenario(enqueue)
async def enqueue_what_was_enqueued_already(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    for _ in range(2):
        said = await enqueue(
            database, [Submission([job()], idempotency_key="k", fingerprint=b"x" * 32, tenant=TENANT)]
        )
    return said, Changes()


async def managed(database: Database, **settings: Any) -> ManagedEnqueue:
    """To a queue with keys."""
    await queues.configure(database, "keyed", {"key": ["k"], "max_queued": 1, **settings})
    book = QueueBook(database)
    await book.refresh()
    return ManagedEnqueue(database, book)


def keyed(**more: Any) -> Submission:
    return Submission([job(queue="keyed", concurrency_key="k", **more)])


def accepted(queue: str, **more: Any) -> Changes[Any]:
    counts = counted((ENQUEUED,)) + more.pop("counts", Counter())
    return Changes(accepted=Counter({queue: 1}), counts=counts, **more)


@scenario(Claims.claim)
async def claim_one_with_a_webhook(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await put_one(database, webhook_url=URL)
    said = await Claims(database).claim("default", ["noop"], [Claimant("w", 1, 30)])
    told: dict[str, Any] = {"webhooks": [(job_id, URL)], "counts": counted((CLAIMED,)), "durations": CLAIM}
    return said, Changes(jobs={job_id}, **told)


@scenario(Claims.claim_whole)
async def claim_for_a_worker_over_http(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await put_one(database)
    said = await Claims(database).claim_whole("default", ["noop"], [Claimant("w", 1, 30)])
    return said, Changes(jobs={job_id}, counts=counted((CLAIMED,)), durations=CLAIM)


@scenario(Claims.claim_brief)
async def claim_briefly(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await put_one(database, webhook_url=URL)
    said = await Claims(database).claim_brief("default", ["noop"], [Claimant("w", 1, 30)])
    told: dict[str, Any] = {"webhooks": [(job_id, URL)], "counts": counted((CLAIMED,)), "durations": CLAIM}
    return said, Changes(jobs={job_id}, **told)


@scenario(arrive)
async def arrive_where_there_is_room(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    come = Arrival(Submission([job(interactive=True)]), "gpu")
    said = await arrive(database, LowWater(), Claimant("w", 1, 30), [come])
    counts = counted((ENQUEUED,), (CLAIMED,), (SETTLEMENTS, "start", "true"))
    said.enqueued.add(said.claimed)
    return said.enqueued, Changes(
        jobs={come.job.id}, accepted=Counter(default=1), counts=counts, durations=CLAIM
    )


@scenario(arrive)
async def arrive_behind_another(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    await put_one(database, priority=5)
    said = await arrive(
        database, LowWater(), Claimant("w", 1, 30), [Arrival(Submission([job(interactive=True)]), "gpu")]
    )
    said.enqueued.add(said.claimed)
    return said.enqueued, accepted("default", work={HERE})


@scenario(ManagedEnqueue.enqueue)
async def enqueue_with_a_key_that_is_free(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    said = await (await managed(database)).enqueue([keyed()])
    return said, accepted("keyed", work={("keyed", "noop")})


@scenario(ManagedEnqueue.enqueue)
async def enqueue_with_a_key_that_is_taken(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    way_in = await managed(database)
    await way_in.enqueue([keyed()])
    return await way_in.enqueue([keyed()]), accepted("keyed", keys={KEYED})


@scenario(ManagedEnqueue.enqueue)
async def enqueue_in_the_place_of_another(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    way_in = await managed(database, when_full="replace-oldest")
    old = keyed()
    await way_in.enqueue([old])
    await way_in.enqueue([keyed()])
    said = await way_in.enqueue([keyed()])
    # The oldest had the key's place: it goes to the one behind it.
    expected = accepted("keyed", jobs={old.jobs[0].id}, keys={KEYED}, work={("keyed", "noop")})
    expected.counts += counted((SKIPPED,), (GATES_PASSED, "key"), ended("skipped", "keyed"))
    return said, expected


@scenario(ManagedEnqueue.enqueue)
async def enqueue_too_many_of_a_key(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    way_in = await managed(database, max_queued=0)
    await way_in.enqueue([keyed()])
    said = await way_in.enqueue([keyed()])
    return said, Changes(counts=counted((REFUSED, "key_busy")))


@scenario(ManagedEnqueue.enqueue)
async def enqueue_one_that_waits_for_another(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    first = await put_one(database)
    said = await (await managed(database)).enqueue([Submission([job(depends_on=[first])])])
    return said, accepted("default")


@scenario(ManagedEnqueue.enqueue)
async def enqueue_one_that_waits_for_what_has_failed(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    first = await failed(database)
    said = await (await managed(database)).enqueue([Submission([job(depends_on=[first])])])
    return said, accepted("default", ended={first})


@scenario(ManagedEnqueue.enqueue_in)
async def enqueue_in_anothers_transaction(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    way_in = await managed(database)
    async with database.transaction() as connection:
        said = await way_in.enqueue_in(connection, [keyed(webhook_url=URL, delay_seconds=60)])
    [receipt] = said.answers
    assert isinstance(receipt, Receipt)
    return said, accepted("keyed", delayed=True, keys={KEYED}, webhooks=[(receipt.job_ids[0], URL)])


# -- settling -----------------------------------------------------------------------------------------------


def settled(verb: Verb, job_id: str, *counts: tuple[Any, ...], **more: Any) -> Changes[Any]:
    told: dict[str, Any] = {"stopped": {"default"}, "durations": run(verb.value), **more}
    return Changes(jobs={job_id}, counts=counted((SETTLEMENTS, verb.value, "true"), *counts), **told)


AGAIN = (RETRIED, "default", "noop", "broken")
# By what is sent: what is counted, and what else is changed.
SETTLED: dict[str, tuple[Verb, dict[str, Any], list[tuple[Any, ...]], dict[str, Any]]] = {
    "complete": (Verb.COMPLETE, {"result": "1"}, [ended("done")], {}),
    "retry": (Verb.RETRY, {"error": ERROR, "delay_seconds": 0}, [AGAIN], {"work": {HERE}}),
    "retry_later": (Verb.RETRY, {"error": ERROR, "delay_seconds": 60}, [AGAIN], {"delayed": True}),
    "retry_without_a_word": (Verb.RETRY, {}, [(RETRIED, "default", "noop", "other")], {"delayed": True}),
    "defer": (Verb.DEFER, {"delay_seconds": 60}, [], {"delayed": True}),
    "release": (Verb.RELEASE, {}, [], {"work": {HERE}}),
    "cancel": (Verb.CANCEL, {}, [ended("cancelled")], {}),
    "start": (Verb.START, {}, [], {"stopped": set(), "durations": took()}),
}


@pytest.mark.parametrize("name", sorted(SETTLED))
async def test_a_settlement_says_what_it_changed(database: Database, name: str) -> None:
    verb, given, counts, expected = SETTLED[name]
    job_id, token = await running(database)
    said = await settle(database, [Settlement(job_id, token, verb, **given)])
    assert rest(said) == replace(settled(verb, job_id, *counts), **expected)


@scenario(settle)
async def settle_a_failure(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, token = await running(database, request_id="r")
    said = await settle(database, [Settlement(job_id, token, Verb.FAIL, error=ERROR)])
    failure = Failure(job_id, "noop", "default", "failed", 1, ERROR, "r")
    return said, settled(Verb.FAIL, job_id, ended("failed"), failed=[failure])


@scenario(settle)
async def settle_the_last_attempt(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, token = await running(database, max_attempts=1)
    said = await settle(database, [Settlement(job_id, token, Verb.RETRY, error=ERROR)])
    failure = Failure(job_id, "noop", "default", "failed", 1, ERROR, None)
    expected = settled(Verb.RETRY, job_id, ended("failed"), failed=[failure], durations=run("fail"))
    return said, expected


@scenario(settle)
async def settle_with_usage(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, token = await running(database, model="m")
    usage = '{"prompt_tokens":7,"completion_tokens":3,"load_seconds":0.5}'
    said = await settle(database, [Settlement(job_id, token, Verb.COMPLETE, result="1", usage=usage)])
    expected = settled(Verb.COMPLETE, job_id, ended("done"))
    expected.counts += Counter({(TOKENS, ("m", "prompt")): 7, (TOKENS, ("m", "completion")): 3})
    return said, expected


@scenario(settle)
async def settle_with_strange_usage(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    """Whatever it is, it keeps nobody from hearing of the settlement."""
    told = [{"prompt_tokens": "many", "completion_tokens": None}, {"prompt_tokens": -1}, [1], 7, {}]
    runs = [await running(database, lane=f"lane-{n}") for n in range(len(told))]
    settlements = [
        Settlement(job_id, token, Verb.COMPLETE, result="1", usage=json.dumps(usage))
        for (job_id, token), usage in zip(runs, told, strict=True)
    ]
    said = await settle(database, settlements)
    expected = settled(Verb.COMPLETE, "", ended("done"))
    expected.counts = Counter({each: len(told) for each in expected.counts})
    for _ in told[1:]:
        expected.durations += run("complete")
    return said, replace(expected, jobs={job_id for job_id, _ in runs})


@scenario(settle)
async def settle_one_with_a_key_that_others_wait_for(
    database: Database,
) -> tuple[Changes[Any], Changes[Any]]:
    job_id, token = await running(database)
    await write(
        database, "UPDATE jobs SET concurrency_key = 'k', has_dependents = true WHERE id = $1", job_id
    )
    said = await settle(database, [Settlement(job_id, token, Verb.COMPLETE, result="1")])
    told: dict[str, Any] = {"keys": {("default", "k")}, "ended": {job_id}}
    return said, settled(Verb.COMPLETE, job_id, ended("done"), **told)


@scenario(settle)
async def settle_what_is_started_already(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, token = await running(database)
    for _ in range(2):
        said = await settle(database, [Settlement(job_id, token, Verb.START)])
    return said, Changes(counts=counted((SETTLEMENTS, "start", "true")))


@scenario(settle)
async def settle_too_late(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, _ = await running(database)
    said = await settle(database, [Settlement(job_id, "old", Verb.COMPLETE, result="1")])
    return said, Changes(jobs={job_id}, counts=counted((SETTLEMENTS, "complete", "false")))


@scenario(note_late)
async def note_that_somebody_was_late(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await put_one(database)
    return await note_late(database, [(job_id, "complete"), ("0" * 26, "fail")]), Changes(jobs={job_id})


# -- by their ids -------------------------------------------------------------------------------------------


async def failed(database: Database, **fields: Any) -> str:
    job_id, token = await running(database, **fields)
    await settle(database, [Settlement(job_id, token, Verb.FAIL, error=ERROR)])
    return job_id


async def give_key(database: Database, job_id: str) -> None:
    await write(database, "UPDATE jobs SET concurrency_key = 'k' WHERE id = $1", job_id)


@scenario(cancel)
async def cancel_one_that_waits(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await put_one(database)
    await write(database, "UPDATE jobs SET concurrency_key = 'k', has_dependents = true")
    said = await cancel(database, [job_id], TENANT, None)
    counts = counted(ended("cancelled"))
    return said, Changes(jobs={job_id}, keys={("default", "k")}, ended={job_id}, counts=counts)


@scenario(cancel)
async def cancel_one_that_runs(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, _ = await running(database)
    await give_key(database, job_id)
    return await cancel(database, [job_id], TENANT, None), Changes(jobs={job_id}, cancels={job_id})


@scenario(cancel)
async def cancel_one_that_runs_once_more(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, _ = await running(database)
    await cancel(database, [job_id], TENANT, None)
    return await cancel(database, [job_id], TENANT, None), Changes(cancels={job_id})


@scenario(cancel)
async def cancel_one_with_children(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    parent = await put_one(database)
    waiting = await put_one(database, parent_id=parent, lane="w")
    runs, _ = await running(database, parent_id=parent, lane="r")
    said = await cancel(database, [parent], TENANT, None)
    counts: Counter[Any] = Counter({(ENDED, ("default", "noop", "cancelled")): 2})
    return said, Changes(jobs={parent, waiting, runs}, cancels={runs}, counts=counts)


@scenario(revive)
async def revive_one(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await failed(database)
    return await revive(database, [job_id], TENANT), Changes(jobs={job_id}, work={HERE})


@scenario(revive)
async def revive_one_with_a_key(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await failed(database)
    await give_key(database, job_id)
    said = await revive(database, [job_id], TENANT)
    # Not ready: whoever looks after moments looks once in vain.
    return said, Changes(jobs={job_id}, keys={("default", "k")}, delayed=True)


@scenario(dismiss)
async def dismiss_one(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await failed(database)
    said = await dismiss(database, [job_id], TENANT)
    return said, Changes(jobs={job_id}, counts=counted(ended("dismissed")))


@scenario(delete)
async def delete_one(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, kept = await failed(database), await put_one(database)
    return await delete(database, [job_id, kept], TENANT), Changes(jobs={job_id})


@scenario(delete_in)
async def delete_in_anothers_transaction(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await failed(database)
    async with database.transaction() as connection:
        return await delete_in(connection, [job_id], TENANT), Changes(jobs={job_id})


@scenario(delete_locked)
async def delete_what_is_locked(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await failed(database)
    async with database.transaction() as connection:
        await connection.execute("SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE", job_id)
        return await delete_locked(connection, [job_id]), Changes(jobs={job_id})


@scenario(prune_locked)
async def prune_what_is_locked(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await failed(database)
    async with database.transaction() as connection:
        await connection.execute("SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE", job_id)
        return await prune_locked(connection, [job_id]), Changes(jobs={job_id})


# -- by the passing of time ---------------------------------------------------------------------------------


async def swept(database: Database) -> Changes[Any]:
    found = await sweep(database, cancel_grace_seconds=10)
    assert found is not None
    return found.changes


def moved_by(verb: str, job_id: str, *counts: tuple[Any, ...], **more: Any) -> Changes[Any]:
    told: dict[str, Any] = {"stopped": {"default"}, "durations": run(verb), **more}
    return Changes(jobs={job_id}, counts=counted((SWEPT, verb), *counts), **told)


LOST = (LEASES_LOST, "default", "noop")


@scenario(sweep)
async def sweep_rescues(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, _ = await running(database)
    await backdate(database, job_id, "lease_expires_at")
    again = (RETRIED, "default", "noop", "lease_expired")
    return await swept(database), moved_by("rescue", job_id, again, LOST, work={HERE})


@scenario(sweep)
async def sweep_rescues_for_the_last_time(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, _ = await running(database, max_attempts=1, request_id="r")
    await backdate(database, job_id, "lease_expires_at")
    said = await swept(database)
    error = (await row_of(database, job_id))["error"]
    assert json.loads(error)["code"] == "lease_expired"
    failure = Failure(job_id, "noop", "default", "failed", 1, error, "r")
    told: dict[str, Any] = {"failed": [failure], "durations": run("fail")}
    return said, moved_by("rescue", job_id, ended("failed"), LOST, **told)


@scenario(sweep)
async def sweep_supersedes(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    await queues.configure(database, "keyed", {"key": ["k"]})
    job_id, _ = await running(database, queue="keyed")
    await give_key(database, job_id)
    await backdate(database, job_id, "lease_expires_at")
    said = await swept(database)
    error = (await row_of(database, job_id))["error"]
    told: dict[str, Any] = {"stopped": {"keyed"}, "keys": {KEYED}, "durations": run("supersede", "keyed")}
    told["failed"] = [Failure(job_id, "noop", "keyed", "stale", 1, error, None)]
    return said, moved_by(
        "supersede", job_id, ended("stale", "keyed"), (LEASES_LOST, "keyed", "noop"), **told
    )


@scenario(sweep)
async def sweep_expires(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, _ = await running(database, deadline_seconds=60)
    await database.execute("UPDATE jobs SET has_dependents = true")
    await backdate(database, job_id, "deadline")
    failure = Failure(job_id, "noop", "default", "expired", 1, '{"code":"deadline"}', None)
    # Its worker is told to stop, too.
    told: dict[str, Any] = {"ended": {job_id}, "failed": [failure], "cancels": {job_id}}
    return await swept(database), moved_by("expire", job_id, ended("expired"), **told)


@scenario(sweep)
async def sweep_expires_what_waits(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await put_one(database, deadline_seconds=60)
    await backdate(database, job_id, "deadline")
    failure = Failure(job_id, "noop", "default", "expired", 0, '{"code":"deadline"}', None)
    told: dict[str, Any] = {"failed": [failure], "stopped": set(), "durations": took()}
    return await swept(database), moved_by("expire", job_id, ended("expired"), **told)


@scenario(sweep)
async def sweep_ends_the_grace_of_a_cancel(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, _ = await running(database)
    await cancel(database, [job_id], TENANT, None)
    await backdate(database, job_id, "cancel_requested_at", timedelta(seconds=11))
    return await swept(database), moved_by("cancel", job_id, ended("cancelled"))


@scenario(promote)
async def promote_one_that_came_due(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await put_one(database, delay_seconds=60)
    await backdate(database, job_id, "run_at")
    return await promote(database), Changes(work={HERE})


@scenario(promote)
async def promote_one_with_a_key(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await put_one(database, delay_seconds=60)
    await give_key(database, job_id)
    await backdate(database, job_id, "run_at")
    return await promote(database), Changes(keys={("default", "k")})


@scenario(prune)
async def prune_what_is_over(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await failed(database, id="0" * 25 + "1")
    await database.execute("UPDATE jobs SET completed_at = now() - interval '9 days' WHERE id = $1", job_id)
    await plan_walks(database, {"": 86_400.0})
    pruned = await prune(database, {"failed": 86_400.0}, 5)
    assert pruned is not None
    assert pruned.changes.answers == [job_id]
    # Nobody waits for the end of a retention.
    return pruned.changes, Changes(counts=counted((PRUNED,)))


# -- who waits for another ----------------------------------------------------------------------------------


async def in_line(database: Database) -> None:
    """One waits for the place of a key that another has just left."""
    way_in = await managed(database)
    first = keyed()
    await way_in.enqueue([first])
    await way_in.enqueue([keyed()])
    await cancel(database, [first.jobs[0].id], TENANT, None)


LET_IN: Changes[Any] = Changes(work={("keyed", "noop")}, counts=counted((GATES_PASSED, "key")))


@scenario(keys.ready_next)
async def ready_next_in_line(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    await in_line(database)
    return await keys.ready_next(database, [KEYED]), LET_IN


@scenario(keys.ready_next_locked)
async def ready_next_with_the_lock(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    await in_line(database)
    async with database.transaction() as connection:
        await lock(connection, {keys.key_lock(KEYED): True})
        return await keys.ready_next_locked(connection, [KEYED]), LET_IN


@scenario(reconcile)
async def reconcile_a_queue_with_more_room(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    way_in = await managed(database)
    for _ in range(2):
        await way_in.enqueue([keyed()])
    await queues.configure(database, "keyed", {"key": ["k"], "max_queued": 1, "max_active": 2})
    said = await reconcile(database, QueueBook(database))
    assert said.answers == ["keyed"]
    return said, LET_IN


@scenario(dependencies.resolve)
async def resolve_what_is_done(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    first, _, token = await waited_for(database)
    await settle(database, [Settlement(first, token, Verb.COMPLETE, result="1")])
    said = await dependencies.resolve(database, [first])
    return said, Changes(work={("default", "late")}, counts=counted((GATES_PASSED, dependencies.GATE)))


@scenario(dependencies.resolve)
async def resolve_what_has_failed(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    first, second, token = await waited_for(database)
    await settle(database, [Settlement(first, token, Verb.FAIL, error=ERROR)])
    said = await dependencies.resolve(database, [first])
    return said, Changes(jobs={second}, counts=counted(ended("cancelled")))


async def waited_for(database: Database) -> tuple[str, str, str]:
    """A job that runs, one that waits for it, and the lease of the first."""
    first = await put_one(database)
    waiting = job(depends_on=[first], lane="late")
    await (await managed(database)).enqueue([Submission([waiting])])
    return first, waiting.id, await claim_one(database, first)


# -- targets ------------------------------------------------------------------------------------------------


@scenario(targets.park)
async def park_one(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await put_one(database, lane=MODEL)
    return await targets.park(database, "default", [MODEL]), Changes(jobs={job_id})


@scenario(targets.park)
async def park_one_with_a_key(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await put_one(database, lane=MODEL)
    await give_key(database, job_id)
    said = await targets.park(database, "default", [MODEL])
    return said, Changes(jobs={job_id}, keys={("default", "k")})


@scenario(targets.unpark)
async def unpark_one(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    await park_one(database)
    [said] = [each async for each in targets.unpark(database)]
    return said, Changes(work={("default", MODEL)})


@scenario(targets.unpark)
async def unpark_one_with_a_key(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    await park_one_with_a_key(database)
    [said] = [each async for each in targets.unpark(database)]
    return said, Changes(keys={("default", "k")})


# -- the log, and what operators do -------------------------------------------------------------------------


@scenario(append)
async def append_to_the_log(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, ended = await put_one(database), await failed(database)
    said = await append(
        database, [NewEvent(job_id, "log", "{}"), NewEvent(job_id, "mine"), NewEvent(ended, "mine")]
    )
    return said, Changes(jobs={job_id}, counts=counted((EVENTS_APPENDED, "log"), (EVENTS_APPENDED, "posted")))


@scenario(artifacts.put)
async def put_an_artifact(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, token = await running(database)
    said = await artifacts.put(
        database, NewArtifact(job_id, "a", "text/plain", 1, '"x"', content="x"), token, 9
    )
    return said, Changes(jobs={job_id}, counts=counted((EVENTS_APPENDED, "log")))


@scenario(artifacts.put)
async def put_an_artifact_too_late(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, _ = await running(database)
    new = NewArtifact(job_id, "a", "text/plain", 1, '"x"', content="x")
    return await artifacts.put(database, new, "old", 9), Changes()


@scenario(queues.configure)
async def configure_a_queue(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    return await queues.configure(database, "q", {"max_running": 1}), Changes(settings={"q"})


@scenario(queues.pause)
async def pause_a_queue(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    return await queues.pause(database, "q", paused=True), Changes(settings={"q"})


@scenario(schedules.put)
async def put_a_schedule(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    return await schedules.put(database, "s", TENANT, "* * * * *", "UTC", "{}"), Changes(schedules=True)


@scenario(bulk.begin)
async def begin_a_bulk_operation(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    return await bulk.begin(database, "cancel", Filter(), TENANT), Changes(operations=True)


@scenario(bulk.step)
async def step_of_a_bulk_operation(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id, _ = await running(database)
    await bulk.begin(database, "cancel", Filter(), TENANT)
    said = await bulk.step(database)
    assert said is not None
    return said, Changes(jobs={job_id}, cancels={job_id}, counts=counted((BULK, "cancel")))


@scenario(outbox.redeliver)
async def redeliver_once_more(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await put_one(database, webhook_url=URL)
    return await outbox.redeliver(database, job_id, TENANT, 1), Changes(receivers={"receiver.example"})


@scenario(outbox.redeliver)
async def redeliver_nothing(database: Database) -> tuple[Changes[Any], Changes[Any]]:
    job_id = await put_one(database)
    return await outbox.redeliver(database, job_id, TENANT, 1), Changes()


def rest(changes: Changes[Any]) -> Changes[Any]:
    """All but what is for the caller, and how long things took."""
    durations = Durations()
    for counted_by, seconds in changes.durations.items():
        assert all(0 <= each < 3600 for each in seconds)
        durations[counted_by] = [0.0] * len(seconds)
    return replace(changes, answers=[], durations=durations)


@pytest.mark.parametrize("name", sorted(SCENARIOS))
async def test_a_verb_says_what_it_changed_and_nothing_else(database: Database, name: str) -> None:
    said, expected = await SCENARIOS[name](database)
    assert rest(said) == expected


def test_every_verb_is_among_them() -> None:
    assert verbs_of_the_store() == WALKED


def test_what_is_added_up_is_everything() -> None:
    """A field that `add` forgot would be lost whenever one verb is made of others."""
    other: Changes[Any] = Changes(
        jobs={"j"},
        work={HERE},
        delayed=True,
        keys={KEYED},
        ended={"e"},
        stopped={"s"},
        room={"r"},
        cancels={"c"},
        webhooks=[("w", URL)],
        receivers={"receiver.example"},
        settings={"q"},
        schedules=True,
        operations=True,
        accepted=Counter(default=1),
        failed=[Failure("f", "noop", "default", "failed", 1, None, None)],
        counts=counted((ENQUEUED,)),
        durations=run("complete"),
        claimed=cast("Any", ("a job",)),
        left=[("j", 4)],
    )
    assert all(getattr(other, each.name) for each in fields(Changes) if each.name != "answers")
    one: Changes[Any] = Changes(["mine"])
    one.add(other)
    assert one == replace(other, answers=["mine"])
    assert (one.claimed, one.left) == (other.claimed, other.left)
