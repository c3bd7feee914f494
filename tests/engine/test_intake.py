"""The way in: what is gathered into one commit is bounded by its bytes, too."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from app.config import Settings
from app.engine.intake import SubmissionChecks
from app.engine.queues import Queues
from app.errors import InvalidRequest
from app.events.hub import Hub
from app.jobs.ids import new_id
from app.jobs.queue_settings import parse_settings
from app.jobs.submission import NewJob
from app.loops.batcher import MAX_FLUSH_BYTES
from app.store import enqueue
from app.store.changes import Changes
from app.store.database import Database
from app.store.idempotency import Receipt, Submission
from app.store.queues import configure
from app.webhooks.outgoing import Outgoing


@pytest.fixture
async def queues(database: Database) -> AsyncIterator[Queues]:
    hub = Hub(database, None, 1.0)
    outgoing = Outgoing(Settings())
    client = outgoing.client()
    yield Queues(database, hub, Settings(), SubmissionChecks(outgoing.policy, client, outgoing.box))
    await client.aclose()
    await hub.stop()


def submission(size: int) -> Submission:
    payload = '{"x":"%s"}' % ("x" * size)
    return Submission([NewJob(new_id(), "default", "default", "own", "own", payload)])


async def test_large_submissions_are_not_all_flushed_together(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[list[int]] = []
    real = enqueue.enqueue

    async def watched(database: Database, items: Sequence[Submission]) -> Changes[Receipt | Exception]:
        flushed.append([len(each.jobs[0].payload) for each in items])
        return await real(database, items)

    monkeypatch.setattr(enqueue, "enqueue", watched)
    large = MAX_FLUSH_BYTES // 4
    receipts = await asyncio.gather(
        *(queues.intake.submit(submission(size)) for size in [large] * 6 + [10] * 20)
    )
    assert len({receipt.job_ids[0] for receipt in receipts}) == 26
    assert sum(map(len, flushed)) == 26
    assert max(map(sum, flushed)) <= MAX_FLUSH_BYTES
    # The small ones share a flush as before.
    assert max(map(len, flushed)) > 10


async def test_a_refusal_does_not_keep_what_was_refused(queues: Queues, database: Database) -> None:
    """An error that is its own cause holds on to all that its frames held, until the collector comes by."""
    changes = await configure(
        database, "strict", parse_settings(b'{"payload_schema":{"maxProperties":0}}', 64)
    )
    await queues.configured(changes)
    job = NewJob(new_id(), "default", "strict", "own", "own", '{"x":1}')
    with pytest.raises(InvalidRequest) as caught:
        await queues.intake.submit(Submission([job]))
    assert caught.value.__cause__ is not caught.value
    with pytest.raises(InvalidRequest) as caught:
        await queues.intake.submit(Submission([job], batch=True))
    assert caught.value.extra["index"] == 0
