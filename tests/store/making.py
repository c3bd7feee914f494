"""Jobs for tests, made short: what a test does not say is the default."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg

from app.jobs.ids import new_id
from app.jobs.submission import NewJob
from app.store.claims import Claimant, Claims
from app.store.database import Database
from app.store.enqueue import enqueue
from app.store.history import ALL_EVENTS
from app.store.idempotency import Receipt, Submission
from app.store.job import ClaimedJob
from app.store.queues import QueueBook
from tests.live_tables import write

TENANT = "default"


def job(**fields: Any) -> NewJob:
    """A job of kind `noop` in queue `default`, unless told otherwise."""
    kind = fields.get("kind", "noop")
    given = {
        "id": new_id(),
        "tenant": TENANT,
        "queue": "default",
        "lane": fields.get("lane", kind),
        "kind": kind,
        "payload": "{}",
    }
    return NewJob(**{**given, **fields})


async def put(database: Database, *jobs: NewJob) -> list[str]:
    """Enqueue each of them on its own; returns their ids."""
    receipts = (await enqueue(database, [Submission([each]) for each in jobs])).answers
    for receipt in receipts:
        assert isinstance(receipt, Receipt), receipt
    return [each.id for each in jobs]


async def put_one(database: Database, **fields: Any) -> str:
    return (await put(database, job(**fields)))[0]


async def claim(
    database: Database,
    lanes: Sequence[str] = ("noop",),
    limit: int = 10,
    *,
    queue: str = "default",
    worker: str = "tester",
    lease_seconds: float = 30,
    claims: Claims | None = None,
) -> list[ClaimedJob]:
    """Claim as a worker does; with marks of its own, unless it is given those of another claim."""
    claimants = [Claimant(worker, limit, lease_seconds)]
    return (await (claims or Claims(database, QueueBook(database))).claim(queue, lanes, claimants)).answers


async def running(database: Database, **fields: Any) -> tuple[str, str]:
    """One job that is claimed; its id and lease token."""
    job_id = await put_one(database, **fields)
    return job_id, await claim_one(database, job_id)


async def claim_one(database: Database, job_id: str, **how: Any) -> str:
    """Claim until this very job is claimed; its lease token."""
    row = await row_of(database, job_id)
    for record in await claim(database, queue=row["queue"], lanes=[row["lane"]], limit=1000, **how):
        if record.id == job_id:
            return record.lease_token
    raise AssertionError(f"{job_id} could not be claimed: {dict(row)}")


async def row_of(database: Database, job_id: str) -> asyncpg.Record:
    row = await database.fetchrow("SELECT * FROM jobs WHERE id = $1", job_id)
    assert row is not None, f"{job_id} is not there"
    return row


async def states_of(database: Database, *job_ids: str) -> list[str]:
    rows = await database.fetch("SELECT id, state FROM jobs WHERE id = ANY ($1::text[])", list(job_ids))
    by_id = {row["id"]: row["state"] for row in rows}
    return [by_id.get(job_id, "gone") for job_id in job_ids]


async def log_of(database: Database, job_id: str) -> list[tuple[int, str, str]]:
    """(seq, type, reason) of each event."""
    rows = await database.fetch(
        f"SELECT seq, type, reason FROM {ALL_EVENTS} AS events WHERE job_id = $1 ORDER BY seq", job_id
    )
    return [(row["seq"], row["type"], row["reason"]) for row in rows]


async def backdate(database: Database, job_id: str, column: str, by: timedelta = timedelta(hours=1)) -> None:
    """Let time have passed, for one of the moments of one job."""
    await write(database, f"UPDATE jobs SET {column} = now() - $2::interval WHERE id = $1", job_id, by)
