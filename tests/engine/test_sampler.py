"""What a process counts gets into the database once, whatever becomes of the process or the database meanwhile."""

import asyncio
from types import SimpleNamespace

import asyncpg
import httpx
import pytest

from app.engine.sampler import Sampler
from app.store import samples
from app.store.census import Census
from app.store.daily_counts import DailyTally, of_today
from app.store.database import Database
from app.telemetry import ENDED, ENQUEUED, JOB_RUN, JOB_WAIT, SWAPS, SWAPS_AVOIDED, TOKENS
from tests.conftest import MakeServer
from tests.patience import until
from tests.store.making import job, put

SUMS = """
SELECT sum(enqueued)::int AS enqueued, sum(done)::int AS done, sum(failed)::int AS failed, sum(ended)::int AS ended,
    sum(prompt_tokens)::int AS prompt, sum(completion_tokens)::int AS completion,
    sum((SELECT sum(n) FROM unnest(wait) AS n))::int AS waits, sum((SELECT sum(n) FROM unnest(run) AS n))::int AS runs
FROM samples WHERE step = $1
"""


def sampler(database: Database, tally: DailyTally | None = None) -> Sampler:
    return Sampler(database, Census(database), tally or DailyTally())


async def sums(database: Database, step: int = 10) -> dict[str, int]:
    return dict((await database.fetch(SUMS, step))[0])


async def test_what_was_counted_is_written_once_in_every_step(database: Database) -> None:
    ENQUEUED.inc(100)
    part = sampler(database)
    await part.start()
    ENQUEUED.inc(3)
    for queue in ("a", "b"):
        for state, number in (("done", 5), ("failed", 2), ("cancelled", 1), ("expired", 1), ("dismissed", 9)):
            ENDED.labels(queue, "k", state).inc(number)
        JOB_WAIT.labels(queue, "k").observe(0.2)
        for verb in ("complete", "fail", "retry", "defer", "release"):
            JOB_RUN.labels(queue, "k", verb).observe(3)
    TOKENS.labels("m", "prompt").inc(70)
    TOKENS.labels("m", "completion").inc(30)
    await part.stop()
    told = {
        "enqueued": 3,
        "done": 10,
        "failed": 4,
        "ended": 4,
        "prompt": 70,
        "completion": 30,
        "waits": 2,
        "runs": 6,
    }
    for step in samples.KEPT:
        assert await sums(database, step) == told
    again = sampler(database)
    await again.start()
    ENQUEUED.inc(1)
    await again.stop()
    assert await sums(database) == told | {"enqueued": 4}, "a restart counts nothing twice"


async def test_nothing_is_written_when_nothing_happened(database: Database) -> None:
    part = sampler(database)
    await part.start()
    await until(lambda: database.fetchval("SELECT count(*) FROM queue_samples"))
    await part.stop()
    assert await database.fetchval("SELECT count(*) FROM samples") == 0


async def test_what_happens_while_the_database_is_away_is_written_when_it_is_back(database: Database) -> None:
    part = sampler(database)
    await part.start()
    await until(lambda: database.fetchval("SELECT count(*) FROM queue_samples"))
    ENQUEUED.inc(5)
    await database.close()
    part.wake()
    await until(lambda: part._unwritten.enqueued == 5)
    ENQUEUED.inc(2)
    await database.open()
    await until(lambda: database.fetchval("SELECT sum(enqueued)::int FROM samples WHERE step = 10"))
    ENQUEUED.inc(1)
    await part.stop()
    assert (await sums(database))["enqueued"] == 8


async def test_a_database_that_is_away_does_not_keep_it_from_stopping(database: Database) -> None:
    part = sampler(database)
    await part.start()
    ENQUEUED.inc()
    await database.close()
    await asyncio.wait_for(part.stop(), 60)


async def test_queues_are_written_down_by_one_of_a_fleet(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(database, *(job(queue="deep") for _ in range(4)), job(queue="flat"))
    looks: list[int] = []
    written = samples.add_queues

    async def note(to: Database, depths: dict[str, samples.Depth]) -> None:
        looks.append(len(depths))
        await written(to, depths)

    monkeypatch.setattr(samples, "add_queues", note)
    # However often they come to it, and however long that takes: all of it is one moment.
    moment = samples.LastLook(0.0, 0.0)

    async def last_look(_: Database) -> samples.LastLook:
        return moment if looks else samples.LastLook(0.0, float("inf"))

    monkeypatch.setattr(samples, "last_look", last_look)
    fleet = [sampler(database) for _ in range(3)]
    for part in fleet:
        await part._run_once()
    assert looks == [2]
    rows = await database.fetch("SELECT queue, waiting FROM queue_samples WHERE step = 10")
    assert {row["queue"]: row["waiting"] for row in rows} == {"deep": 4, "flat": 1, "": 0}


async def test_it_comes_back_in_the_middle_of_the_next_bucket(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A stall would be waited for less.
    monkeypatch.setattr("app.engine.sampler.time", SimpleNamespace(monotonic=lambda: 0.0))
    part = sampler(database)
    assert 2 <= part._phase <= 8
    for now in (0.0, 3.3, 9.99, 1_767_225_600.0, 1_767_225_604.5, -7.0):

        async def last_look(_: Database, at: float = now) -> samples.LastLook:
            return samples.LastLook(at, 0.0)

        monkeypatch.setattr(samples, "last_look", last_look)
        rest = await part._run_once()
        assert rest is not None
        assert 0 < rest <= 10
        assert (now + rest) % 10 == pytest.approx(part._phase, abs=1e-3)


async def test_models_swapped_and_deliveries_go_to_their_day(database: Database) -> None:
    SWAPS.labels("studio").inc(7)
    tally = DailyTally()
    part = sampler(database, tally)
    await part.start()
    SWAPS.labels("studio").inc(2)
    SWAPS_AVOIDED.labels("studio").inc(9)
    SWAPS_AVOIDED.labels("laptop").inc(1)
    tally.count("receiver", "hooks.example", "retried")
    await part.stop()
    assert await of_today(database, "target") == {
        "studio": {"swapped": 2, "swap_avoided": 9},
        "laptop": {"swap_avoided": 1},
    }
    assert await of_today(database, "receiver") == {"hooks.example": {"retried": 1}}


def test_a_server_that_stops_leaves_nothing_untold(make_server: MakeServer) -> None:
    async def enqueued(url: str) -> int:
        connection = await asyncpg.connect(url)
        try:
            return int(await connection.fetchval("SELECT sum(enqueued) FROM samples WHERE step = 7200"))
        finally:
            await connection.close()

    one = make_server()
    for _ in range(3):
        assert httpx.post(f"{one.url}/jobs", json={"kind": "own"}).status_code == 202
    assert one.stop() == 0
    assert asyncio.run(enqueued(one.database_url)) == 3
