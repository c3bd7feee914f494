"""claim: each job once, best first, one queue at a time; and what makes waiting jobs claimable."""

import asyncio
import random
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from app.jobs.lanes import LLM_LANES, lanes_of, llm_lane
from app.store import low_water
from app.store.claims import Claimant, Claims
from app.store.database import Database
from app.store.heads import LONGEST_REST_SECONDS, Head, HeadsWalk, heads_of
from app.store.history import ALL_EVENTS
from app.store.job import ClaimedJob
from app.store.locks import lock, lock_number
from app.store.promote import due_mark, promote, seconds_until_next_due
from app.store.queues import QueueBook, configure
from app.store.settle import heartbeat
from tests.live_tables import write
from tests.patience import until
from tests.store import invariants
from tests.store.making import backdate, claim, job, log_of, put, put_one, row_of, running, states_of


async def heads(database: Database) -> list[Head]:
    """By way of all queues, and of those that have jobs; they must agree."""
    queues = [row["queue"] for row in await database.fetch("SELECT DISTINCT queue FROM jobs ORDER BY 1")]
    walked = await HeadsWalk(database).next_page()
    asked = await heads_of(database, queues)
    assert [(head.queue, head.lane, head.id) for head in walked] == [
        (head.queue, head.lane, head.id) for head in asked
    ]
    return walked


def ids(records: list[ClaimedJob]) -> list[str]:
    return [record.id for record in records]


async def test_a_claim_is_a_lease_with_a_token_of_its_own(database: Database) -> None:
    one, two = await put(database, job(), job())
    claimed = await claim(database, worker="w1", lease_seconds=7)
    assert ids(claimed) == [one, two]
    row = await row_of(database, one)
    assert (row["state"], row["attempt"], row["worker"], row["lease_seconds"]) == ("loading", 1, "w1", 7)
    assert row["lease_expires_at"] - row["started_at"] == timedelta(seconds=7)
    assert claimed[0].lease_token != claimed[1].lease_token
    assert await log_of(database, one) == [(1, "queued", "enqueue"), (2, "loading", "claim")]
    await invariants.check_all(database)


async def test_what_is_claimed_cannot_be_claimed_again(database: Database) -> None:
    await put_one(database)
    assert len(await claim(database)) == 1
    assert await claim(database) == []


async def test_the_order_is_priority_then_interactive_then_first_come(database: Database) -> None:
    low = await put_one(database, priority=-5)
    first = await put_one(database)
    second = await put_one(database)
    waits_on_the_line = await put_one(database, interactive=True)
    high = await put_one(database, priority=100)
    high_too = await put_one(database, priority=100)
    assert ids(await claim(database)) == [high, high_too, waits_on_the_line, first, second, low]


async def test_interactive_does_not_overtake_a_better_priority(database: Database) -> None:
    interactive = await put_one(database, interactive=True)
    better = await put_one(database, priority=1)
    assert ids(await claim(database)) == [better, interactive]


async def test_jobs_of_one_commit_go_in_the_order_they_were_submitted(database: Database) -> None:
    jobs = [job() for _ in range(50)]
    await put(database, *jobs)
    assert ids(await claim(database, limit=50)) == [each.id for each in jobs]


async def test_the_limit_holds_over_all_lanes(database: Database) -> None:
    await put(database, *(job(lane=lane) for lane in "abc" for _ in range(4)))
    claimed = await claim(database, ["a", "b", "c"], 5)
    assert len(claimed) == 5
    assert await database.fetchval("SELECT count(*) FROM jobs WHERE state = 'loading'") == 5


async def test_priority_holds_across_lanes_once_the_ranks_are_known(database: Database) -> None:
    claims = Claims(database)
    lanes = ["a", "b"]
    await put(database, *(job(lane=lane, priority=p) for lane in lanes for p in (0, 5)))
    await claim(database, lanes, claims=claims)
    a_low, b_low, a_high, b_high = await put(
        database, job(lane="a"), job(lane="b"), job(lane="a", priority=5), job(lane="b", priority=5)
    )
    assert set(ids(await claim(database, lanes, 2, claims=claims))) == {a_high, b_high}
    assert set(ids(await claim(database, lanes, 2, claims=claims))) == {a_low, b_low}


async def test_other_lanes_and_other_queues_are_left_alone(database: Database) -> None:
    mine, _, _ = await put(database, job(lane="a"), job(lane="b"), job(lane="a", queue="other"))
    assert ids(await claim(database, ["a"])) == [mine]


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(database: Database) -> None:
    job_id = await put_one(database)
    await database.execute("INSERT INTO queues (name, paused_at) VALUES ('default', now())")
    assert await claim(database) == []
    assert await heads(database) == []
    await database.execute("UPDATE queues SET paused_at = NULL")
    assert [(head.queue, head.lane) for head in await heads(database)] == [("default", "noop")]
    assert ids(await claim(database)) == [job_id]


async def test_a_job_past_its_deadline_is_not_begun(database: Database) -> None:
    late = await put_one(database, deadline_seconds=60)
    await backdate(database, late, "deadline")
    fine = await put_one(database, deadline_seconds=60)
    assert ids(await claim(database)) == [fine]


async def test_a_lease_never_reaches_past_the_attempts_end(database: Database) -> None:
    job_id, token = await running(database, max_duration_seconds=2)
    row = await row_of(database, job_id)
    assert row["attempt_expires_at"] - row["started_at"] == timedelta(seconds=2)
    assert row["lease_expires_at"] == row["attempt_expires_at"]
    leases = await heartbeat(database, [(job_id, token)], [3600])
    assert leases[job_id].expires_at == row["attempt_expires_at"]


async def test_several_seats_share_one_claim_in_order(database: Database) -> None:
    for _ in range(6):
        await put_one(database)
    claimed = await Claims(database).claim_whole(
        "default", ["noop"], [Claimant("w1", 2, 10), Claimant("w2", 1, 20), Claimant("w3", 2, 30)]
    )
    assert [(record.worker, record.lease_seconds) for record in claimed.answers] == [
        ("w1", 10),
        ("w1", 10),
        ("w2", 20),
        ("w3", 30),
        ("w3", 30),
    ]


async def test_many_claimers_at_once_get_each_job_exactly_once(database_url: str) -> None:
    database = Database(database_url, size=16)
    await database.open()
    try:
        total = 600
        await put(
            database, *(job(lane=random.choice("ab"), priority=random.randint(-3, 3)) for _ in range(total))
        )
        taken: list[str] = []

        async def claimer(name: str) -> None:
            claims = Claims(database)
            empty = 0
            while empty < 3:
                claimed = await claim(database, ["a", "b"], random.randint(1, 20), worker=name, claims=claims)
                taken.extend(ids(claimed))
                empty = 0 if claimed else empty + 1

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for n in range(16):
                group.create_task(claimer(f"w{n}"))
        assert len(taken) == total
        assert len(set(taken)) == total
        assert (
            await database.fetchval("SELECT count(*) FROM jobs WHERE state = 'loading' AND attempt = 1")
            == total
        )
        await invariants.check_all(database)
    finally:
        await database.close()


async def test_a_job_that_somebody_holds_is_stepped_over_and_not_waited_for(database: Database) -> None:
    first, second = await put_one(database), await put_one(database)
    async with database.transaction() as other:
        await other.execute("SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE", first)
        async with asyncio.timeout(5):
            assert ids(await claim(database, limit=1)) == [second]


async def test_a_job_that_appears_behind_the_mark_is_claimed_after_the_reset(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = Claims(database)
    await put_one(database)
    await claim(database, claims=claims)
    hidden = await put_one(database)
    await backdate(database, hidden, "ready_at")
    assert await claim(database, claims=claims) == []  # the mark has stepped over it
    assert len(await heads(database)) == 1  # but it is not forgotten
    monkeypatch.setattr(low_water, "MARK_SECONDS", 0)
    monkeypatch.setattr(low_water, "RESCAN_SHARE", 0)
    assert ids(await claim(database, claims=claims)) == [hidden]


async def test_a_commit_that_comes_late_is_claimed_without_waiting_for_the_reset(database: Database) -> None:
    """now() is the moment a transaction began: with a slow one, ready_at lies before the others'."""
    claims = Claims(database)
    await put_one(database)
    await claim(database, claims=claims)
    late = await put_one(database)
    await backdate(database, late, "ready_at", timedelta(seconds=1))
    await put_one(database)
    assert ids(await claim(database, claims=claims))[0] == late


async def test_a_transaction_held_open_elsewhere_does_not_slow_claims_down(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead index entries cannot be removed under it; the mark steps over them."""
    monkeypatch.setattr(low_water, "SLACK", timedelta(0))  # or the test would have to last for seconds
    size = 200

    async def pages_read_by(claims: Claims) -> int:
        await put(database, *(job() for _ in range(size)))
        before = await index_reads(database)
        assert len(await claim(database, limit=size, claims=claims)) == size
        return await index_reads(database) - before

    async with database.connection() as other, other.transaction(isolation="repeatable_read"):
        await other.fetchval("SELECT count(*) FROM jobs")
        claims = Claims(database)
        marked = [await pages_read_by(claims) for _ in range(12)]
        assert max(marked) <= 2 * marked[1] + 4, marked
        # Without marks it is slow: so the test does see what it is about.
        assert await pages_read_by(Claims(database)) > 2 * max(marked)


async def index_reads(database: Database) -> int:
    """Pages of the claim's index that were looked at so far."""
    async with database.connection() as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        return int(
            await connection.fetchval(
                "SELECT idx_blks_hit + idx_blks_read FROM pg_statio_user_indexes WHERE indexrelname = 'queued_in_lanes'"
            )
        )


# -- heads -----------------------------------------------------------------------------------------------


async def test_heads_names_the_best_of_each_lane_that_has_claimable_work(database: Database) -> None:
    await put(
        database,
        job(queue="q1", lane="a", priority=1),
        job(queue="q1", lane="a", priority=3),
        job(queue="q1", lane="b"),
        job(queue="q2", lane="a", interactive=True),
        job(queue="q3", lane="a", delay_seconds=60),
    )
    await running(database, queue="q4", lane="a")
    found = sorted((head.queue, head.lane, head.rank) for head in await heads(database))
    assert found == [("q1", "a", 6), ("q1", "b", 0), ("q2", "a", 1)]


async def test_heads_says_how_long_the_head_has_waited(database: Database) -> None:
    job_id = await put_one(database)
    await backdate(database, job_id, "ready_at", timedelta(seconds=100))
    [head] = await heads(database)
    assert 100 <= head.waited_seconds < 130


async def test_heads_of_an_empty_table_is_empty(database: Database) -> None:
    assert await heads(database) == []


# -- promotion -------------------------------------------------------------------------------------------


async def test_promotion_readies_what_has_come_due_and_nothing_else(database: Database) -> None:
    due_a, due_b, later = await put(
        database,
        job(lane="a", delay_seconds=60),
        job(lane="b", queue="q", delay_seconds=60),
        job(lane="c", delay_seconds=60),
    )
    await backdate(database, due_a, "run_at")
    await backdate(database, due_b, "run_at")
    assert (await promote(database)).work == {("default", "a"), ("q", "b")}
    assert not (await promote(database)).work
    row = await row_of(database, due_a)
    assert (row["reason"], row["seq"]) == (None, 1)
    assert row["ready_at"] is not None
    assert (await row_of(database, later))["ready_at"] is None
    assert ids(await claim(database, ["a", "b", "c"])) == [due_a]


async def test_promotion_takes_what_is_longest_due_first_within_its_limit(database: Database) -> None:
    jobs = await put(database, *(job(delay_seconds=60) for _ in range(4)))
    for hours, job_id in enumerate(jobs, 1):
        await backdate(database, job_id, "run_at", timedelta(hours=hours))
    await promote(database, limit=2)
    ready = [(await row_of(database, job_id))["ready_at"] is not None for job_id in jobs]
    assert ready == [False, False, True, True]


async def test_two_promoters_at_once_share_the_work(database: Database) -> None:
    jobs = await put(database, *(job(delay_seconds=60) for _ in range(50)))
    await write(database, "UPDATE jobs SET run_at = now() - interval '1 second'")
    await asyncio.gather(*(promote(database) for _ in range(5)))
    assert len(await claim(database, limit=100)) == 50
    assert await states_of(database, *jobs) == ["loading"] * 50


async def test_the_next_due_moment_is_known_to_the_second(database: Database) -> None:
    assert await seconds_until_next_due(database) is None
    await put(database, job(delay_seconds=500), job(delay_seconds=100), job())
    seconds = await seconds_until_next_due(database)
    assert seconds is not None
    assert 90 < seconds <= 100


async def test_what_is_due_and_held_by_somebody_for_long_is_not_asked_for_again_and_again(
    database: Database,
) -> None:
    held, later = await put(database, job(delay_seconds=60), job(delay_seconds=100))
    await backdate(database, held, "run_at")
    mark = due_mark()
    seconds = await seconds_until_next_due(database, mark)
    assert seconds is not None
    assert seconds <= 0
    async with database.transaction() as other:
        await other.execute("SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE", held)
        assert not (await promote(database, marks=mark)).work
        seconds = await seconds_until_next_due(database, mark)
        assert seconds is not None
        assert 90 < seconds <= 100
    # Whoever looks from the beginning finds it, and so does the one with the mark, by and by.
    assert (await promote(database)).work == {("default", "noop")}
    assert (await row_of(database, later))["ready_at"] is None


async def test_a_crowd_that_is_due_in_one_queue_holds_up_no_other(database: Database) -> None:
    for queue, jobs in (("a-crowd", 60), ("b", 1), ("c", 3)):
        await put(database, *(job(queue=queue, delay_seconds=60) for _ in range(jobs)))
    await write(database, "UPDATE jobs SET run_at = now() - interval '1 minute'")
    assert {queue for queue, _ in (await promote(database, limit=12)).work} == {"a-crowd", "b", "c"}
    ready = await database.fetch(
        "SELECT queue, count(ready_at) AS jobs FROM jobs GROUP BY queue ORDER BY queue"
    )
    assert [(row["queue"], row["jobs"]) for row in ready] == [("a-crowd", 4), ("b", 1), ("c", 3)]
    # Alone again, it has the whole round.
    await promote(database, limit=12)
    assert await database.fetchval("SELECT count(ready_at) FROM jobs WHERE queue = 'a-crowd'") == 16


async def test_with_more_queues_than_a_round_has_room_for_each_has_its_turn(database: Database) -> None:
    await put(database, *(job(queue=f"q{n % 20}", delay_seconds=60) for n in range(100)))
    await write(database, "UPDATE jobs SET run_at = now() - interval '1 minute'")
    assert len((await promote(database, limit=5)).work) == 5
    while (await promote(database, limit=5)).work:
        pass
    assert await database.fetchval("SELECT count(*) FROM jobs WHERE ready_at IS NULL") == 0


# -- the moment from which a lease counts -----------------------------------------------------------------


async def until_blocked(database: Database) -> None:
    """Somebody waits for a lock in this database."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await until(lambda: database.fetchval(waiting))


async def test_a_lease_counts_from_when_the_queues_lock_was_got(database: Database) -> None:
    book = QueueBook(database)
    await configure(database, "default", {"max_running": 5})
    await book.refresh()
    async with database.transaction() as other:
        await lock(other, {lock_number("claim", "default"): True})
        claiming = asyncio.create_task(claim(database, lease_seconds=2, claims=Claims(database, book)))
        await until_blocked(database)
        # Enqueued while the claim waits: nothing may seem to have happened before that.
        job_id = await put_one(database)
        released_at = await other.fetchval("SELECT clock_timestamp()")
    assert ids(await claiming) == [job_id]
    row = await row_of(database, job_id)
    assert row["lease_expires_at"] >= released_at + timedelta(seconds=2)
    assert row["lease_expires_at"] - row["started_at"] == timedelta(seconds=2)
    assert row["started_at"] >= released_at
    assert row["queued_seconds"] >= 0
    events = await database.fetch(
        f"SELECT at FROM {ALL_EVENTS} AS events WHERE job_id = $1 ORDER BY seq", job_id
    )
    assert events[0]["at"] < released_at <= events[1]["at"]


async def test_a_renewed_lease_counts_from_when_the_rows_lock_was_got(database: Database) -> None:
    job_id, token = await running(database)
    async with database.transaction() as other:
        await other.execute("SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE", job_id)
        renewing = asyncio.create_task(heartbeat(database, [(job_id, token)], [2]))
        await until_blocked(database)
        released_at = await other.fetchval("SELECT clock_timestamp()")
    assert (await renewing)[job_id].expires_at >= released_at + timedelta(seconds=2)


# -- many queues ------------------------------------------------------------------------------------------


async def test_the_walk_over_the_heads_comes_to_every_lane_however_many_there_are(database: Database) -> None:
    await put(database, *(job(queue=f"q{n}", lane=lane) for n in range(6) for lane in "ab"))
    await database.execute("INSERT INTO queues (name, paused_at) VALUES ('q3', now())")
    walk = HeadsWalk(database, page=5)
    pages = [[(head.queue, head.lane) for head in await walk.next_page()] for _ in range(4)]
    assert [len(page) for page in pages] == [5, 3, 2, 5]
    assert sorted(pages[0] + pages[1] + pages[2]) == [
        (f"q{n}", lane) for n in range(6) for lane in "ab" if n != 3
    ]
    assert pages[3] == pages[0]


async def test_the_walk_over_the_heads_rests_a_while_after_a_slow_page_but_not_for_long(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was slow because the database hung, as far as anybody knows."""
    await put_one(database)
    now = 0.0
    monkeypatch.setattr("app.store.heads.time", SimpleNamespace(monotonic=lambda: now))
    fetch = Database.fetch

    async def hang(self: Database, *arguments: Any) -> list[asyncpg.Record]:
        nonlocal now
        now += 1000.0
        return await fetch(self, *arguments)

    monkeypatch.setattr(Database, "fetch", hang)
    walk = HeadsWalk(database)
    assert len(await walk.next_page()) == 1
    now += LONGEST_REST_SECONDS - 0.1
    assert await walk.next_page() == []
    now += 0.2
    assert len(await walk.next_page()) == 1


async def test_a_queue_whose_claim_fails_is_left_alone_for_a_growing_while(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = Claims(database)
    job_id = await put_one(database)
    await database.execute("UPDATE jobs SET max_duration_seconds = 1e300")
    pauses = []
    for _ in range(3):
        with pytest.raises(asyncpg.PostgresError):
            await claim(database, claims=claims)
        pauses.append(claims.closed_seconds("default") or 0)
        # Meanwhile nobody asks the database.
        assert await claim(database, claims=claims) == []
        monkeypatch.setattr(time, "monotonic", _later(time.monotonic, 60))
    assert pauses == sorted(pauses)
    assert pauses[2] > 2 * pauses[0]
    await database.execute("UPDATE jobs SET max_duration_seconds = NULL")
    assert ids(await claim(database, claims=claims)) == [job_id]
    assert claims.closed_seconds("default") is None


def _later(clock: Callable[[], float], seconds: float) -> Callable[[], float]:
    return lambda: clock() + seconds


async def test_heads_can_be_asked_for_within_a_range_of_lanes(database: Database) -> None:
    lanes = ["acme/a", "acme/b", "acme0", "acme-x/a", "b", llm_lane("m"), "llmx", "other/a"]
    await put(database, *[job(kind="own", lane=lane) for lane in lanes])
    claims = Claims(database, QueueBook(database))

    async def found(within: tuple[str, str]) -> list[str]:
        return sorted(head.lane for head in await claims.heads(["default"], within))

    for _ in range(2):
        assert await found(lanes_of("acme")) == ["acme/a", "acme/b"]
        assert await found(lanes_of("acme-x")) == ["acme-x/a"]
        assert await found(lanes_of("nobody")) == []
        assert await found(LLM_LANES) == [llm_lane("m")]
        assert await found(lanes_of("default")) == sorted(lanes)
        # Once more, with lanes that claims have marks for.
        await claims.claim_whole("default", ["acme/a", "b"], [Claimant("w", 1, 30)])
        await put(database, job(kind="own", lane="acme/a"), job(kind="own", lane="b"))
