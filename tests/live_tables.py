"""The small tables beside `jobs`: what must stand in them, and how they are brought in line by tests that write into
`jobs` by hand."""

from typing import Any

QUEUED = """
SELECT id, queue, lane, rank, ready_at, run_at, gate, concurrency_key, fair_value, deadline,
       ready_at IS NULL AND reason IS NOT DISTINCT FROM 'target_asleep' AS asleep, key_number
FROM jobs WHERE state = 'queued'
"""
QUEUED_COLUMNS = """
id, queue, lane, rank, ready_at, run_at, gate, concurrency_key, fair_value, deadline, asleep, key_number
"""
RUNNING = """
SELECT id, queue, worker, runs_on, concurrency_key, deadline, key_number FROM jobs WHERE state IN ('loading', 'working')
"""
ENDINGS = """
SELECT id, queue, state, concurrency_key FROM jobs WHERE completed_at IS NOT NULL AND state <> 'done'
"""
UNBOOKED = "SELECT id FROM jobs WHERE usage IS NOT NULL AND NOT usage_booked AND completed_at IS NOT NULL"
EXPECTED = {"queued": QUEUED, "running": RUNNING, "endings": ENDINGS, "unbooked_usage": UNBOOKED}

FOLLOW = f"""
DELETE FROM queued;
INSERT INTO queued {QUEUED};
DELETE FROM running;
INSERT INTO running (claimed_at, id, queue, worker, runs_on, concurrency_key, deadline, key_number)
SELECT now(), running.* FROM ({RUNNING}) AS running;
DELETE FROM endings;
INSERT INTO endings {ENDINGS};
DELETE FROM unbooked_usage;
INSERT INTO unbooked_usage {UNBOOKED};
"""


async def follow_jobs(database: Any) -> None:
    """Somebody wrote into `jobs` by hand: bring the small tables in line, as every verb does by itself."""
    await database.execute(FOLLOW)


async def write(database: Any, statement: str, *arguments: object) -> None:
    """Write into `jobs` by hand, and bring the small tables in line."""
    await database.execute(statement, *arguments)
    await follow_jobs(database)


async def check(connection: Any) -> None:
    """The small tables say of every job what its own row says, and of no other."""
    for table, expected in EXPECTED.items():
        # By name: a newer version may have added some.
        columns = QUEUED_COLUMNS if table == "queued" else expected.split("FROM")[0].split("SELECT")[1]
        wrong = await connection.fetch(
            f"(SELECT 'missing' AS what, e.* FROM ({expected}) AS e EXCEPT ALL SELECT 'missing', {columns} FROM {table})"
            " UNION ALL "
            f"(SELECT 'stray' AS what, {columns} FROM {table} EXCEPT ALL SELECT 'stray', e.* FROM ({expected}) AS e)"
        )
        assert wrong == [], (table, [dict(row) for row in wrong])
