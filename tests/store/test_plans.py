"""No plan regresses silently: the hot statements are explained on a filled table.

200,000 finished jobs, 50,000 scheduled, 20,000 waiting, some hundred running: whatever is asked for, only the
part of an index that matters is read.
"""

import asyncio
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from app.embedded import EmbeddedPostgres
from app.jobs.ids import id_floor
from app.jobs.lanes import ALL_LANES
from app.store import explain as explaining
from app.store.claims import Claimant, Claims
from app.store.database import IN_ORDER, INVERTED, PLANNING, Database
from app.store.heads import HEADS, HEADS_OF
from app.store.job import ClaimedJob
from app.store.low_water import THE_BEGINNING
from app.store.promote import HOLD_CROWD, HOLD_DUE, NEXT_DUE
from app.store.read import GET, MAX_LOOKED, POSITION, SHARING, Filter, list_statements
from app.store.settle import HEARTBEAT
from app.store.sweep import (
    END_LOOK,
    HOLD_LATE_CROWD_QUEUED,
    HOLD_LATE_CROWD_RUNNING,
    HOLD_LATE_QUEUED,
    HOLD_LATE_RUNNING,
    HOLD_LOST,
    HOLD_OVERDUE,
    HOLD_STALE,
    NEVER,
    STILL_LATE,
)
from tests.conftest import TEMPLATE
from tests.live_tables import follow_jobs
from tests.rows import made_up

FILL = """
INSERT INTO jobs (id, tenant, queue, lane, kind, state, payload, priority, model, metadata, parent_id,
                  ready_at, run_at, deadline, lease_token, lease_expires_at, cancel_requested_at, completed_at, seq,
                  history)
SELECT lpad(to_hex(n * 8 + $2::int), 26, '0'), 'default', 'q' || n % 5, (ARRAY['noop', 'llm|||a', 'llm|||b'])[1 + n % 3], 'noop', $1,
       '{"x":"0123456789012345678901234567890123456789"}', n % 7, 'm' || n % 4,
       CASE WHEN n % 100 = 0 THEN jsonb_build_object('user', 'u' || n % 1000) END, NULL,
       CASE WHEN $1 = 'queued' AND NOT $4 THEN now() - n * interval '1 ms' END,
       now() + CASE WHEN $4 THEN n ELSE -n END * interval '1 second',
       CASE WHEN n % 20 = 0 THEN now() + n * interval '1 second' END,
       CASE WHEN $1 IN ('loading', 'working') THEN 't' END,
       CASE WHEN $1 IN ('loading', 'working') THEN now() + (n - 10) * interval '1 second' END,
       CASE WHEN $1 IN ('loading', 'working') AND n % 50 = 0 THEN now() - interval '1 hour' END,
       CASE WHEN $1 NOT IN ('queued', 'loading', 'working') THEN now() END, 4, ''
FROM generate_series(1, $3::int) n
"""
# State, kind of row, how many, whether scheduled.
ROWS = [
    ("done", 0, 190_000, False),
    ("failed", 1, 5_000, False),
    ("cancelled", 2, 5_000, False),
    ("queued", 3, 20_000, False),
    ("queued", 4, 50_000, True),
    ("loading", 5, 100, False),
    ("working", 6, 200, False),
]


def made_id(n: int, kind: int = 0) -> str:
    """The id of the n-th row of one kind of rows; the kinds lie among each other, as they would."""
    return f"{n * 8 + kind:026x}"


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
        # VACUUM too, as autovacuum would: without a visibility map no index-only scan is worth its while.
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


class Plan:
    """The nodes of an executed plan."""

    def __init__(self, text: str) -> None:
        document = json.loads(text)[0]
        self.nodes: list[dict[str, Any]] = []
        self._walk(document["Plan"])
        self.text = json.dumps(document["Plan"], indent=1)

    def _walk(self, node: dict[str, Any]) -> None:
        self.nodes.append(node)
        for child in node.get("Plans", ()):
            self._walk(child)

    @property
    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes if "Index Name" in node}

    @property
    def sequential(self) -> list[str]:
        return [node["Relation Name"] for node in self.nodes if node["Node Type"] == "Seq Scan"]

    @property
    def rows_read(self) -> int:
        """Of tables and indexes, those included that did not match."""
        scans = [node for node in self.nodes if "Scan" in node["Node Type"]]
        return sum(
            int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
            for node in scans
        )

    @property
    def pages(self) -> int:
        root = self.nodes[0]
        return int(root["Shared Hit Blocks"]) + int(root["Shared Read Blocks"])


async def explain(
    url: str, statement: str, *arguments: object, generic: bool = False, before: str = ""
) -> Plan:
    """Really run it, in a transaction that is undone; as the pool does, also with its generic plan."""
    connection = await asyncpg.connect(url, server_settings=PLANNING)
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(
            f"SET LOCAL plan_cache_mode = force_{'generic' if generic else 'custom'}_plan"
        )
        if before:
            await connection.execute(before)
        # With analyze it would need a prepared statement for the parameters; EXECUTE takes them as they are.
        explained = await connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *arguments
        )
        return Plan(explained)
    finally:
        await transaction.rollback()
        await connection.close()


class Recorder(Database):
    """Keeps the statement that a store function would run, and runs nothing."""

    def __init__(self) -> None:
        self.said: tuple[str, tuple[object, ...]] = ("", ())

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        self.said = (statement, arguments)
        return []


async def explain_claim(
    url: str, queue: str, lanes: list[str], limit: int, *ranks: int, generic: bool = False
) -> Plan:
    """The claim of a process that has seen these ranks before."""
    recorder = Recorder()
    claims = Claims(recorder)
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    claims.low_water.ranges(queue, lanes)
    claims.low_water.learn(
        queue,
        [made_up(ClaimedJob, lane=lane, rank=rank, ready_at=long_ago) for lane in lanes for rank in ranks],
    )
    await claims.claim(queue, lanes, [Claimant("w", limit, 30)])
    statement, arguments = recorder.said
    return await explain(url, statement, *arguments, generic=generic)


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("limit", [1, 100])
async def test_a_claim_walks_its_lane_in_order_and_reads_little_more_than_it_takes(
    filled: str, limit: int, generic: bool
) -> None:
    plan = await explain_claim(filled, "q1", ["noop"], limit, generic=generic)
    assert "queued_in_lanes" in plan.indexes, plan.text
    assert "jobs" not in plan.sequential, plan.text
    scan = next(node for node in plan.nodes if node.get("Index Name") == "queued_in_lanes")
    assert scan["Node Type"] == "Index Scan"
    assert scan["Actual Rows"] * scan["Actual Loops"] == limit, plan.text
    assert not any(node["Node Type"] == "Sort" and node["Actual Rows"] > limit for node in plan.nodes), (
        plan.text
    )


async def test_a_claim_over_several_lanes_and_bands_stays_in_the_index(filled: str) -> None:
    plan = await explain_claim(filled, "q2", ["noop", "llm|||a", "llm|||b"], 50, 12, 6, 0, generic=True)
    assert "queued_in_lanes" in plan.indexes, plan.text
    assert "jobs" not in plan.sequential, plan.text
    scans = [node for node in plan.nodes if node.get("Index Name") == "queued_in_lanes"]
    assert 0 < sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) <= 51, plan.text


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize(
    ("statement", "arguments", "probes"),
    [
        # 15 lanes with work among 270,000 rows.
        (HEADS, ("", "", 5000), 15),
        (HEADS, ("", "", 5), 5),
        # Nothing known of two queues; and a lane of one known, with what lies before and behind it.
        (HEADS_OF, ([], [], [], [], [], ["q1", "q2"], ["", ""], [ALL_LANES[1]] * 2), 6),
        (
            HEADS_OF,
            (
                ["q1"],
                ["llm|||b"],
                [-200],
                [201],
                [THE_BEGINNING],
                ["q1", "q1"],
                ["", "llm|||b"],
                ["llm|||b"],
            ),
            3,
        ),
    ],
)
async def test_the_heads_are_found_by_one_probe_per_lane(
    filled: str, statement: str, arguments: tuple[object, ...], probes: int, generic: bool
) -> None:
    plan = await explain(filled, statement, *arguments, generic=generic)
    assert "queued_in_lanes" in plan.indexes, plan.text
    assert "jobs" not in plan.sequential, plan.text
    scans = [node for node in plan.nodes if node.get("Index Name") == "queued_in_lanes"]
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) <= probes + 1, plan.text
    assert plan.pages < 200, plan.text


@pytest.mark.parametrize(
    ("statement", "arguments", "index"),
    [
        (HOLD_LOST, (500, None, THE_BEGINNING), "running_by_age"),
        (HOLD_LOST, (500, datetime(2100, 1, 1, tzinfo=UTC), THE_BEGINNING), "running_by_age"),
        (HOLD_STALE, (500, None, THE_BEGINNING), "running_by_age"),
        (END_LOOK, (NEVER, NEVER, THE_BEGINNING), "running_by_age"),
        (HOLD_LATE_QUEUED, (500, THE_BEGINNING), "queued_late"),
        (HOLD_LATE_RUNNING, (500, THE_BEGINNING), "running_late"),
        (HOLD_LATE_CROWD_QUEUED, (500,), "queued_deadlines"),
        (HOLD_LATE_CROWD_RUNNING, (500,), "running_deadlines"),
        (STILL_LATE, (THE_BEGINNING,), "queued_late"),
        (HOLD_OVERDUE, (500, 10.0, THE_BEGINNING), "running_by_age"),
        (HOLD_DUE, (1000, THE_BEGINNING), "queued_due"),
        (HOLD_CROWD, (1000,), "queued_waiting"),
        (NEXT_DUE, (THE_BEGINNING,), "queued_due"),
    ],
    ids=[
        "rescue",
        "rescue_confirmed",
        "supersede",
        "end_look",
        "expire_queued",
        "expire_running",
        "expire_many_queued",
        "expire_many_running",
        "still_late",
        "end_grace",
        "promote",
        "promote_a_crowd",
        "next_due",
    ],
)
@pytest.mark.parametrize("generic", [False, True])
async def test_what_time_does_is_found_by_its_own_index(
    filled: str, statement: str, arguments: tuple[object, ...], index: str, generic: bool
) -> None:
    plan = await explain(filled, statement, *arguments, generic=generic)
    assert index in plan.indexes, plan.text
    assert "jobs" not in plan.sequential, plan.text
    scan = next(node for node in plan.nodes if node.get("Index Name") == index)
    read = scan["Actual Rows"] * scan["Actual Loops"] + scan.get("Rows Removed by Filter", 0)
    assert read <= 600, plan.text


async def test_a_heartbeat_touches_its_own_rows_only(filled: str) -> None:
    ids = [made_id(n, 5) for n in range(1, 65)]
    plan = await explain(filled, HEARTBEAT, ids, ["t"] * 64, [30.0] * 64, generic=True)
    assert "jobs" not in plan.sequential, plan.text


async def test_one_job_is_read_by_its_key_and_its_position_by_the_claims_index(filled: str) -> None:
    plan = await explain(filled, GET, made_id(5, 3), "default", generic=True)
    assert plan.sequential == [], plan.text
    for rank, ahead in ((12, 0), (-200, 1333)):
        given = ("q1", "noop", rank, datetime(2020, 1, 1, tzinfo=UTC), "0" * 26)
        plan = await explain(filled, POSITION, *given, generic=True)
        assert plan.indexes == {"queued_in_lanes"}, plan.text
        # What comes behind is not even read.
        assert plan.rows_read == ahead, plan.text


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize(
    ("statement", "arguments", "index"),
    [
        (explaining.GET, (made_id(5, 3), "default"), "jobs_pkey"),
        (explaining.RUNNING, ("q1", 1000), "running_by_age"),
        (explaining.ON_TARGETS, (["a", "b"],), "running_on_target"),
        (explaining.FAIR_AHEAD, ("q1", "noop", 0, "v", datetime.now(UTC), "0" * 26), "queued_fair"),
        (explaining.KEY_AHEAD, ("q1", "k", 0, "0" * 26), "queued_gated"),
        (explaining.HOLDERS, ("q1", "k", 20), "queued_key_places"),
        (explaining.HOLDERS, ("q1", "k", 20), "running_key_places"),
        (explaining.RELATED, ([made_id(n) for n in range(1, 21)], "default"), "jobs_pkey"),
        (explaining.FIRST_EVENT, (made_id(5, 3),), "jobs_pkey"),
    ],
)
async def test_what_explains_a_job_is_found_by_its_index(
    filled: str, statement: str, arguments: tuple[object, ...], index: str, generic: bool
) -> None:
    plan = await explain(filled, statement, *arguments, generic=generic)
    assert index in plan.indexes, plan.text
    assert not {"jobs", "queued"} & set(plan.sequential), plan.text
    assert plan.rows_read <= 300, plan.text


# What a list asks for, the ways that lead there, and how many jobs are looked at until 51 are found or none is left.
@pytest.mark.parametrize(
    ("wanted", "indexes", "looked"),
    [
        (Filter(), ["jobs_pkey"], 51),
        (Filter(before=made_id(100_000)), ["jobs_pkey"], 51),
        (Filter(since=datetime(2020, 1, 1, tzinfo=UTC)), ["jobs_pkey"], 0),
        (Filter(queue="q3"), ["jobs_of_queue"], 51),
        (Filter(queue="never-used"), ["jobs_of_queue"], 0),
        (Filter(model="m1"), ["jobs_by_model"], 51),
        (Filter(model="never-used"), ["jobs_by_model"], 0),
        (Filter(states=["queued"]), ["queued_pkey"], 102),
        (Filter(states=["working"]), ["running_pkey"], 102),
        (Filter(states=["failed"]), ["endings_of_state"], 102),
        # All those that run are one table: 300, and each one's own row.
        (Filter(states=["failed", "loading"]), ["endings_of_state"], 102 + 2 * 300),
        (Filter(states=["done"]), ["jobs_pkey"], 1000),
        (Filter(states=["expired"], queue="q1"), ["endings_of_state", "jobs_of_queue"], 2 * MAX_LOOKED),
        (Filter(kind="noop"), ["jobs_pkey"], 51),
        (Filter(kind="never-used"), ["jobs_pkey"], 2 * MAX_LOOKED),
        (
            Filter(kind="never-used", queue="q1", model="m1"),
            ["jobs_of_queue", "jobs_by_model"],
            2 * MAX_LOOKED,
        ),
        (Filter(states=["done"], metadata={"user": "nobody"}), ["jobs_pkey"], 2 * MAX_LOOKED),
    ],
    ids=lambda value: (
        str({k: v for k, v in _given(value).items() if v}) if isinstance(value, Filter) else None
    ),
)
async def test_a_list_looks_at_no_more_than_it_must_and_never_at_more_than_its_bound(
    filled: str, wanted: Filter, indexes: list[str], looked: int
) -> None:
    statements = list_statements(wanted, "default", 51)
    assert len(statements) == len(indexes)
    for (statement, arguments), index in zip(statements, indexes, strict=True):
        plan = await explain(filled, statement, *arguments, before=IN_ORDER)
        assert plan.sequential == [], plan.text
        assert not any(node["Node Type"] == "Sort" for node in plan.nodes), plan.text
        assert index in plan.indexes, plan.text
        walks = [node for node in plan.nodes if node.get("Index Name")]
        assert sum(node["Actual Rows"] * node["Actual Loops"] for node in walks) <= looked, plan.text


async def test_few_that_share_their_metadata_are_looked_up_by_it(filled: str) -> None:
    for user, most in (("nobody", 20), ("u100", 1000)):
        plan = await explain(filled, SHARING, json.dumps({"user": user}), before=INVERTED)
        assert plan.indexes == {"jobs_metadata"}, plan.text
        assert plan.pages < most, plan.text


def _given(wanted: Filter) -> dict[str, object]:
    return {name: getattr(wanted, name) for name in Filter.__dataclass_fields__}


def test_the_ids_of_the_filled_table_lie_before_any_real_one() -> None:
    """Or the lists above would not walk over what they are meant to."""
    assert made_id(1_000_000) < id_floor(datetime(2020, 1, 1, tzinfo=UTC))
