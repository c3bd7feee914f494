"""max_depth is exact over any number of processes, and a queue far from it is not counted for each submission."""

import pytest

from app.errors import QueueFull
from app.store import queues
from app.store.database import Database
from app.store.depth import RESERVED_SHARE
from app.store.idempotency import Receipt, Submission
from app.store.managed import ManagedEnqueue
from app.store.queues import QueueBook
from tests.live_tables import write
from tests.store.making import job

LIMIT = 4000
FILL = """
INSERT INTO jobs (id, tenant, queue, lane, kind, state, payload, run_at, ready_at, seq, history)
SELECT lpad(n::text, 26, '0'), 'default', 'deep', 'noop', 'noop', 'queued', '{}', now(), now(), 1, ''
FROM generate_series(1, $1::int) AS n
"""


@pytest.fixture
async def processes(database: Database) -> list[ManagedEnqueue]:
    """Three that admit to one queue, each on its own."""
    await queues.configure(database, "deep", {"max_depth": LIMIT})
    book = QueueBook(database)
    await book.refresh()
    return [ManagedEnqueue(database, book) for _ in range(3)]


async def admitted(process: ManagedEnqueue, number: int) -> int:
    """How many of so many are let in; the others are told that the queue is full."""
    found = await process.enqueue([Submission([job(queue="deep")]) for _ in range(number)])
    assert all(isinstance(each, Receipt | QueueFull) for each in found.answers), found.answers
    return sum(isinstance(each, Receipt) for each in found.answers)


async def waiting(database: Database) -> int:
    return int(await database.fetchval("SELECT count(*) FROM jobs WHERE queue = 'deep'"))


async def reserved(database: Database) -> int:
    return int(await database.fetchval("SELECT coalesce(sum(jobs), 0) FROM depth_reservations"))


async def test_a_queue_that_fills_up_takes_back_what_others_have_reserved(
    database: Database, processes: list[ManagedEnqueue]
) -> None:
    one, two, three = processes
    assert await admitted(one, 1) == await admitted(two, 1) == 1
    assert await reserved(database) > 2 * 200
    # Filled by a fourth process; none of the three has counted since.
    await write(database, FILL, LIMIT - 12)
    assert await admitted(three, 5) == 5
    assert await reserved(database) == 0
    assert await admitted(one, 3) == 3
    assert await admitted(two, 5) == 2
    assert await admitted(one, 5) == await admitted(three, 5) == 0
    assert await waiting(database) == LIMIT


async def test_within_its_reservation_a_process_does_not_count(
    database: Database, processes: list[ManagedEnqueue]
) -> None:
    one, two, _ = processes
    await admitted(one, 1)
    share = (LIMIT - 1) // RESERVED_SHARE
    assert await reserved(database) == share
    await admitted(two, 1)
    before = await reserved(database)
    assert await admitted(one, share) == share
    # Used up, and as it was; only the next submission counts, and reserves anew.
    assert await reserved(database) == before
    assert await admitted(one, 1) == 1
    assert await reserved(database) < before


async def test_what_a_dead_process_had_reserved_is_free_again_after_a_minute(
    database: Database, processes: list[ManagedEnqueue]
) -> None:
    one, two, _ = processes
    await admitted(one, 1)
    await database.execute("UPDATE depth_reservations SET reserved_at = now() - interval '2 minutes'")
    await admitted(two, 1)
    assert await reserved(database) == (LIMIT - 2) // RESERVED_SHARE
