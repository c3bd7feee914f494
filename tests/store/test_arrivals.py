"""A job that comes in when its slot is free is what it would be after an enqueue, a claim and a start."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.jobs.states import Verb
from app.jobs.submission import NewJob
from app.store.arrivals import Arrival, Arrived, arrive, may_arrive
from app.store.claims import Claimant, Claims
from app.store.database import Database
from app.store.history import ALL_EVENTS
from app.store.idempotency import Submission
from app.store.job import ClaimedJob
from app.store.low_water import LowWater
from app.store.queues import QueueBook, pause
from app.store.settle import Settlement, settle
from app.store.sweep import sweep
from tests.store.making import backdate, job, log_of, put_one, row_of, states_of

LANE = "llm|||llama3.2"
BEFORE = [(1, "queued", "enqueue"), (2, "loading", "claim"), (3, "working", "start")]
# What no two jobs have in common.
OWN = {
    "id",
    "lease_token",
    *(f"{each}_at" for each in ("created", "updated", "run", "ready", "entered", "started")),
}
OWN |= {"lease_expires_at", "attempt_expires_at", "history", "queued_seconds", "deadline"}


def call(**fields: Any) -> NewJob:
    given = {"kind": "chat", "lane": LANE, "model": "llama3.2", "interactive": True, "dialect": "openai"}
    return job(**{**given, **fields})


async def come(database: Database, *jobs: NewJob, low_water: LowWater | None = None) -> Arrived:
    arrivals = [Arrival(Submission([each]), "gpu") for each in jobs]
    return await arrive(database, low_water or LowWater(), Claimant("tester", 1, 30), arrivals)


async def step_by_step(database: Database, new: NewJob) -> ClaimedJob:
    await put_one(database, **{name: getattr(new, name) for name in new.__struct_fields__})
    claims = Claims(database, QueueBook(database))
    [claimed] = (
        await claims.claim(new.queue, [new.lane], [Claimant("tester", 1, 30)], runs_on="gpu", starts=True)
    ).answers
    return claimed


async def events_of(database: Database, job_id: str) -> list[tuple[Any, ...]]:
    rows = await database.fetch(
        f"SELECT seq, type, state, reason, data FROM {ALL_EVENTS} AS e WHERE job_id = $1 ORDER BY seq", job_id
    )
    return [tuple(row) for row in rows]


async def test_it_is_what_it_would_be_step_by_step(database: Database) -> None:
    fields: dict[str, Any] = {
        "priority": 3,
        "max_attempts": 2,
        "max_duration_seconds": 20.0,
        "metadata": '{"a":"b"}',
    }
    fields |= {
        "deadline_seconds": 60.0,
        "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01",
        "payload": '{"x":1}',
    }
    by_steps = await step_by_step(database, call(**fields))
    [at_once] = (await come(database, call(**fields))).claimed.answers
    rows = [dict(await row_of(database, each.id)) for each in (by_steps, at_once)]
    common = [{name: value for name, value in row.items() if name not in OWN} for row in rows]
    assert common[0] == common[1]
    assert [name for name in OWN if (rows[0][name] is None) != (rows[1][name] is None)] == []
    assert (
        rows[1]["lease_expires_at"]
        == rows[1]["attempt_expires_at"]
        == rows[1]["started_at"] + timedelta(seconds=20)
    )
    assert rows[1]["deadline"] == rows[1]["created_at"] + timedelta(seconds=60)
    assert await events_of(database, by_steps.id) == await events_of(database, at_once.id)
    told: list[dict[str, Any]] = [
        {name: getattr(each, name) for name in each.__struct_fields__ if name not in OWN | {"waited_seconds"}}
        for each in (by_steps, at_once)
    ]
    assert told[0] == told[1]
    assert (at_once.lease_token, at_once.deadline) == (rows[1]["lease_token"], rows[1]["deadline"])
    running = await database.fetch(
        "SELECT id, queue, worker, runs_on, concurrency_key FROM running ORDER BY claimed_at"
    )
    assert [tuple(row) for row in running] == [
        (each.id, "default", "tester", "gpu", None) for each in (by_steps, at_once)
    ]
    assert await database.fetchval("SELECT count(*) FROM queued") == 0


async def test_the_feed_over_all_jobs_hears_of_its_three_events(database: Database) -> None:
    [claimed] = (await come(database, call())).claimed.answers
    rows = await database.fetch("SELECT job_ids, seqs, events FROM announcements")
    assert [tuple(row) for row in rows] == [([claimed.id], [3], 3)]


async def test_it_is_settled_by_its_lease_and_by_no_other(database: Database) -> None:
    [claimed] = (await come(database, call())).claimed.answers
    wrong = Settlement(claimed.id, "0" * 36, Verb.COMPLETE, result="{}")
    assert not (await settle(database, [wrong])).answers[0].ok
    right = Settlement(claimed.id, claimed.lease_token, Verb.COMPLETE, result="{}")
    assert (await settle(database, [right])).answers[0].ok
    last = [(4, "late_settlement", "late_settlement"), (5, "done", "complete")]
    assert await log_of(database, claimed.id) == BEFORE + last


async def test_one_whose_process_died_is_rescued(database: Database) -> None:
    [claimed] = (await come(database, call())).claimed.answers
    await backdate(database, claimed.id, "lease_expires_at")
    await sweep(database, cancel_grace_seconds=10)
    assert await states_of(database, claimed.id) == ["queued"]
    assert (await log_of(database, claimed.id))[:4] == [*BEFORE, (4, "queued", "rescue")]
    assert (await row_of(database, claimed.id))["attempt"] == 1


@pytest.mark.parametrize(
    ("waiting", "state"),
    [
        ({"priority": 1}, "queued"),
        ({"interactive": True}, "queued"),
        # Batch work of the same priority goes behind it, and what is not ready goes before nobody.
        ({}, "working"),
        ({"priority": -1, "interactive": True}, "working"),
        ({"priority": 9, "delay_seconds": 3600.0}, "working"),
        ({"priority": 9, "lane": "llm|||other"}, "working"),
        ({"priority": 9, "queue": "other"}, "working"),
    ],
)
async def test_it_waits_behind_what_goes_before_it(
    database: Database, waiting: dict[str, Any], state: str
) -> None:
    await put_one(database, **{"kind": "chat", "lane": LANE, **waiting})
    arrived = await come(database, new := call())
    assert await states_of(database, new.id) == [state]
    assert len(arrived.claimed.answers) == (state == "working")
    assert arrived.enqueued.work == (set() if state == "working" else {("default", LANE)})


async def test_one_that_waits_is_as_enqueued_and_claimed_like_any_other(database: Database) -> None:
    first = await put_one(database, kind="chat", lane=LANE, interactive=True)
    await come(database, new := call())
    assert await log_of(database, new.id) == BEFORE[:1]
    row = await row_of(database, new.id)
    assert (row["attempt"], row["worker"], row["lease_token"], row["started_at"], row["runs_on"]) == (
        0,
        *[None] * 4,
    )
    claimed = (await Claims(database).claim("default", [LANE], [Claimant("w", 5, 30)])).answers
    assert [each.id for each in claimed] == [first, new.id]


async def test_a_paused_queue_is_not_passed_by(database: Database) -> None:
    await pause(database, "default", paused=True)
    await come(database, new := call(), other := call(queue="other"))
    assert await states_of(database, new.id, other.id) == ["queued", "working"]


async def test_one_that_is_late_already_does_not_run(database: Database) -> None:
    late = call(deadline=datetime.now(UTC) - timedelta(seconds=1))
    await come(database, late, good := call(deadline_seconds=30.0))
    assert await states_of(database, late.id, good.id) == ["queued", "working"]


async def test_calls_of_many_lanes_and_queues_come_in_together(database: Database) -> None:
    ahead = await put_one(database, kind="chat", lane="llm|||m3", priority=1)
    jobs = [call(lane=f"llm|||m{n % 5}", queue=f"q{n % 2}" if n % 5 != 3 else "default") for n in range(40)]
    arrived = await come(database, *jobs)
    held_up = {each.id for each in jobs if each.lane == "llm|||m3"}
    assert {each.id for each in arrived.claimed.answers} == {each.id for each in jobs} - held_up
    queued = {row["id"] for row in await database.fetch("SELECT id FROM queued")}
    assert queued == held_up | {ahead}
    assert len({each.lease_token for each in arrived.claimed.answers}) == 32


async def test_what_waits_is_seen_also_after_many_have_passed(database: Database) -> None:
    """The marks that a process remembers of a lane hide nothing from those who come in."""
    low_water = LowWater()
    for _ in range(3):
        await come(database, call(), low_water=low_water)
    waiting = await put_one(database, kind="chat", lane=LANE, interactive=True)
    await come(database, new := call(), low_water=low_water)
    assert await states_of(database, waiting, new.id) == ["queued", "queued"]


@pytest.mark.parametrize(
    "fields",
    [
        {"interactive": False},
        {"run_at": datetime(2020, 1, 1, tzinfo=UTC)},
        {"delay_seconds": 1.0},
        {"depends_on": ["x"]},
        {"parent_id": "x"},
        {"webhook_url": "https://receiver.example/hook"},
    ],
)
def test_only_plain_calls_pass_the_queue_by(fields: dict[str, Any]) -> None:
    assert may_arrive(Submission([call()]))
    assert not may_arrive(Submission([call(**fields)]))


def test_neither_lists_nor_those_with_an_idempotency_key_do() -> None:
    assert not may_arrive(Submission([call(), call()], batch=True))
    assert not may_arrive(Submission([call()], idempotency_key="k", fingerprint=b"f"))
