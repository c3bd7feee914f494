"""What the charts are made of: processes add up, buckets are whole, what is old goes, and percentiles are right."""

import random
from bisect import bisect_left
from datetime import UTC, datetime, timedelta

import pytest

from app.store import samples
from app.store.database import Database
from app.store.samples import (
    BUSIEST,
    FINEST,
    KEPT,
    MOST_QUEUES,
    REST,
    SHOWN_QUEUES,
    WINDOWS,
    Depth,
    Figures,
    Window,
    add_queues,
    add_sample,
    busiest,
    history,
    last_look,
    quantile,
    queue_history,
)
from app.telemetry import DURATIONS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def histogram(*seconds: float) -> list[int]:
    """The counts of the buckets that these fall into."""
    counts = [0] * (len(DURATIONS) + 1)
    for each in seconds:
        counts[bisect_left(DURATIONS, each)] += 1
    return counts


async def step_back(database: Database, table: str, buckets: int = 1) -> None:
    """As if it had been written so many buckets earlier."""
    # By way of where nothing is: an update checks the key row by row.
    for sign, number in (("-", 1_000_000 + buckets), ("+", 1_000_000)):
        await database.execute(
            f"UPDATE {table} SET at = at {sign} make_interval(secs => $1::float8 * step)", float(number)
        )


async def one_bucket(database: Database, *told: tuple[str, Figures]) -> None:
    """All of them in the same buckets: those of the moment at which the transaction began."""
    async with database.transaction() as connection:
        for process, figures in told:
            await add_sample(connection, process, figures)


def happened(window_points: list[samples.Point]) -> list[samples.Point]:
    return [point for point in window_points if any((point.enqueued, point.done, point.failed, point.ended))]


# -- adding up -------------------------------------------------------------------------------------------------


async def test_two_processes_and_one_that_was_restarted_add_up(database: Database) -> None:
    seen = Figures(60, 30, 10, 5, 400, 200, histogram(0.2, 0.2), histogram(2.0))
    await one_bucket(database, ("a", seen), ("b", seen), ("a", seen), ("b, started anew", seen))
    assert await database.fetchval("SELECT count(*) FROM samples") == 3 * len(KEPT)
    await step_back(database, "samples")
    [point] = happened((await history(database, "15m")).points)
    assert (point.enqueued, point.done, point.failed, point.ended) == (24, 12, 4, 2)
    assert (point.prompt_tokens, point.completion_tokens) == (160, 80)
    assert await database.fetchval("SELECT wait FROM samples WHERE process = 'a' LIMIT 1") == histogram(
        *[0.2] * 4
    )


async def test_every_window_shows_it(database: Database) -> None:
    await one_bucket(database, ("a", Figures(enqueued=7200)))
    await step_back(database, "samples")
    window: Window
    for window, (step, number) in WINDOWS.items():
        shown = await history(database, window)
        assert (shown.window, shown.step, len(shown.points)) == (window, step, number)
        [point] = happened(shown.points)
        assert point.enqueued == 7200 / step
        moments = [each.at for each in shown.points]
        assert moments == [moments[0] + n * timedelta(seconds=step) for n in range(number)]


async def test_buckets_begin_at_whole_steps_by_the_databases_clock(database: Database) -> None:
    await add_sample(database, "a", Figures(done=1))
    rows = await database.fetch("SELECT step, at, now() AS now FROM samples")
    assert {row["step"] for row in rows} == set(KEPT)
    for row in rows:
        assert (row["at"] - EPOCH).total_seconds() % row["step"] == 0
        # A bucket may have ended since.
        assert timedelta(0) <= row["now"] - row["at"] < timedelta(seconds=row["step"] + 600)


async def test_the_bucket_of_this_moment_is_measured_by_what_is_over_of_it(database: Database) -> None:
    await one_bucket(database, ("a", Figures(enqueued=7200)))
    last = (await history(database, "7d")).points[-1]
    assert 7200 / 7200 <= last.enqueued <= 7200 / samples.YOUNGEST_SECONDS
    assert not happened((await history(database, "15m")).points), "the finest one is not told yet"


async def test_nothing_is_zeros_and_no_percentiles(database: Database) -> None:
    for window in WINDOWS:
        shown = await history(database, window)
        assert not happened(shown.points)
        assert {(point.wait_p50, point.run_p95) for point in shown.points} == {(None, None)}
        assert shown.queues == []
        assert set(shown.other.waiting) == {0}
        assert len(shown.other.waiting) == len(shown.points)


async def test_a_histogram_that_has_grown_adds_up_with_a_shorter_one(database: Database) -> None:
    await one_bucket(
        database,
        ("a", Figures(wait=[1, 2], run=[])),
        ("a", Figures(wait=[1, 1, 5], run=[4])),
        ("b", Figures(wait=[7])),
    )
    assert await database.fetchval("SELECT wait FROM samples WHERE process = 'a' LIMIT 1") == [2, 3, 5]
    await step_back(database, "samples")
    shown = [point for point in (await history(database, "15m")).points if point.wait_p50 is not None]
    assert [point.wait_p50 for point in shown] == [quantile([9, 3, 5], 0.5)]
    assert Figures(wait=[1, 2]) - Figures(wait=[1]) == Figures(wait=[0, 2])
    assert Figures(1, wait=[1]) + Figures(2, run=[3]) == Figures(3, wait=[1], run=[3])
    assert not Figures(wait=[0, 0])
    assert Figures(run=[0, 1])


async def test_rows_of_a_clock_that_was_wrong_are_neither_shown_nor_kept(database: Database) -> None:
    await one_bucket(database, ("a", Figures(enqueued=5)))
    await add_queues(database, {"q": Depth(5, 0)})
    for moment in ("now() + interval '70 years'", "timestamptz '0001-01-01'"):
        for table in ("samples", "queue_samples"):
            await database.execute(f"UPDATE {table} SET at = {moment} + step * interval '1 second'")
        assert not happened((await history(database, "7d")).points)
        assert (await history(database, "7d")).queues == []
        # Somebody looks all the same.
        assert (await last_look(database)).seconds > FINEST
        await add_sample(database, "a", Figures(done=1))
        await add_queues(database, {"q": Depth(1, 0)})
        assert not await samples.prune(database)
        assert await database.fetchval("SELECT count(*) FROM samples") == len(KEPT)
        assert await database.fetchval("SELECT count(*) FROM queue_samples") == 2 * len(KEPT)


async def test_what_is_old_goes_in_batches_and_by_one_process_at_a_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "PRUNE_BATCH", 7)
    for step, seconds in KEPT.items():
        await database.execute(
            "INSERT INTO samples (step, at, process, wait, run) SELECT $1, now() - $2 * interval '1 second' + n * "
            "interval '1 minute', 'a', '{}', '{}' FROM generate_series(-20, 20) AS n WHERE n <> 0",
            step,
            float(seconds),
        )
    async with database.transaction() as other:
        await other.fetchval(samples.ONE_AT_A_TIME)
        assert not await samples.prune(database)
        assert await database.fetchval("SELECT count(*) FROM samples") == 40 * len(KEPT)
    assert await samples.prune(database)
    assert await database.fetchval("SELECT count(*) FROM samples") == 33 * len(KEPT)
    while await samples.prune(database):
        pass
    left = await database.fetch("SELECT step, count(*) AS rows FROM samples GROUP BY step")
    assert {row["step"]: row["rows"] for row in left} == dict.fromkeys(KEPT, 20)


# -- queues ----------------------------------------------------------------------------------------------------


def test_the_busiest_queues_are_told_apart_and_the_rest_is_one() -> None:
    depths = {f"q{n}": Depth(n, 1) for n in range(10_000)} | {"idle": Depth(0, 0)}
    seen = busiest(depths)
    assert len(seen) == BUSIEST + 1
    assert seen["q9999"] == Depth(9999, 1)
    rest = sum(range(10_000 - BUSIEST)), 10_000 - BUSIEST
    assert seen[REST] == Depth(*rest)
    assert busiest({"idle": Depth(0, 0)}) == busiest({}) == {REST: Depth(0, 0)}


async def test_of_several_looks_a_bucket_keeps_the_most(database: Database) -> None:
    for waiting, running in ((3, 9), (8, 2), (5, 5)):
        await add_queues(database, {"q": Depth(waiting, running)})
    rows = await database.fetch(
        "SELECT step, max(waiting) AS w, max(running) AS r FROM queue_samples GROUP BY step"
    )
    assert {(row["step"], row["w"], row["r"]) for row in rows} == {(step, 8, 9) for step in KEPT}


async def test_the_deepest_queues_of_a_window_are_shown_and_all_others_together(database: Database) -> None:
    await add_queues(database, {f"q{n}": Depth(n, 2) for n in range(1, 100)})
    await step_back(database, "queue_samples")
    shown = await history(database, "15m")
    assert [line.queue for line in shown.queues] == [f"q{n}" for n in range(99, 99 - SHOWN_QUEUES, -1)]
    assert [line.waiting[-1] for line in shown.queues] == list(range(99, 99 - SHOWN_QUEUES, -1))
    assert shown.other.waiting[-1] == sum(range(1, 100)) - sum(range(94, 100))
    assert shown.other.running[-1] == 2 * (99 - SHOWN_QUEUES)
    lines = await queue_history(database, ["q99", "q1", "unheard of"], "15m")
    assert (lines["q99"].waiting[-1], lines["q99"].running[-1]) == (99, 2)
    assert lines["q99"].waiting[0] == 0
    # Not among the busiest, and so with the rest.
    assert {name: set(lines[name].waiting) for name in ("q1", "unheard of")} == {"q1": {0}, "unheard of": {0}}
    assert {len(line.waiting) for line in lines.values()} == {WINDOWS["15m"][1]}


async def test_what_a_look_saw_holds_until_the_next_one_and_not_for_ever(database: Database) -> None:
    # Two looks, thirty seconds apart, in buckets of ten.
    await database.execute(
        "INSERT INTO queue_samples SELECT 10, date_bin('10 s', now(), 'epoch') - ago * interval '10 s', queue, waiting "
        "FROM (VALUES (43, '', 0), (43, 'gone', 4), (43, 'deep', 9), (40, '', 0), (40, 'deep', 7)) "
        "AS seen (ago, queue, waiting)"
    )
    lines = await queue_history(database, ["gone", "deep"], "15m")
    begun = lines["deep"].waiting.index(9)
    assert lines["deep"].waiting[begun : begun + 5] == [9, 9, 9, 7, 7]
    assert lines["gone"].waiting[begun : begun + 5] == [4, 4, 4, 0, 0]
    assert lines["deep"].waiting[-1] == 0, "nobody has looked for minutes"


async def test_a_crowded_bucket_takes_no_further_names(database: Database) -> None:
    for first in range(0, 10_000, 500):
        await add_queues(database, {f"q{n}": Depth(n + 1, 0) for n in range(first, first + 500)})
    rows = await database.fetch("SELECT step, at, count(*) AS queues FROM queue_samples GROUP BY step, at")
    assert max(row["queues"] for row in rows) <= MOST_QUEUES + BUSIEST + 1
    known = await database.fetchval("SELECT max(queue) FROM queue_samples WHERE step = 7200")
    await add_queues(database, {known: Depth(123_456, 0)})
    deepest = "SELECT max(waiting) FROM queue_samples WHERE step = 7200 AND queue <> ''"
    assert await database.fetchval(deepest) == 123_456


async def test_one_process_at_a_time_writes_down_how_the_queues_are(database: Database) -> None:
    assert (await last_look(database)).seconds == float("inf")
    async with database.transaction() as other:
        await other.fetchval(samples.ONE_AT_A_TIME)
        await add_queues(database, {"q": Depth(1, 1)})
    assert (await last_look(database)).seconds == float("inf")
    await add_queues(database, {})
    assert 0 <= (await last_look(database)).seconds < 600
    assert abs((await last_look(database)).now - datetime.now(UTC).timestamp()) < 600


# -- percentiles -----------------------------------------------------------------------------------------------


def test_a_percentile_lies_within_its_bucket_as_if_all_of_it_lay_evenly() -> None:
    # Ten between 1 and 2.5 seconds: the fifth is in the middle of them.
    assert quantile(histogram(*[2.0] * 10), 0.5) == 1.75
    assert quantile(histogram(*[2.0] * 10), 0.95) == pytest.approx(1 + 1.5 * 0.95)
    assert quantile(histogram(0.0005), 0.5) == 0.0005
    assert quantile(histogram(*[0.3] * 50, *[20.0] * 50), 0.5) == 0.5
    assert quantile(histogram(1e9), 0.95) == DURATIONS[-1]
    assert quantile(histogram(), 0.5) is None
    assert quantile([], 0.5) is None


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_percentile_is_in_the_same_bucket_as_the_exact_one(share: float) -> None:
    dice = random.Random(7)
    for size in (1, 2, 3, 19, 20, 21, 1000):
        seconds = sorted(dice.lognormvariate(0, 3) for _ in range(size))
        # The smallest that so many are no larger than.
        exact = next(each for n, each in enumerate(seconds, start=1) if n >= share * size)
        found = quantile(histogram(*seconds), share)
        assert found is not None
        assert bisect_left(DURATIONS, min(found, DURATIONS[-1])) == min(
            bisect_left(DURATIONS, exact), len(DURATIONS) - 1
        )


def test_what_lies_evenly_within_buckets_has_its_exact_percentiles() -> None:
    # A thousand from 1 to 10 seconds, each bucket's evenly: 2.5 of 1.5 s, 5 and 10 s.
    counts = histogram()
    counts[bisect_left(DURATIONS, 2.5)], counts[bisect_left(DURATIONS, 5)] = 300, 500
    counts[bisect_left(DURATIONS, 10)] = 200
    assert quantile(counts, 0.5) == pytest.approx(2.5 + 2.5 * 200 / 500)
    assert quantile(counts, 0.95) == pytest.approx(5 + 5 * 150 / 200)
