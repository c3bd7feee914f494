"""Why a job waits for its target, or for anybody at all; and that odd rows and large queues are no trouble."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.config import Settings
from app.dialects import TARGET_DIALECTS
from app.engine.claimers import Claimers
from app.engine.explain import Explainer
from app.jobs.explanation import Code, Explanation, Reason, clock, lasting, named, number, sentence, soon
from app.jobs.lanes import llm_lane
from app.jobs.states import State, Verb
from app.outbound.client import GuardedClient
from app.outbound.guard import ANY_ADDRESS
from app.store import targets as store
from app.store.database import Database
from app.store.settle import Settlement, settle
from app.store.workers import WorkerReport, seen
from app.targets.affinity import affinity_of
from app.targets.breaker import FAILURES
from app.targets.config import TargetConfig, TargetFields
from app.targets.inventory import Inventory
from app.targets.registry import Registry
from app.targets.target import Target
from tests.live_tables import write
from tests.store.making import TENANT, claim_one, put_one

NOW = datetime(2026, 3, 2, 14, 2, 30, tzinfo=UTC)
PATIENCE_SECONDS = 3600.0


class Fleet:
    """Targets as a process would know them, one that answers for each name."""

    def __init__(self, database: Database, *names: str) -> None:
        self.database = database
        self.client = GuardedClient(ANY_ADDRESS)
        configured = [
            TargetConfig.of(name, TargetFields(url="http://127.0.0.1:1", slots=2), "api") for name in names
        ]
        self.registry = Registry(
            database, self.client, None, configured, inventory_seconds=60, idle_seconds=60
        )
        for target in self.registry.targets:
            target.awake = True
            target.inventory = Inventory(TARGET_DIALECTS["ollama"], [{"model": "m:latest"}])
        settings = Settings(affinity_patience_seconds=PATIENCE_SECONDS)
        self.explainer = Explainer(database, self.registry, Claimers(database), settings)

    def __getitem__(self, name: str) -> Target:
        target = self.registry.get(name)
        assert target is not None
        return target

    async def explain(self, job_id: str) -> Explanation:
        found = await self.explainer.explain(job_id, TENANT)
        assert found is not None
        return found

    async def because(self, job_id: str) -> list[Reason]:
        return (await self.explain(job_id)).because

    async def run_on(self, name: str, jobs: int, model: str = "m") -> None:
        for _ in range(jobs):
            job_id = await chat(self.database, model, queue="elsewhere")
            await claim_one(self.database, job_id)
            await write(self.database, "UPDATE jobs SET runs_on = $2 WHERE id = $1", job_id, name)


MakeFleet = Callable[..., Fleet]


@pytest.fixture
async def fleet(database: Database) -> MakeFleet:
    """With somebody about who would run what a target is free for."""
    own = WorkerReport("default", "w", queues=["*"], kinds=["chat", "noop"], concurrency=1)
    await seen(database, [own], 1)
    return lambda *names: Fleet(database, *names)


async def chat(database: Database, model: str = "m", target: str | None = None, **fields: Any) -> str:
    return await put_one(
        database, kind="chat", model=model, target=target, lane=llm_lane(model, "", target), **fields
    )


def codes(because: list[Reason]) -> list[str]:
    return [reason.code for reason in because]


# -- targets -----------------------------------------------------------------------------------------


async def test_a_free_target_is_no_reason_to_wait(database: Database, fleet: MakeFleet) -> None:
    assert codes(await fleet("studio").because(await chat(database))) == ["next"]
    assert codes(await fleet().because(await chat(database))) == ["jobs_ahead"], "the built-in one serves"


async def test_a_sleeping_target_is_named_with_since_when_as_all_replicas_know_it(
    database: Database, fleet: MakeFleet
) -> None:
    here = fleet("laptop")
    await store.know_targets(database, ["laptop"])
    await store.record_sleep(database, "laptop", "no answer")
    since = datetime.now(UTC) - timedelta(days=2)
    await database.execute("UPDATE targets SET asleep_since = $1", since)
    here["laptop"].awake, here["laptop"].asleep_since = False, datetime.now(UTC)
    first, job_id = await chat(database), await chat(database)
    found = await here.explain(job_id)
    assert codes(found.because) == ["target_asleep", "jobs_ahead"]
    assert (found.because[0].targets, found.because[0].since) == (["laptop"], since)
    assert found.headline == (
        f"Waiting: its target laptop has been asleep since {since:%Y-%m-%d %H:%M} UTC; 1 job is ahead"
    )
    # Held back by the dispatcher it says the same, and no moment is named.
    await store.park(database, "default", [llm_lane("m")])
    found = await here.explain(job_id)
    assert (codes(found.because), found.position, found.next_at) == (["target_asleep"], None, None)
    # It has answered, and the job is on its way back into the line.
    here["laptop"].awake = True
    assert codes(await here.because(first)) == ["due"]


async def test_a_model_that_no_target_is_known_to_have_waits_for_the_sleeping_ones(
    database: Database, fleet: MakeFleet
) -> None:
    here = fleet("laptop", "studio")
    here["laptop"].awake = False
    because = await here.because(await chat(database, "rare"))
    assert codes(because) == ["target_asleep", "model_unknown"]
    assert because[1].message == "No target that answers has the model rare, and laptop may have it."
    here["laptop"].inventory = Inventory(TARGET_DIALECTS["ollama"], [{"model": "rare:latest"}])
    assert codes(await here.because(await chat(database, "rare"))) == ["target_asleep", "jobs_ahead"]


async def test_what_nobody_has_and_what_is_pinned_to_nothing_is_about_to_fail(
    database: Database, fleet: MakeFleet
) -> None:
    here = fleet("studio")
    assert codes(await here.because(await chat(database, "rare"))) == ["model_unknown"]
    because = await here.because(await chat(database, target="cellar"))
    assert (codes(because), because[0].targets) == (["no_such_target"], ["cellar"])
    here["studio"].awake = None
    assert codes(await here.because(await chat(database))) == ["target_unasked"]


async def test_all_slots_in_use_are_told_only_when_every_target_is_full(
    database: Database, fleet: MakeFleet
) -> None:
    here = fleet("laptop", "studio")
    await here.run_on("studio", 2)
    job_id = await chat(database)
    assert codes(await here.because(job_id)) == ["next"], "the other one is free"
    await here.run_on("laptop", 2)
    because = await here.because(job_id)
    assert codes(because) == ["target_busy"]
    assert (because[0].limit, because[0].running) == (4, 4)
    assert because[0].message == "All 4 slots of its targets laptop and studio are in use."
    pinned = await chat(database, target="studio")
    assert (await here.because(pinned))[0].message == "All 2 slots of its target studio are in use."


async def test_an_open_breaker_says_when_the_target_is_tried_again(
    database: Database, fleet: MakeFleet
) -> None:
    here = fleet("studio")
    for _ in range(FAILURES):
        here["studio"].breaker.failed(time.monotonic() + 600)
    here["studio"].failure = "HTTP 500"
    found = await here.explain(await chat(database))
    assert codes(found.because) == ["breaker_open"]
    assert (found.because[0].targets, found.because[0].reason) == (["studio"], "HTTP 500")
    assert found.next_at == found.because[0].until
    assert "kept failing and is given a pause: the next job tries it in 10 min" in found.headline
    here["studio"].breaker.succeeded()
    for _ in range(FAILURES):
        here["studio"].breaker.failed(time.monotonic() - 600)
    here["studio"].breaker.passes()
    found = await here.explain(await chat(database))
    assert (found.because[0].code, found.next_at) == (Code.BREAKER_OPEN, None), "one job tries it out"


async def test_another_model_that_is_loaded_goes_first_until_patience_is_over(
    database: Database, fleet: MakeFleet
) -> None:
    here = fleet("studio")
    here["studio"].inventory = Inventory(
        TARGET_DIALECTS["ollama"], [{"model": "m:latest"}, {"model": "n:latest"}]
    )
    here["studio"].resident = affinity_of(llm_lane("n"))
    job_id = await chat(database)
    assert codes(await here.because(job_id)) == ["next"], "nothing runs there: it is loaded at once"
    await here.run_on("studio", 2, "n")
    found = await here.explain(job_id)
    assert codes(found.because) == ["target_busy", "other_model_resident"]
    assert "n:latest on studio" in found.because[1].message
    assert found.next_at == found.because[1].until
    await write(database, "UPDATE jobs SET ready_at = now() - interval '2 hours' WHERE id = $1", job_id)
    assert codes(await here.because(job_id)) == ["target_busy"]


# -- nobody ------------------------------------------------------------------------------------------


async def test_without_a_process_that_runs_jobs_the_kinds_of_foreman_say_so(database: Database) -> None:
    here = Fleet(database)
    # Somebody else's worker does not run them, whatever else is about.
    await seen(database, [WorkerReport("default", "w", ["default"], [], 1)], 1)
    found = await here.explain(await put_one(database))
    assert codes(found.because) == ["no_worker_process"]
    assert "--role worker" in found.headline
    assert codes(await here.because(await chat(database))) == ["no_worker_process"]
    assert codes(await here.because(await put_one(database, kind="other"))) == ["next"]


async def test_what_could_not_be_reached_is_deferred_with_its_error(
    database: Database, fleet: MakeFleet
) -> None:
    here = fleet("studio")
    for lane, reason in (("http", "unreachable"), (llm_lane("m"), "target_asleep")):
        job_id = await put_one(database, kind="http" if lane == "http" else "chat", lane=lane)
        token = await claim_one(database, job_id)
        error = '{"code":"target_unreachable","message":"studio: connection refused","retryable":true}'
        given = Settlement(job_id, token, Verb.DEFER, error=error, delay_seconds=600, reason=reason)
        await settle(database, [given])
        here["studio"].awake = False
        found = await here.explain(job_id)
        deferred = next(each for each in found.because if each.code is Code.DEFERRED)
        assert "studio: connection refused; it is tried again in 10 min" in deferred.message
        assert found.next_at == deferred.until
        assert (found.because[0].code is Code.TARGET_ASLEEP) == (reason == "target_asleep")


# -- oddities and sizes ------------------------------------------------------------------------------


async def test_no_row_is_too_odd_to_be_explained(database: Database, fleet: MakeFleet) -> None:
    here = fleet("studio")
    odd = [
        "run_at = 'infinity'",
        "run_at = '-infinity'",
        "ready_at = NULL",
        "ready_at = NULL, run_at = 'infinity'",
        "ready_at = NULL, run_at = '-infinity', gate = 'key'",
        "ready_at = NULL, gate = 'key', concurrency_key = 'nobody has it'",
        "ready_at = NULL, gate = 'waiting_for'",
        "ready_at = NULL, gate = 'what is this'",
        "ready_at = '-infinity'",
        "entered_at = '-infinity'",
        "deadline = 'infinity'",
        "deadline = '-infinity'",
        "error = 'not json', attempt = 3",
        "error = '[1]', attempt = 3",
        'error = \'{"code":null,"message":{"a":1}}\', attempt = 3',
        "reason = 'target_asleep', ready_at = NULL, started_at = now()",
        "reason = 'retry', ready_at = NULL, run_at = now() + interval '1 hour', started_at = now()",
        "cancel_requested_at = 'infinity', cancel_reason = ''",
        "attempt = -5, max_attempts = 0, deferrals = -1",
        "lane = 'llm|', kind = 'chat'",
        "lane = '', kind = ''",
        'queued_seconds = -5, usage = \'{"prompt_tokens":-1,"completion_tokens":1e300}\'',
        "usage = 'nonsense', parent_id = 'nobody'",
        "worker = NULL, lease_expires_at = '-infinity'",
        "completed_at = 'infinity'",
    ]
    for state in State:
        for change in odd:
            job_id = await put_one(database)
            ended = "now()" if state not in {"queued", "loading", "working"} else "NULL"
            if "completed_at" not in change:
                change = f"{change}, completed_at = {ended}"  # noqa: PLW2901 - the same, made possible
            elif ended == "NULL":
                continue
            await write(database, f"UPDATE jobs SET state = '{state}', {change} WHERE id = $1", job_id)
            found = await here.explain(job_id)
            assert found.state == state
            assert found.headline, change
            assert found.because, change


async def test_settings_and_histories_that_cannot_be_read_are_passed_over(
    database: Database, fleet: MakeFleet
) -> None:
    here = fleet("studio")
    job_id = await put_one(database, queue="odd")
    await database.execute("""UPDATE queues SET settings = '{"max_running":"many","rate":7,"fair_by":[]}'""")
    assert codes(await here.because(job_id)) == ["next"]
    await database.execute("DELETE FROM queues")
    assert codes(await here.because(job_id)) == ["next"]
    await write(
        database,
        "UPDATE jobs SET state = 'cancelled', completed_at = now(), cancel_reason = 'dependency_failed',"
        " history = '1 enqueue 5 {\"depends_on\":7}' || E'\\n' WHERE id = $1",
        job_id,
    )
    assert codes(await here.because(job_id)) == ["dependency_failed", "ledger"]


async def test_jobs_of_another_tenant_are_counted_and_never_named(
    database: Database, fleet: MakeFleet
) -> None:
    here = fleet("studio")
    theirs = await put_one(database, tenant="acme")
    mine = await put_one(database)
    await write(
        database,
        "UPDATE jobs SET ready_at = NULL, gate = 'waiting_for', concurrency_key = 'k' WHERE id = $1",
        mine,
    )
    await write(database, "UPDATE jobs SET concurrency_key = 'k' WHERE id = $1", theirs)
    await database.execute("INSERT INTO dependencies (job_id, depends_on) VALUES ($1, $2)", mine, theirs)
    [reason] = await here.because(mine)
    assert (reason.jobs, reason.others) == ([], 1)
    assert theirs not in reason.message
    await write(database, "UPDATE jobs SET gate = 'key' WHERE id = $1", mine)
    [reason] = await here.because(mine)
    assert (reason.code, reason.jobs, reason.others, reason.running) == (Code.KEY_BUSY, [], 1, 1)
    assert theirs not in reason.message
    assert await here.explainer.explain(theirs, TENANT) is None


async def test_posted_events_hide_nothing(database: Database, fleet: MakeFleet) -> None:
    here = fleet("studio")
    job_id = await put_one(database)
    token = await claim_one(database, job_id)
    await settle(database, [Settlement(job_id, token, Verb.RETRY, delay_seconds=600)])
    await database.execute(
        "INSERT INTO events (job_id, seq, type, state, at)"
        " SELECT $1, n, 'note', 'queued', now() FROM generate_series(100, 900) n",
        job_id,
    )
    assert codes(await here.because(job_id)) == ["backing_off"]
    await database.execute(
        "INSERT INTO events (job_id, seq, type, state, at)"
        " SELECT $1, n, 'note', 'queued', now() FROM generate_series(1000, 20000) n",
        job_id,
    )
    assert codes(await here.because(job_id)) == ["backing_off"], "the row tells it as well"


# -- words -------------------------------------------------------------------------------------------


def test_words_are_those_a_person_would_say() -> None:
    assert [lasting(each) for each in (-1, 0.04, 9.94, 59, 60, 200, 3600, 7500, 86_400, 180_000)] == [
        "0 ms", "40 ms", "9.9 s", "59 s", "1 min", "3 min 20 s", "1 h", "2 h 5 min", "1 d", "2 d 2 h",
    ]  # fmt: skip
    assert clock(NOW, NOW) == "14:02 UTC"
    assert clock(NOW - timedelta(days=1), NOW) == "2026-03-01 14:02 UTC"
    assert [soon(NOW + timedelta(seconds=each), NOW) for each in (-1, 12, 7200)] == [
        "now", "in 12 s", "at 16:02 UTC",
    ]  # fmt: skip
    assert [number(each, "job") for each in (0, 1, 2, 10_000)] == [
        "0 jobs", "1 job", "2 jobs", "10,000 jobs or more",
    ]  # fmt: skip
    assert [named("abcde"[:each], 2) for each in (0, 1, 4)] == [
        "2 others", "a and 2 others", "a, b, c and 3 others",
    ]  # fmt: skip
    assert [named("ab"[:each]) for each in range(3)] == ["", "a", "a and b"]
    assert [sentence(each) for each in ("it is", "why?", "cut…", "")] == ["It is.", "Why?", "Cut…", "."]
