"""Settlements count with the current lease token only; one statement takes a batch of mixed verbs."""

import json
from datetime import timedelta
from typing import Any

import pytest

from app.jobs.outcomes import shown_error
from app.jobs.retry import DEFAULT_BACKOFF_SECONDS, NO_BACKOFF
from app.jobs.states import Verb
from app.store.changes import Changes
from app.store.control import cancel
from app.store.database import Database
from app.store.history import ALL_EVENTS
from app.store.settle import Settled, Settlement, heartbeat, settle
from tests.live_tables import write
from tests.store import invariants
from tests.store.making import (
    TENANT,
    backdate,
    claim,
    claim_one,
    job,
    log_of,
    put,
    put_one,
    row_of,
    running,
    states_of,
)

ERROR = '{"code":"broken","message":"It broke.","retryable":true}'


async def settling(database: Database, job_id: str, token: str, verb: Verb, **more: Any) -> Changes[Settled]:
    return await settle(database, [Settlement(job_id, token, verb, **more)])


async def settle_one(database: Database, job_id: str, token: str, verb: Verb, **more: Any) -> Settled:
    [settled] = (await settling(database, job_id, token, verb, **more)).answers
    return settled


async def last_event(database: Database, job_id: str) -> dict[str, Any]:
    data = await database.fetchval(
        f"SELECT data FROM {ALL_EVENTS} AS events WHERE job_id = $1 ORDER BY seq DESC LIMIT 1", job_id
    )
    return dict(json.loads(data or "{}"))


async def test_start_then_complete_is_the_whole_life_of_a_job(database: Database) -> None:
    job_id, token = await running(database)
    assert (await settle_one(database, job_id, token, Verb.START)).state == "working"
    changes = await settling(
        database, job_id, token, Verb.COMPLETE, result='{"b": 1.0,"a":1e2}', usage='{"t":1}'
    )
    assert (changes.answers, changes.work) == ([Settled(job_id, True, "done")], set())
    row = await row_of(database, job_id)
    assert (row["state"], row["result"], row["usage"], row["error"]) == (
        "done",
        '{"b": 1.0,"a":1e2}',
        '{"t":1}',
        None,
    )
    assert (row["lease_token"], row["lease_expires_at"], row["attempt_expires_at"]) == (None, None, None)
    assert row["completed_at"] >= row["started_at"] >= row["created_at"]
    assert [each[1:] for each in await log_of(database, job_id)] == [
        ("queued", "enqueue"),
        ("loading", "claim"),
        ("working", "start"),
        ("done", "complete"),
    ]


async def test_complete_from_loading_passes_through_working_in_the_same_commit(database: Database) -> None:
    job_id, token = await running(database)
    await settle_one(database, job_id, token, Verb.COMPLETE, result="null")
    assert await log_of(database, job_id) == [
        (1, "queued", "enqueue"),
        (2, "loading", "claim"),
        (3, "working", "start"),
        (4, "done", "complete"),
    ]
    # Both are lines of the job's own row, of the same moment.
    assert (
        await database.fetchval(f"SELECT count(DISTINCT at) FROM {ALL_EVENTS} AS events WHERE seq > 2") == 1
    )
    assert await database.fetchval("SELECT count(*) FROM events") == 0
    await invariants.check_all(database)


async def test_start_twice_is_harmless(database: Database) -> None:
    job_id, token = await running(database)
    await settle_one(database, job_id, token, Verb.START)
    again = await settle_one(database, job_id, token, Verb.START)
    assert (again.ok, again.state) == (True, "working")
    assert len(await log_of(database, job_id)) == 3


@pytest.mark.parametrize("started", [False, True])
async def test_fail_is_final_whatever_attempts_are_left(database: Database, started: bool) -> None:
    job_id, token = await running(database, max_attempts=5)
    if started:
        await settle_one(database, job_id, token, Verb.START)
    settled = await settle_one(database, job_id, token, Verb.FAIL, error=ERROR)
    assert settled.state == "failed"
    row = await row_of(database, job_id)
    assert (row["error"], row["attempt"], row["reason"]) == (ERROR, 1, "fail")
    assert (await last_event(database, job_id))["error"]["code"] == "broken"
    await invariants.check_all(database)


async def test_without_any_backoff_nothing_is_tried_again_later(database: Database) -> None:
    for delay in (None, 1.0):
        job_id = await put_one(database, max_attempts=5, backoff_seconds=list(NO_BACKOFF))
        token = await claim_one(database, job_id)
        settled = await settle_one(database, job_id, token, Verb.RETRY, error=ERROR, delay_seconds=delay)
        row = await row_of(database, job_id)
        assert (settled.state, row["reason"], row["attempt"], row["error"]) == ("failed", "fail", 1, ERROR)
        # Whose worker was lost, or that was put off, is no less alive for that.
        job_id = await put_one(database, backoff_seconds=list(NO_BACKOFF))
        token = await claim_one(database, job_id)
        settled = await settle_one(database, job_id, token, Verb.DEFER, error=ERROR, delay_seconds=60)
        assert settled.state == "queued"


@pytest.mark.parametrize("verb", [Verb.FAIL, Verb.RETRY])
async def test_the_body_of_an_error_is_kept_as_written_and_no_event_tells_it(
    database: Database, verb: Verb
) -> None:
    job_id, token = await running(database)
    body = '{"error": {"b":1.50,"a":"}"}}'
    await settle_one(database, job_id, token, verb, error=ERROR, error_body=body)
    kept = (await row_of(database, job_id))["error"]
    assert kept == ERROR[:-1] + f',"body":{body}}}'
    assert (await last_event(database, job_id))["error"] == json.loads(ERROR)
    assert json.loads(shown_error(kept) or "") == json.loads(ERROR)


async def test_retry_climbs_the_default_ladder_and_ends_failed(database: Database) -> None:
    job_id = await put_one(database, max_attempts=6)
    for attempt in range(1, 7):
        token = await claim_one(database, job_id)
        changes = await settling(database, job_id, token, Verb.RETRY, error=ERROR, jitter=1.1)
        [settled] = changes.answers
        row = await row_of(database, job_id)
        assert row["attempt"] == attempt
        if attempt == 6:
            break
        assert (settled.state, changes.work, changes.delayed) == ("queued", set(), True)
        rung = DEFAULT_BACKOFF_SECONDS[min(attempt, 5) - 1]
        assert (row["run_at"] - row["updated_at"]).total_seconds() == pytest.approx(rung * 1.1)
        assert (row["reason"], row["error"], row["ready_at"]) == ("retry", ERROR, None)
        await write(database, "UPDATE jobs SET ready_at = now(), run_at = now() WHERE id = $1", job_id)
    assert (row["state"], row["reason"], row["error"]) == ("failed", "attempts_exhausted", ERROR)
    assert (await log_of(database, job_id))[-1][1:] == ("failed", "fail")
    assert (await last_event(database, job_id))["reason"] == "attempts_exhausted"
    await invariants.check_all(database)


@pytest.mark.parametrize(
    ("ladder", "attempts", "delay", "seconds"),
    [
        ([1.5, 2.5], 1, None, 1.5),
        ([1.5, 2.5], 2, None, 2.5),
        ([1.5, 2.5], 3, None, 2.5),
        ([7], 4, None, 7),
        (None, 1, None, 5),
        (None, 2, None, 30),
        (None, 3, None, 120),
        (None, 4, None, 600),
        (None, 5, None, 1800),
        (None, 9, None, 1800),  # the last rung repeats
        (None, 0, None, 5),  # never below the first
        ([0], 1, None, 0),
        ([7], 1, 0.25, 0.25),  # what the worker asks for goes first
        (None, 1, 0.0, 0.0),
    ],
)
async def test_a_jobs_own_ladder_decides(
    database: Database, ladder: list[float] | None, attempts: int, delay: float | None, seconds: float
) -> None:
    job_id, token = await running(database, backoff_seconds=ladder, max_attempts=10)
    await database.execute("UPDATE jobs SET attempt = $2 WHERE id = $1", job_id, attempts)
    changes = await settling(database, job_id, token, Verb.RETRY, error=ERROR, delay_seconds=delay)
    row = await row_of(database, job_id)
    assert (row["run_at"] - row["updated_at"]).total_seconds() == pytest.approx(seconds)
    assert changes.work == ({("default", "noop")} if seconds == 0 else set())
    assert changes.delayed is (seconds != 0)


async def test_defer_gives_the_attempt_back_and_counts_as_a_deferral(database: Database) -> None:
    job_id, token = await running(database, max_attempts=1)
    changes = await settling(database, job_id, token, Verb.DEFER, delay_seconds=60, reason="target_asleep")
    [settled] = changes.answers
    row = await row_of(database, job_id)
    assert (settled.state, changes.work, changes.delayed) == ("queued", set(), True)
    assert (row["attempt"], row["deferrals"], row["reason"]) == (0, 1, "target_asleep")
    assert row["run_at"] - row["updated_at"] == timedelta(seconds=60)
    assert row["started_at"] is not None
    assert (await log_of(database, job_id))[-1][1:] == ("queued", "defer")
    await invariants.check_all(database)


async def test_release_gives_the_attempt_back_and_is_claimable_at_once(database: Database) -> None:
    job_id, token = await running(database, max_attempts=1)
    changes = await settling(database, job_id, token, Verb.RELEASE, reason="worker_shutdown")
    [settled] = changes.answers
    row = await row_of(database, job_id)
    assert (settled.state, changes.work) == ("queued", {("default", "noop")})
    assert (row["attempt"], row["deferrals"], row["reason"]) == (0, 0, "worker_shutdown")
    assert await claim_one(database, job_id) != token
    await invariants.check_all(database)


async def test_a_worker_confirms_a_cancel(database: Database) -> None:
    job_id, token = await running(database)
    await cancel(database, [job_id], TENANT, "changed my mind")
    settled = await settle_one(database, job_id, token, Verb.CANCEL, reason="cancelled")
    assert settled.state == "cancelled"
    assert (await row_of(database, job_id))["reason"] == "changed my mind"
    assert [each[1:] for each in await log_of(database, job_id)][-2:] == [
        ("cancel_requested", "cancel"),
        ("cancelled", "cancel"),
    ]


@pytest.mark.parametrize("verb", [Verb.FAIL, Verb.RETRY, Verb.DEFER, Verb.RELEASE])
async def test_giving_up_on_a_job_that_was_asked_to_stop_confirms_the_cancel(
    database: Database, verb: Verb
) -> None:
    job_id, token = await running(database)
    await cancel(database, [job_id], TENANT, None)
    settled = await settle_one(
        database, job_id, token, verb, error=ERROR if verb in {Verb.FAIL, Verb.RETRY} else None
    )
    assert settled.state == "cancelled"
    assert (await row_of(database, job_id))["attempt"] == 1
    await invariants.check_all(database)


async def test_completing_a_job_that_was_asked_to_stop_is_still_done(database: Database) -> None:
    job_id, token = await running(database)
    await cancel(database, [job_id], TENANT, None)
    assert (await settle_one(database, job_id, token, Verb.COMPLETE, result="1")).state == "done"


async def test_a_success_after_failures_clears_the_error(database: Database) -> None:
    job_id, token = await running(database)
    await settle_one(database, job_id, token, Verb.RETRY, error=ERROR, delay_seconds=0)
    token = await claim_one(database, job_id)
    await settle_one(database, job_id, token, Verb.COMPLETE, result="1")
    assert (await row_of(database, job_id))["error"] is None


# -- what comes late -------------------------------------------------------------------------------------

SETTLING = [Verb.START, Verb.COMPLETE, Verb.FAIL, Verb.RETRY, Verb.DEFER, Verb.RELEASE, Verb.CANCEL]
BOOKKEEPING = {"seq", "updated_at"}


@pytest.mark.parametrize("verb", SETTLING)
async def test_a_late_settlement_changes_nothing_and_leaves_an_event(database: Database, verb: Verb) -> None:
    job_id, old = await running(database)
    await backdate(database, job_id, "lease_expires_at")
    await settle_one(database, job_id, old, Verb.RELEASE)
    await claim_one(database, job_id)  # somebody else holds it now
    before = await row_of(database, job_id)
    settled = await settle_one(database, job_id, old, verb, result='"stolen"', error=ERROR, delay_seconds=99)
    assert (settled.ok, settled.state) == (False, "loading")
    after = await row_of(database, job_id)
    changed = {name for name in dict(before) if before[name] != after[name]}
    assert changed == BOOKKEEPING
    assert after["seq"] == before["seq"] + 1
    assert (await log_of(database, job_id))[-1] == (after["seq"], "late_settlement", "late_settlement")
    assert await last_event(database, job_id) == {"verb": str(verb)}
    await invariants.check_all(database)


@pytest.mark.parametrize("verb", SETTLING)
async def test_a_settlement_of_an_ended_job_is_late(database: Database, verb: Verb) -> None:
    job_id, token = await running(database)
    await settle_one(database, job_id, token, Verb.COMPLETE, result="1")
    settled = await settle_one(database, job_id, token, verb, result="2", error=ERROR)
    assert (settled.ok, settled.state) == (False, "done")
    row = await row_of(database, job_id)
    assert (row["state"], row["result"], row["error"]) == ("done", "1", None)
    await invariants.check_all(database)


async def test_a_settlement_of_no_job_at_all_says_so(database: Database) -> None:
    assert await settle_one(database, "0" * 26, "t", Verb.COMPLETE, result="1") == Settled(
        "0" * 26, False, None
    )
    assert await database.fetchval("SELECT count(*) FROM events") == 0


async def test_a_batch_of_mixed_verbs_is_one_commit_and_each_is_answered_on_its_own(
    database: Database,
) -> None:
    ids = await put(database, *(job(max_attempts=2) for _ in range(9)))
    rows = await claim(database)
    tokens = {row.id: row.lease_token for row in rows}
    await cancel(database, [ids[6]], TENANT, None)
    batch = [
        Settlement(ids[8], "never-was", Verb.COMPLETE, result="1"),
        Settlement(ids[3], tokens[ids[3]], Verb.RETRY, error=ERROR),
        Settlement(ids[0], tokens[ids[0]], Verb.START),
        Settlement("0" * 26, "x", Verb.FAIL, error=ERROR),
        Settlement(ids[1], tokens[ids[1]], Verb.COMPLETE, result='{"a":1}'),
        Settlement(ids[2], tokens[ids[2]], Verb.FAIL, error=ERROR),
        Settlement(ids[4], tokens[ids[4]], Verb.DEFER, delay_seconds=5),
        Settlement(ids[5], tokens[ids[5]], Verb.RELEASE),
        Settlement(ids[6], tokens[ids[6]], Verb.RELEASE),
        Settlement(ids[7], tokens[ids[7]], Verb.CANCEL),
    ]
    answers = (await settle(database, batch)).answers
    assert [each.job_id for each in answers] == [each.job_id for each in batch]
    assert [(each.ok, each.state) for each in answers] == [
        (False, "loading"),
        (True, "queued"),
        (True, "working"),
        (False, None),
        (True, "done"),
        (True, "failed"),
        (True, "queued"),
        (True, "queued"),
        (True, "cancelled"),
        (True, "cancelled"),
    ]
    moved = [job_id for job_id in ids if job_id != ids[8]]
    assert (
        await database.fetchval(
            "SELECT count(DISTINCT xmin::text) FROM jobs WHERE id = ANY ($1::text[])", moved
        )
        == 1
    )
    await invariants.check_all(database)


async def test_outbox_rows_come_with_the_events_of_a_settlement(database: Database) -> None:
    job_id, token = await running(database, webhook_url="https://example.org/")
    await settle_one(database, job_id, token, Verb.COMPLETE, result="1")
    rows = await database.fetch("SELECT seq, type FROM outbox WHERE job_id = $1 ORDER BY seq", job_id)
    assert [tuple(row) for row in rows] == [(1, "queued"), (2, "loading"), (3, "working"), (4, "done")]


async def test_times_add_up_over_several_attempts(database: Database) -> None:
    job_id, token = await running(database)
    await backdate(database, job_id, "entered_at", timedelta(seconds=10))
    await settle_one(database, job_id, token, Verb.START)
    await backdate(database, job_id, "entered_at", timedelta(seconds=20))
    await settle_one(database, job_id, token, Verb.RETRY, error=ERROR, delay_seconds=0)
    await backdate(database, job_id, "entered_at", timedelta(seconds=40))
    token = await claim_one(database, job_id)
    await backdate(database, job_id, "entered_at", timedelta(seconds=5))
    await settle_one(database, job_id, token, Verb.COMPLETE, result="1")
    row = await row_of(database, job_id)
    assert row["loading_seconds"] == pytest.approx(15, abs=2)
    assert row["working_seconds"] == pytest.approx(20, abs=2)
    assert row["queued_seconds"] == pytest.approx(40, abs=2)


# -- heartbeats ------------------------------------------------------------------------------------------


async def test_a_heartbeat_renews_for_the_claims_own_time_or_the_one_it_asks_for(database: Database) -> None:
    job_id = await put_one(database)
    token = await claim_one(database, job_id, lease_seconds=45)
    for seconds, expected in (([None], 45), (None, 45), ([7.5], 7.5)):
        now = await database.fetchval("SELECT now()")
        leases = await heartbeat(database, [(job_id, token)], seconds)
        assert (leases[job_id].expires_at - now).total_seconds() == pytest.approx(expected, abs=3)
        assert leases[job_id].cancel_requested is False


async def test_a_heartbeat_that_names_no_time_does_not_shorten_what_was_promised(database: Database) -> None:
    job_id, token = await running(database)
    promised = (await heartbeat(database, [(job_id, token)], [600]))[job_id].expires_at
    # Sent before the other, and slower.
    assert (await heartbeat(database, [(job_id, token)]))[job_id].expires_at == promised
    # To ask for less is the worker's right.
    assert (await heartbeat(database, [(job_id, token)], [5]))[job_id].expires_at < promised


async def test_a_heartbeat_is_no_event_and_tells_of_cancel_and_deadline(database: Database) -> None:
    job_id, token = await running(database, deadline_seconds=100)
    row = await row_of(database, job_id)
    await cancel(database, [job_id], TENANT, None)
    lease = (await heartbeat(database, [(job_id, token)]))[job_id]
    assert (lease.cancel_requested, lease.deadline, lease.token) == (True, row["deadline"], token)
    assert [each[1] for each in await log_of(database, job_id)] == ["queued", "loading", "cancel_requested"]


async def test_heartbeats_without_the_lease_renew_nothing(database: Database) -> None:
    held, token = await running(database)
    queued = await put_one(database)
    ended, old = await running(database, lane="other")
    await settle_one(database, ended, old, Verb.COMPLETE, result="1")
    before = await row_of(database, held)
    leases = await heartbeat(
        database, [(held, "never-was"), (queued, "x"), (ended, old), ("0" * 26, "x")], [900] * 4
    )
    assert leases == {}
    assert (await row_of(database, held))["lease_expires_at"] == before["lease_expires_at"]
    assert list(await heartbeat(database, [(held, token)])) == [held]
    assert await states_of(database, held, queued, ended) == ["loading", "queued", "done"]
