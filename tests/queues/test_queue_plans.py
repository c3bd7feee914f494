"""The statements of keys, fairness and limits read only what they need, on a table that would mislead a planner.

40,000 jobs behind two keys and 10,000 of one caller: the statistics say that any key has half of the jobs that
have one. Still a look-up of another key is a look-up.
"""

import asyncio
import itertools
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from app.embedded import EmbeddedPostgres
from app.store import fair, keys
from app.store.bulk import look_statement
from app.store.census import LOOK
from app.store.claims import CLAIM_FAIRLY
from app.store.database import IN_ORDER, PLANNING
from app.store.depth import DEPTH
from app.store.key_memory import Counted, Known, Lines
from app.store.keys import PLACES
from app.store.limits import RUNNING
from app.store.low_water import THE_BEGINNING
from app.store.promote import HOLD_CROWD, HOLD_DUE, NEXT_DUE
from app.store.prune import OVER_IN_QUEUE, OVER_OF_ALL
from app.store.read import Filter
from tests.conftest import TEMPLATE
from tests.live_tables import follow_jobs

FILL = """
INSERT INTO jobs (id, tenant, queue, lane, kind, state, payload, ready_at, completed_at, gate, concurrency_key,
                  fair_value, seq, history)
SELECT lpad(to_hex(n + $1::int), 26, '0'), 'default', $2, 'work', 'work', $3, '{"x":"0123456789"}',
       CASE WHEN $3 = 'queued' AND $4::text IS NULL THEN now() END, CASE WHEN $3 IN ('done', 'failed') THEN now() END,
       $4, CASE WHEN $2 = 'keyed' THEN 'busy' || n % 2 END, CASE WHEN $2 = 'fair' THEN 'big' END, 1, ''
FROM generate_series(1, $5::int) n
"""
ROWS = [
    (0, "keyed", "done", None, 150_000),
    (200_000, "keyed", "queued", "key", 40_000),
    (300_000, "keyed", "loading", None, 2),
    (400_000, "fair", "queued", None, 10_000),
    (500_000, "plain", "failed", None, 5_000),
]


@pytest.fixture(scope="module")
def filled(postgres: EmbeddedPostgres) -> Iterator[str]:
    name = f"plans_{uuid.uuid4().hex[:12]}"
    url = postgres.dsn_for(name)

    async def fill() -> None:
        admin = await asyncpg.connect(postgres.dsn)
        await admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{TEMPLATE}"')
        await admin.close()
        connection = await asyncpg.connect(url)
        for row in ROWS:
            await connection.execute(FILL, *row)
        await connection.execute(
            "INSERT INTO queues (name, settings) VALUES ('keyed', '{\"key\": [\"/k\"]}')"
        )
        await follow_jobs(connection)
        for table in ("jobs", "queued", "running", "endings"):
            await connection.execute(f"VACUUM ANALYZE {table}")
        await connection.close()

    async def drop() -> None:
        admin = await asyncpg.connect(postgres.dsn)
        await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        await admin.close()

    asyncio.run(fill())
    yield url
    asyncio.run(drop())


def explain(url: str, statement: str, *arguments: Any, before: str = "") -> tuple[dict[str, Any], int]:
    """The plan as it was run (and taken back), and how many buffers it touched."""

    async def run() -> dict[str, Any]:
        connection = await asyncpg.connect(url, server_settings=PLANNING)
        try:
            transaction = connection.transaction()
            await transaction.start()
            if before:
                await connection.execute(before)
            text = await connection.fetchval(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *arguments
            )
            await transaction.rollback()
        finally:
            await connection.close()
        answered: dict[str, Any] = json.loads(text)[0]["Plan"]
        return answered

    plan = asyncio.run(run())
    return plan, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Relation Name" in plan or "Index Name" in plan:
        yield plan
    for child in plan.get("Plans", ()):
        yield from scans(child)


def scans_jobs_whole(plan: dict[str, Any]) -> bool:
    return any(
        scan["Node Type"].endswith("Seq Scan") and scan.get("Relation Name") in {"jobs", "queued", "endings"}
        for scan in scans(plan)
    )


FREE_KEYS = [f"free{n}" for n in range(100)]
QUEUES = ["keyed"] * 100
SPANS = Lines().begin([("keyed", key) for key in FREE_KEYS]).spans


def all_counted() -> Counted:
    """Some hold places of each key, as somebody remembers."""
    known = Counted()
    known.learn(
        datetime(2026, 1, 1, tzinfo=UTC), {("keyed", key): Known(("A", "B"), 1000) for key in FREE_KEYS}
    )
    return known


def counted(of: list[str], known: Counted | None = None) -> tuple[Any, ...]:
    known = known or Counted()
    asked = [("keyed", key) for key in of]
    return (["keyed"] * len(of), of, *known.sent(asked), known.server)


def places_of(of: list[str], known: Counted) -> tuple[Any, ...]:
    queues, asked, marks, ids, server = counted(of, known)
    return (queues, asked, [1000] * len(of), [101] * len(of), marks, ids, marks, ids, server, server)


@pytest.mark.parametrize(
    ("statement", "arguments"),
    [
        (PLACES, places_of(FREE_KEYS, Counted())),
        (PLACES, places_of(FREE_KEYS, all_counted())),
        (keys.HOLD_NEXT, (*counted(FREE_KEYS), *SPANS)),
        (keys.WITH_WAITING, (QUEUES, FREE_KEYS, *SPANS)),
        (keys.REPAIR, counted(FREE_KEYS)),
    ],
    ids=["places", "places_of_known_keys", "hold_next", "with_waiting", "repair"],
)
def test_a_hundred_free_keys_are_a_hundred_look_ups(
    filled: str, statement: str, arguments: tuple[Any, ...]
) -> None:
    plan, buffers = explain(filled, statement, *arguments)
    assert not scans_jobs_whole(plan)
    assert buffers < 100 * 25


def test_the_next_of_a_busy_key_is_found_without_the_others(filled: str) -> None:
    spans = [each[:2] for each in SPANS]
    plan, buffers = explain(filled, keys.HOLD_NEXT, *counted(["busy0", "busy1"]), *spans)
    assert not scans_jobs_whole(plan)
    assert buffers < 300


def test_the_repair_visits_each_waiting_key_once(filled: str) -> None:
    for known in ([], ["busy0", "never"]):
        asked = ("", "", 1000, ["keyed"] * len(known), known, "~")
        plan, buffers = explain(filled, keys.WAITING_KEYS, *asked)
        assert plan["Actual Rows"] == (1 if known else 2)
        assert not scans_jobs_whole(plan)
        assert buffers < 200


def test_a_fair_claim_reads_what_it_takes(filled: str) -> None:
    place = ("fair", ["work"], [0], ["big"], [THE_BEGINNING])
    arguments = (*place, 10, ["w"], [30.0], None, b"secret")
    plan, buffers = explain(filled, CLAIM_FAIRLY, *arguments)
    assert not scans_jobs_whole(plan)
    assert buffers < 10 * 60 + 300
    plan, buffers = explain(filled, fair.BEST_RANK, *place)
    assert buffers < 20


@pytest.mark.parametrize("known", [[], ["big"]], ids=["nothing_known", "all_known"])
def test_a_fair_claim_finds_new_values_by_one_probe_for_each(filled: str, known: list[str]) -> None:
    ends = [(fair.FIRST, ""), *((0, value) for value in known), (fair.LAST, "")]
    gaps = [("work", *begin, *end) for begin, end in itertools.pairwise(ends)]
    plan, buffers = explain(filled, fair.NEW_SPOTS, "fair", *map(list, zip(*gaps, strict=True)), 500)
    assert plan["Actual Rows"] == 1 - len(known)
    assert buffers < 30


@pytest.mark.parametrize(
    ("statement", "arguments", "most"),
    [
        (HOLD_DUE, (1000, THE_BEGINNING), 100),
        (HOLD_CROWD, (1000,), 100),
        (NEXT_DUE, (THE_BEGINNING,), 100),
        (RUNNING, ("keyed", THE_BEGINNING), 100),
        (DEPTH, ("plain", 10_000), 100),
        (OVER_IN_QUEUE, ("plain", "", "z", 500, ["failed"], [3600.0]), 4000),
        (OVER_OF_ALL, ("", "", "z", 500, ["done"], [3600.0]), 4000),
    ],
    ids=["promote", "promote_a_crowd", "next_due", "running", "depth", "over_in_queue", "over_of_all"],
)
def test_nothing_else_reads_the_table_whole(
    filled: str, statement: str, arguments: tuple[Any, ...], most: int
) -> None:
    plan, buffers = explain(filled, statement, *arguments)
    assert not scans_jobs_whole(plan)
    assert buffers < most


def test_a_census_does_not_read_what_has_ended(filled: str) -> None:
    plan, _ = explain(filled, LOOK)
    assert not scans_jobs_whole(plan)
    used = {scan["Index Name"] for scan in scans(plan) if "Index Name" in scan}
    assert used.isdisjoint({"jobs_of_queue", "endings_of_state"})
    # The two that run are told apart by their own rows.
    by_id = [scan for scan in scans(plan) if scan.get("Index Name") == "jobs_pkey"]
    assert sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in by_id) <= 2


@pytest.mark.parametrize(
    ("action", "wanted", "most"),
    [
        # A hundred in the table of endings, and each one's own row.
        ("retry", Filter(), 200),
        ("cancel", Filter(queue="fair"), 2_000 * 6),
        ("delete", Filter(kind="never-used"), 2_000 * 2),
        ("delete", Filter(queue="never-used"), 0),
    ],
    ids=["retry", "cancel_of_queue", "delete_of_kind", "delete_of_queue"],
)
def test_a_step_of_a_bulk_operation_looks_at_a_bounded_number_of_jobs(
    filled: str, action: str, wanted: Filter, most: int
) -> None:
    arguments: list[object] = ["default", "", "z"]
    statement = look_statement(action, wanted, arguments, limit=100, looked=2_000)
    plan, _ = explain(filled, statement, *arguments, before=IN_ORDER)
    assert not scans_jobs_whole(plan)
    assert sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in scans(plan)) <= most
