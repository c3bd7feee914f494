"""How long jobs waited and ran, as the verbs tell it: by the database's clock, from their claim on."""

from collections.abc import Sequence
from typing import Any

import pytest

from app.jobs.states import Verb
from app.store.changes import Changes
from app.store.claims import Claimant, Claims
from app.store.database import Database
from app.store.settle import Settlement, settle
from app.store.sweep import sweep
from app.telemetry import CLAIM_SECONDS, JOB_RUN, JOB_WAIT
from tests.store.making import backdate, put_one, running

HOUR = 3600
# What a machine that stalls in the middle of a test may add.
STALL = 600


async def an_hour_passes(database: Database, job_id: str) -> None:
    """For a job that runs or waits: all its moments lie an hour further back."""
    for table, columns in (
        ("jobs", ("entered_at", "started_at", "ready_at")),
        ("queued", ("ready_at",)),
        ("running", ("claimed_at",)),
    ):
        moved = ", ".join(f"{each} = {each} - interval '1 hour'" for each in columns)
        await database.execute(f"UPDATE {table} SET {moved} WHERE id = $1", job_id)


def seconds(changes: Changes[Any], verb: str) -> float:
    [ran] = changes.durations[JOB_RUN, ("default", "noop", verb)]
    return ran


async def settled(database: Database, job_id: str, token: str, verb: Verb, **more: Any) -> Changes[Any]:
    return await settle(database, [Settlement(job_id, token, verb, **more)])


async def claim(database: Database, **how: Any) -> Changes[Any]:
    return await Claims(database).claim("default", ["noop"], [Claimant("w", 10, HOUR * 9)], **how)


@pytest.mark.parametrize("way", ["claim", "claim_whole", "claim_brief"])
async def test_the_wait_is_from_when_it_could_be_claimed(database: Database, way: str) -> None:
    waited, fresh = await put_one(database), await put_one(database)
    await an_hour_passes(database, waited)
    claims = Claims(database)
    changes = await getattr(claims, way)("default", ["noop"], [Claimant("w", 10, 30)])
    told: Sequence[float] = changes.durations[JOB_WAIT, ("default", "noop")]
    by_job = dict(zip([job.id for job in changes.answers], told, strict=True))
    assert HOUR <= by_job[waited] < HOUR + STALL
    assert 0 <= by_job[fresh] < STALL
    [took] = changes.durations[CLAIM_SECONDS, ("default",)]
    assert took > 0


async def test_a_claim_that_finds_nothing_is_timed_too(database: Database) -> None:
    assert list((await claim(database)).durations) == [(CLAIM_SECONDS, ("default",))]


async def test_of_a_run_that_is_loading_all_of_it_counts(database: Database) -> None:
    job_id, token = await running(database)
    await an_hour_passes(database, job_id)
    assert HOUR <= seconds(await settled(database, job_id, token, Verb.COMPLETE), "complete") < HOUR + STALL


async def test_of_a_run_that_started_at_once_all_of_it_counts(database: Database) -> None:
    job_id = await put_one(database)
    [job] = (await claim(database, starts=True)).answers
    await an_hour_passes(database, job_id)
    changes = await settled(database, job_id, job.lease_token, Verb.FAIL)
    assert HOUR <= seconds(changes, "fail") < HOUR + STALL


async def test_of_a_run_that_was_loading_first_both_count(database: Database) -> None:
    job_id, token = await running(database)
    await an_hour_passes(database, job_id)
    await settled(database, job_id, token, Verb.START)
    await an_hour_passes(database, job_id)
    changes = await settled(database, job_id, token, Verb.RELEASE)
    assert 2 * HOUR <= seconds(changes, "release") < 2 * HOUR + STALL


async def test_of_another_attempt_only_its_own_time_counts(database: Database) -> None:
    job_id, token = await running(database)
    await an_hour_passes(database, job_id)
    await settled(database, job_id, token, Verb.START)
    await settled(database, job_id, token, Verb.RETRY, delay_seconds=0)
    [job] = (await claim(database)).answers
    await settled(database, job_id, job.lease_token, Verb.START)
    assert 0 <= seconds(await settled(database, job_id, job.lease_token, Verb.COMPLETE), "complete") < STALL


async def test_of_a_run_that_lost_its_lease_all_of_it_counts(database: Database) -> None:
    job_id, token = await running(database)
    await settled(database, job_id, token, Verb.START)
    await backdate(database, job_id, "lease_expires_at")
    await an_hour_passes(database, job_id)
    swept = await sweep(database, cancel_grace_seconds=10)
    assert swept is not None
    assert HOUR <= seconds(swept.changes, "rescue") < HOUR + STALL


async def test_a_clock_that_was_set_back_makes_no_time_negative(database: Database) -> None:
    job_id = await put_one(database)
    ahead = "now() + interval '1 hour'"
    await database.execute(f"UPDATE jobs SET ready_at = {ahead}, entered_at = {ahead}")
    await database.execute("UPDATE queued SET ready_at = (SELECT ready_at FROM jobs)")
    changes = await claim(database)
    assert changes.durations[JOB_WAIT, ("default", "noop")] == [0]
    await database.execute(f"UPDATE jobs SET entered_at = {ahead}")
    [job] = changes.answers
    assert seconds(await settled(database, job_id, job.lease_token, Verb.COMPLETE), "complete") == 0
