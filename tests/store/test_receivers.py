"""Receivers of webhooks: what waits for each is told cheaply; what was given up is sent again, of one tenant."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from app.jobs.ids import new_id
from app.store import receivers
from app.store.database import Database
from app.store.receivers import MOST_COUNTED, THE_BEGINNING, Place, Walk, pending_of, redeliver
from tests.store.making import TENANT, job, put

HOST = "hooks.example:8080"
FILL = """
INSERT INTO outbox (job_id, seq, type, host, tries, last_status, last_error, created_at, next_try_at)
SELECT lpad(n::text, 26, '0'), 1, 'done', $1, tries, CASE WHEN tries > 0 THEN 503 END,
    CASE WHEN tries > 0 THEN 'the receiver answered 503' END, now() - tries * interval '1 hour',
    now() + tries * interval '1 hour'
FROM (SELECT n, CASE WHEN n <= $3 THEN 1 ELSE 0 END AS tries FROM generate_series(1, $2::int) AS n) AS those
"""
GIVEN_UP = """
INSERT INTO deliveries (job_id, seq, type, host, created_at, state, tries, last_status, last_error)
SELECT job_id, seq, 'done', $2, now(), $3, 8, 503, 'x'
FROM unnest($1::text[]) AS job_id CROSS JOIN generate_series(1, $4::int) AS seq
"""


async def given_up(
    database: Database,
    number: int,
    *,
    host: str = HOST,
    state: str = "given_up",
    tenant: str = TENANT,
    seqs: int = 1,
) -> list[str]:
    """Jobs, each with so many such deliveries."""
    ids = await put(database, *(job(id=new_id(), tenant=tenant) for _ in range(number)))
    await database.execute(GIVEN_UP, ids, host, state, seqs)
    return ids


async def walk(database: Database, **how: Any) -> Walk:
    changes = await redeliver(database, TENANT, how.pop("host", HOST), how.pop("state", "given_up"), **how)
    [found] = changes.answers
    assert changes.receivers == ({HOST} if found.redelivered else set())
    return found


async def test_what_waits_for_a_receiver_is_told(database: Database) -> None:
    await database.execute(FILL, HOST, 5, 2)
    await database.execute(FILL.replace("1, 'done'", "2, 'done'"), "well.example", 3, 0)
    found = await pending_of(database, [HOST, "well.example", "unheard.of"])
    assert set(found) == {HOST, "well.example"}
    troubled, well = found[HOST], found["well.example"]
    assert (troubled.pending, troubled.failing) == (5, 2)
    assert (troubled.last_status, troubled.last_error) == (503, "the receiver answered 503")
    assert (well.pending, well.failing, well.last_status, well.last_error) == (3, 0, None, None)
    row = await database.fetchrow(
        "SELECT min(created_at) AS oldest, min(next_try_at) AS next FROM outbox WHERE host = $1", HOST
    )
    assert row is not None
    assert (troubled.oldest_pending_at, troubled.next_try_at) == (row["oldest"], row["next"])
    assert await pending_of(database, []) == {}


async def test_a_hundred_thousand_are_counted_only_so_far_and_the_failing_ones_seen_all_the_same(
    database: Database,
) -> None:
    await database.execute(FILL, HOST, 100_000, 3)
    await database.execute("ANALYZE outbox")
    found = (await pending_of(database, [HOST]))[HOST]
    assert (found.pending, found.failing, found.last_status) == (MOST_COUNTED, 3, 503)
    assert found.oldest_pending_at is not None
    assert found.next_try_at is not None
    assert found.oldest_pending_at < found.next_try_at
    # Whatever is pending, it reads no more of it than it counts and looks at.
    explained = await database.fetchval(
        f"EXPLAIN (ANALYZE, FORMAT JSON) {inlined(receivers.PENDING, [HOST])}"
    )
    assert 0 < read_rows(json.loads(explained)[0]["Plan"]) <= 2 * (MOST_COUNTED + 2 * receivers.LOOKED)


def inlined(statement: str, hosts: list[str]) -> str:
    return statement.replace("$1::text[]", "ARRAY[" + ", ".join(f"'{host}'" for host in hosts) + "]")


def read_rows(plan: dict[str, Any]) -> int:
    """Of the table itself."""
    own = plan["Actual Rows"] * plan["Actual Loops"] if plan.get("Relation Name") == "outbox" else 0
    return int(own) + sum(read_rows(child) for child in plan.get("Plans", []))


# -- sending again ---------------------------------------------------------------------------------------------


async def test_all_that_was_given_up_on_is_due_again(database: Database) -> None:
    ids = await given_up(database, 3, seqs=2)
    assert await walk(database, dry_run=True) == Walk(6, 0, None)
    assert await database.fetchval("SELECT count(*) FROM outbox") == 0
    assert await walk(database) == Walk(6, 6, None)
    rows = await database.fetch(
        "SELECT job_id, seq, host, tries, last_status, next_try_at <= now() AS due FROM outbox ORDER BY 1, 2"
    )
    assert [tuple(row) for row in rows] == [
        (job_id, seq, HOST, 0, 503, True) for job_id in sorted(ids) for seq in (1, 2)
    ]
    assert await database.fetchval("SELECT count(*) FROM deliveries") == 0
    assert await walk(database) == Walk(0, 0, None)


async def test_another_receivers_another_states_and_another_tenants_stay_as_they_are(
    database: Database,
) -> None:
    await given_up(database, 2, host="other.example")
    await given_up(database, 2, state="refused")
    await given_up(database, 2, state="delivered")
    await given_up(database, 2, tenant="acme")
    [mine] = await given_up(database, 1)
    assert await walk(database, dry_run=True) == Walk(1, 0, None)
    assert await walk(database) == Walk(1, 1, None)
    assert [row["job_id"] for row in await database.fetch("SELECT job_id FROM outbox")] == [mine]
    assert await walk(database, state="refused") == Walk(2, 2, None)
    assert await database.fetchval("SELECT count(*) FROM deliveries") == 6


async def test_a_delivery_whose_job_is_gone_is_nobodys(database: Database) -> None:
    await database.execute(GIVEN_UP, [new_id()], HOST, "given_up", 1)
    assert await walk(database) == Walk(0, 0, None)


@pytest.mark.parametrize("dry_run", [True, False])
async def test_many_are_walked_through_in_steps_and_each_is_met_once(
    database: Database, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    for name, value in {"STEP": 7, "STEP_LOOKED": 20, "COUNT_LOOKED": 20}.items():
        monkeypatch.setattr(receivers, name, value)
    for _ in range(5):
        await given_up(database, 10, seqs=2)
        await given_up(database, 10, host="other.example")
    assert await walk(database, dry_run=dry_run) == Walk(100, 0 if dry_run else 100, None)
    # A request goes on for no longer than so long, and the next one from there.
    await database.execute("DELETE FROM outbox")
    await given_up(database, 30)
    monkeypatch.setattr(receivers, "WALK_SECONDS", 0)
    nothing = await walk(database, dry_run=dry_run)
    assert nothing == Walk(0, 0, THE_BEGINNING)
    # A second for each look at the clock.
    clock = SimpleNamespace(monotonic=iter(range(1000)).__next__)
    monkeypatch.setattr("app.store.receivers.time", clock)
    monkeypatch.setattr(receivers, "WALK_SECONDS", 2)
    place: Place | None = THE_BEGINNING
    met = requests = 0
    while place is not None:
        found = await walk(database, after=place, dry_run=dry_run)
        place, met, requests = found.place, met + found.matched, requests + 1
    assert requests > 1
    assert met == 30 + (100 if dry_run else 0)
