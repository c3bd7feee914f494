"""claim with start: queued → loading → working in one commit, each edge with its event."""

from typing import Any

import pytest

from app.jobs.states import Verb
from app.store.claims import Claimant, Claims
from app.store.database import Database
from app.store.events import Want, read_pages
from app.store.job import ClaimedJob
from app.store.queues import QueueBook
from app.store.settle import Settlement, settle
from app.telemetry import SETTLEMENTS
from tests.store.making import put_one, row_of

HOOK = "https://example.org/hook"


async def started(database: Database, *, limit: int = 10) -> list[ClaimedJob]:
    claims = Claims(database, QueueBook(database))
    changes = await claims.claim("default", ["noop"], [Claimant("tester", limit, 30)], starts=True)
    return changes.answers


async def history(database: Database, job_id: str) -> list[tuple[int, str, str, str | None]]:
    [page] = await read_pages(database, [Want(job_id)])
    assert page is not None
    return [(event.seq, event.type, event.state, event.reason) for event in page.events]


async def test_both_edges_are_walked_and_told(database: Database) -> None:
    job_id = await put_one(database)
    [job] = await started(database)
    row = await row_of(database, job_id)
    assert (row["state"], row["attempt"], row["worker"], row["seq"]) == ("working", 1, "tester", 3)
    assert await history(database, job_id) == [
        (1, "queued", "queued", "enqueue"),
        (2, "loading", "loading", "claim"),
        (3, "working", "working", "start"),
    ]
    # A run is known by the seq of its claim, as ever.
    assert (job.started, job.seq, job.lease_token) == (True, 2, row["lease_token"])


async def test_what_follows_goes_on_from_there(database: Database) -> None:
    job_id = await put_one(database)
    [job] = await started(database)
    # Started once more it stays as it is, and a settlement goes on behind the second event.
    again = await settle(database, [Settlement(job_id, job.lease_token, Verb.START)])
    assert [answer.ok for answer in again.answers] == [True]
    await settle(database, [Settlement(job_id, job.lease_token, Verb.COMPLETE, result="1")])
    assert [entry[:2] for entry in await history(database, job_id)] == [
        (1, "queued"),
        (2, "loading"),
        (3, "working"),
        (4, "done"),
    ]


@pytest.mark.parametrize("events", [None, ["loading"], ["working"]])
async def test_each_event_has_its_webhook(database: Database, events: list[str] | None) -> None:
    fields: dict[str, Any] = {"webhook_url": HOOK, "webhook_events": events}
    job_id = await put_one(database, **fields)
    await started(database)
    rows = await database.fetch("SELECT seq, type FROM outbox WHERE job_id = $1 ORDER BY seq", job_id)
    wanted = [(2, "loading"), (3, "working")]
    if events is None:
        wanted = [(1, "queued"), *wanted]
    assert [tuple(row) for row in rows] == [each for each in wanted if events is None or each[1] in events]


async def test_the_feed_over_all_jobs_tells_of_both(database: Database) -> None:
    job_id = await put_one(database)
    await started(database)
    rows = await database.fetch("SELECT job_ids, seqs, events FROM announcements ORDER BY xid, id")
    assert [tuple(row) for row in rows] == [([job_id], [1], 1), ([job_id], [3], 2)]


async def test_starts_are_counted_as_if_they_had_come_alone(database: Database) -> None:
    await put_one(database)
    await put_one(database)
    claims = Claims(database, QueueBook(database))
    changes = await claims.claim("default", ["noop"], [Claimant("tester", 10, 30)], starts=True)
    assert changes.counts[SETTLEMENTS, ("start", "true")] == 2
