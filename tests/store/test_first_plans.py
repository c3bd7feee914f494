"""Statements are planned once, the first time on empty tables, and that plan has to be good when they are full.

On an empty table all indexes look alike to the planner and reading a whole table looks free. So each statement of
the store is written such that only one way is left: from the few rows it is about, by an index, to theirs.
"""

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest

import app.store
from app.jobs.states import Verb
from app.store import claims, fair, live
from app.store.arrivals import arrive_statement
from app.store.database import Database
from app.store.enqueue import OF_JOB
from app.store.settle import Settlement, settle
from tests.store.making import claim, job, put

GROWING = re.compile(
    r"jobs|queued|running|endings|unbooked_usage|events.*|deliveries.*|outbox|artifacts|artifact_chunks|idempotency_keys|dependencies|chatter.*"
)
# What makes a look-up narrow, in the condition that PostgreSQL shows for an index.
NARROW = re.compile(
    r"\b(id|job_id|lane|concurrency_key|parent_id|host|key|depends_on|runs_on|upload_id|run_at|deadline|created_at|xid)"
    r" (=|<|>)|ROW\(|metadata @>"
)
# Those that walk an index of what waits, and nothing else, from its beginning or to their LIMIT.
WALKS = {
    "census.LOOK",
    "explain.RUNNING",
    "depth.DEPTH",
    "heads.HEADS",
    "heads.HEADS_OF",
    "promote.HOLD_CROWD",
    # By an inverted index, which these tests do not let it have: see test_plans.
    "read.SHARING",
    # Along the index of what has failed, as far as it counts.
    "read.COUNT_FAILED",
    "holdings.TAKE",
    "limits.RUNNING",
    "outbox.BACKLOG",
    "outbox.RECEIVERS",
    "sweep.END_LOOK",
    "sweep.HOLD_LATE_CROWD_QUEUED",
    "sweep.HOLD_LATE_CROWD_RUNNING",
    "sweep.HOLD_LOST",
    "sweep.HOLD_OVERDUE",
    "sweep.HOLD_STALE",
    "targets.PARKED_LANES",
    "targets.RUNNING_ON",
    "targets.WAITING_IN",
    "usage.HOLD",
    "usage.SUMS",
    "usage.SUMS_BY_KEY",
    "workers.ASKED",
    "workers.LIST",
}
EXPLAIN = """
CREATE FUNCTION explained(statement text) RETURNS json LANGUAGE plpgsql AS $$
DECLARE plan json; BEGIN EXECUTE 'EXPLAIN (GENERIC_PLAN, FORMAT JSON) ' || statement INTO plan; RETURN plan; END $$
"""

FIRST_COLUMNS = """
SELECT i.indexrelid::regclass::text AS index, coalesce(a.attname, '') AS first
FROM pg_index i LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
"""


def statements() -> Iterator[tuple[str, str]]:
    """Every whole statement that stands in the store as a constant; what begins with _ or has blanks is a part."""
    for module in pkgutil.iter_modules(app.store.__path__):
        for name, text in vars(importlib.import_module(f"app.store.{module.name}")).items():
            if isinstance(text, str) and re.match(r"\s*(WITH|SELECT|INSERT|UPDATE|DELETE)\b", text):
                is_part = name.startswith("_") or re.search(r"\{\w+\}", text) or text in (fair.DUE, live.HELD)
                if not is_part:
                    yield f"{module.name}.{name}", text
    yield "arrivals.arrive_statement", arrive_statement(tuple(range(len(OF_JOB))), one_place=True)


def scans(plan: dict[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    """(table, how it is looked up, by which index) of each node that reads a table; a bitmap is looked up by the nodes
    below it."""
    if plan["Node Type"] != "ModifyTable" and "Relation Name" in plan:
        conditions = [plan.get("TID Cond") and "id = (its address)", plan.get("Index Cond")]
        conditions += [each.get("Index Cond") for each in _below(plan) if "Bitmap" in plan["Node Type"]]
        yield plan["Relation Name"], " AND ".join(each for each in conditions if each), plan.get("Index Name")
    for each in plan.get("Plans", ()):
        yield from scans(each)


def _below(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for each in plan.get("Plans", ()):
        yield each
        yield from _below(each)


async def wide_plans(database: Database) -> dict[str, list[tuple[str, str, str | None]]]:
    """Statements that would read more of a table than they look up, and what they would read."""
    first = {row["index"]: row["first"] for row in await database.fetch(FIRST_COLUMNS)}
    wide = {}
    for name, statement in statements():
        plan = json.loads(await database.fetchval("SELECT explained($1)", statement))[0]["Plan"]
        found = [
            (table, condition, index)
            for table, condition, index in scans(plan)
            if GROWING.fullmatch(table)
            # An index that is asked for its second column alone is walked from value to value of its first.
            and not (
                NARROW.search(condition) and (index is None or re.search(rf"\b{first[index]}\b", condition))
            )
        ]
        if found:
            wide[name] = found
    return {name: found for name, found in wide.items() if name not in WALKS}


# Also when there are some: what is right for none, of which nothing is known, may be wrong for a few that were counted.
# A plan made for them is kept until they are counted again, and by then they may be a million.
@pytest.mark.parametrize("jobs", [0, 1, 60, 300])
async def test_the_first_plans_go_by_index_from_few_rows_to_few_rows(database: Database, jobs: int) -> None:
    await database.execute(EXPLAIN)
    if jobs:
        await put(database, *(job(payload=json.dumps("x" * 300)) for _ in range(jobs)))
        claimed = await claim(database, limit=max(jobs // 2, 1))
        done = [Settlement(each.id, each.lease_token, Verb.COMPLETE) for each in claimed[: jobs // 4]]
        await settle(database, done)
        await database.execute("ANALYZE")
    assert await wide_plans(database) == {}


# Few are left, and PostgreSQL counts them as few; but the indexes still hold all that came and went.
async def test_plans_stay_look_ups_where_a_transaction_keeps_what_came_and_went(database: Database) -> None:
    async with database.connection() as other, other.transaction(isolation="repeatable_read"):
        await other.fetchval("SELECT count(*) FROM jobs")
        for _ in range(10):
            await put(database, *(job(fair_value=f"u{n % 20}") for n in range(200)))
            done = [
                Settlement(each.id, each.lease_token, Verb.COMPLETE)
                for each in await claim(database, limit=200)
            ]
            await settle(database, done)
        await database.execute("ANALYZE")
        await database.execute(EXPLAIN)
        assert await wide_plans(database) == {}


# A value picked out of its lane would be a look-up, too, but one of all that ever waited there. It depends on how many
# pages each index has which of them seems the cheaper, so there is no other to choose.
@pytest.mark.parametrize(
    "statement", [fair.NEW_SPOTS, fair.BEST_RANK, claims.CLAIM_FAIRLY, claims.CLAIM_FAIRLY_AND_START]
)
async def test_values_of_a_fair_queue_are_never_picked_out_of_their_lane(
    database: Database, statement: str
) -> None:
    await database.execute(EXPLAIN)
    sought = await indexes_of_queued(database, statement)
    await database.execute("DROP INDEX queued_fair")
    without = await indexes_of_queued(database, statement)
    assert "queued_fair" in sought
    assert "queued_in_lanes" not in sought | without


async def indexes_of_queued(database: Database, statement: str) -> set[str | None]:
    plan = json.loads(await database.fetchval("SELECT explained($1)", statement))[0]["Plan"]
    return {index for table, _, index in scans(plan) if table == "queued"}


def test_the_statements_are_found() -> None:
    names = {name for name, _ in statements()}
    assert names >= WALKS | {"settle.SETTLE", "claims.CLAIM_TO_RUN", "outbox.RECORD", "control.CANCEL"}
