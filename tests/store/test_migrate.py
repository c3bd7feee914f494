"""Migrations: models and migrations say the same, several processes may migrate at once, rows stay."""

import asyncio
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from ulid import ULID

from app.embedded import EmbeddedPostgres
from app.errors import Unavailable
from app.jobs.states import Verb
from app.store import outbox
from app.store.control import cancel
from app.store.database import Database
from app.store.events import NewEvent, Want, append, read_pages
from app.store.migrate import _config, _engine, current_revision, migrate, newest_revision, scripts_folder
from app.store.read import get_job
from app.store.settle import Settlement, settle
from app.store.tables import METADATA
from tests.conftest import ROOT
from tests.patience import until
from tests.store import invariants
from tests.store.making import TENANT, claim_one, job, log_of, put, put_one, running


@pytest.fixture
def empty_database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A database that nobody has migrated."""
    name = f"empty_{uuid.uuid4().hex[:12]}"

    async def execute(statement: str) -> None:
        connection = await asyncpg.connect(postgres.dsn)
        await connection.execute(statement)
        await connection.close()

    asyncio.run(execute(f'CREATE DATABASE "{name}"'))
    yield postgres.dsn_for(name)
    asyncio.run(execute(f'DROP DATABASE "{name}" WITH (FORCE)'))


def is_partition(name: object) -> bool:
    """A day of a partitioned table, or its rest: made by hand, not declared; and what belongs to one."""
    return re.search(r"_(\d{8}|rest)(_|$)", str(name)) is not None


async def described(url: str) -> list[tuple[object, ...]]:
    """Every column, index and constraint, in words; those of partitions are their tables'."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns "
            "WHERE table_schema = 'public' ORDER BY table_name, column_name"
        )
        rows += await connection.fetch(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
        )
        checks = await connection.fetch(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'public'::regnamespace ORDER BY 1"
        )
        # How a check is phrased does not matter, only what it speaks of.
        worded = [(name, *sorted(set(re.findall(r"\w+", text)) - {"OR"})) for name, text in checks]
        return [row for row in [tuple(row) for row in rows] + worded if not is_partition(row[0])]
    finally:
        await connection.close()


async def test_the_declared_tables_are_the_migrated_ones(database_url: str) -> None:
    async def connect() -> asyncpg.Connection:
        return await asyncpg.connect(database_url)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)

    def differences(connection: sa.Connection) -> list[object]:
        options = {
            "compare_type": True,
            "compare_server_default": True,
            "include_name": lambda name, kind, _: kind != "table" or not is_partition(name),
        }
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), METADATA))

    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await engine.dispose()


async def test_the_indexes_and_constraints_are_declared_as_they_are(
    database_url: str, empty_database_url: str
) -> None:
    """Alembic compares neither partial conditions nor checks: make the tables from their declaration and look."""

    async def connect() -> asyncpg.Connection:
        return await asyncpg.connect(empty_database_url)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)
    await engine.dispose()
    migrated = {row for row in await described(database_url) if not str(row[0]).startswith("alembic")}
    declared = set(await described(empty_database_url))
    assert declared - migrated == set()
    assert migrated - declared == set()


async def test_an_empty_database_is_brought_to_the_newest_revision(empty_database_url: str) -> None:
    assert await migrate(empty_database_url) == newest_revision()
    connection = await asyncpg.connect(empty_database_url)
    assert await current_revision(connection) == newest_revision()
    assert await connection.fetchval("SELECT name FROM tenants") == "default"
    await connection.close()


async def test_a_database_without_the_table_of_revisions_has_none(empty_database_url: str) -> None:
    connection = await asyncpg.connect(empty_database_url)
    assert await current_revision(connection) is None
    await connection.close()


async def test_migrating_a_filled_database_again_keeps_its_rows(
    database: Database, database_url: str
) -> None:
    job_id = await put_one(database, payload='{"kept": 1.0}')
    before = await database.fetch("SELECT * FROM jobs")
    assert await migrate(database_url) == newest_revision()
    assert await database.fetch("SELECT * FROM jobs") == before
    assert before[0]["id"] == job_id
    await invariants.check_all(database)


async def test_several_migrations_at_once_in_one_process_do_not_disturb_each_other(
    empty_database_url: str,
) -> None:
    assert await asyncio.gather(*(migrate(empty_database_url) for _ in range(4))) == [newest_revision()] * 4


def test_several_foreman_migrate_at_once_all_succeed(empty_database_url: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREMAN_")}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "app", "migrate", "--database-url", empty_database_url],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    for process in started:
        out, err = process.communicate(timeout=280)
        assert process.returncode == 0, err
        assert newest_revision().encode() in out


def test_foreman_migrate_says_why_the_database_does_not_let_it_in(empty_database_url: str) -> None:
    wrong = empty_database_url.replace("//foreman@", "//no_such_user@")
    ended = subprocess.run(
        [sys.executable, "-m", "app", "migrate", "--database-url", wrong],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "refuses our role" in ended.stderr
    assert "no_such_user" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_schema_newer_than_this_version_is_left_alone(database: Database, database_url: str) -> None:
    """The old version in a rolling deploy must not undo, nor stumble over, what the new one did."""
    await database.execute("UPDATE alembic_version SET version_num = '9999'")
    await migrate(database_url)
    assert await database.fetchval("SELECT version_num FROM alembic_version") == "9999"


async def test_indexes_are_built_beside_who_writes_and_again_after_a_build_that_broke_off(
    database: Database, database_url: str
) -> None:
    await downgrade(database_url, "0007")
    # A unique index over rows that are alike: its build fails and leaves something that is of no use.
    await database.execute(TWO_ALIKE)
    async with database.connection() as connection:
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.execute("CREATE UNIQUE INDEX CONCURRENTLY jobs_by_model ON jobs (tenant, model)")
    writer = await asyncpg.connect(database_url)
    async with writer.transaction():
        await writer.execute("UPDATE jobs SET updated_at = now() WHERE id = 'a'")
        migrating = [asyncio.create_task(migrate(database_url)) for _ in range(2)]
        await until_building(database)
        # Whoever writes is not held up by it.
        await database.execute("INSERT INTO queues (name) VALUES ('q')")
        await database.execute("UPDATE jobs SET updated_at = now() WHERE id = 'c'")
    assert await asyncio.gather(*migrating) == [newest_revision()] * 2
    assert await database.fetchval(
        "SELECT indisvalid AND NOT indisunique FROM pg_index WHERE indexrelid = 'jobs_by_model'::regclass"
    )
    await writer.close()


TWO_ALIKE = """
INSERT INTO jobs (id, tenant, queue, lane, kind, state, payload, model, completed_at)
SELECT id, 'default', 'default', 'noop', 'noop', 'done', '{}', 'm', now() FROM unnest('{a,b,c}'::text[]) AS id
"""


async def downgrade(url: str, revision: str) -> None:
    """As an operator would go back, by hand."""

    def run(connection: sa.Connection) -> None:
        config = _config()
        config.attributes["connection"] = connection
        command.downgrade(config, revision)

    engine = _engine(url)
    async with engine.connect() as connection:
        await connection.run_sync(run)
    await engine.dispose()


async def until_building(database: Database) -> None:
    building = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '% INDEX CONCURRENTLY%' AND wait_event = 'virtualxid'"
    await until(lambda: database.fetchval(building))


async def test_a_migration_does_not_wait_in_front_of_everybody_for_a_table_that_is_in_use(
    database: Database, database_url: str
) -> None:
    await database.execute("ALTER TABLE dependencies DROP COLUMN outcome")
    await database.execute("UPDATE alembic_version SET version_num = '0005'")
    reader = await asyncpg.connect(database_url)
    async with reader.transaction():
        await reader.execute("LOCK TABLE dependencies IN ACCESS SHARE MODE")
        with pytest.raises(Unavailable):
            await migrate(database_url)
    await reader.close()
    assert await database.fetchval("SELECT version_num FROM alembic_version") == "0005"


def test_revisions_are_numbered_one_after_the_other() -> None:
    """/readyz compares them as text."""
    names = sorted(path.stem for path in (scripts_folder() / "versions").glob("*.py"))
    assert [name[:4] for name in names] == [f"{n:04}" for n in range(1, len(names) + 1)]
    assert newest_revision() == names[-1][:4]


async def story_of(database: Database, job_ids: list[str]) -> list[object]:
    """Each job and its log, as everybody reads them."""
    jobs = [await get_job(database, job_id, TENANT) for job_id in job_ids]
    pages = await read_pages(database, [Want(job_id) for job_id in job_ids])
    return [*jobs, *(page.events for page in pages if page is not None)]


async def test_jobs_in_all_states_read_alike_before_and_after_the_small_tables(
    database: Database, database_url: str
) -> None:
    """Back to the version before, which has all events in their table, and forth again."""
    ids = await put(
        database,
        job(lane="ready"),
        job(lane="later", delay_seconds=3600),
        job(lane="keyed", concurrency_key="k", deadline_seconds=7200),
    )
    for verb in (
        None,
        Verb.START,
        Verb.COMPLETE,
        Verb.FAIL,
        Verb.RETRY,
        Verb.DEFER,
        Verb.RELEASE,
        Verb.CANCEL,
    ):
        job_id, token = await running(database, queue=f"q-{verb}", webhook_url="http://127.0.0.1:1/")
        if verb is not None:
            settled = Settlement(job_id, token, verb, usage='{"prompt_tokens":1}', delay_seconds=60.0)
            settled.result = "[1.50]" if verb is Verb.COMPLETE else None
            settled.error = '{"code":"x","message":"y","retryable":true}' if verb is Verb.FAIL else None
            assert (await settle(database, [settled])).answers[0].ok
        ids.append(job_id)
    cancelled = await put_one(database, lane="cancelled")
    await cancel(database, [cancelled], TENANT, "enough")
    await append(database, [NewEvent(ids[0], "log", '{"level":"info","message":"posted"}')])
    ids.append(cancelled)
    before = await story_of(database, ids)
    await downgrade(database_url, "0008")
    assert await database.fetchval("SELECT to_regclass('queued')") is None
    assert await database.fetchval("SELECT count(*) FROM events WHERE job_id = $1", ids[5]) == 4
    await migrate(database_url)
    assert await story_of(database, ids) == before
    await invariants.check_all(database)
    # And they go on from there.
    token = await claim_one(database, ids[0])
    assert (await settle(database, [Settlement(ids[0], token, Verb.COMPLETE, result="1")])).answers[0].ok
    assert [each[1:] for each in await log_of(database, ids[0])] == [
        ("queued", "enqueue"),
        ("loading", "claim"),
        ("working", "start"),
        ("done", "complete"),
    ]


OLD_DELIVERIES = """
INSERT INTO deliveries (job_id, seq, type, state, tries, last_status, last_error, next_try_at, delivered_at, host, leased_until)
VALUES ($1, 1, 'queued', 'delivered', 1, 204, NULL, now(), now(), 'a', NULL),
       ($1, 2, 'loading', 'given_up', 8, 500, 'no', now(), NULL, 'a', NULL),
       ($1, 3, 'working', 'pending', 2, 503, 'busy', now() + interval '1 hour', NULL, 'a', now()),
       ($2, 1, 'queued', 'refused', 1, 410, 'gone', now(), NULL, 'b', NULL),
       ($2, 2, 'loading', 'pending', 0, NULL, NULL, now(), NULL, 'b', NULL)
"""
OLD_EVENTS = """
INSERT INTO events (job_id, seq, type, state, reason, data)
SELECT job_id, seq, 'queued', 'queued', 'enqueue', '{}' FROM unnest($1::text[]) AS job_id, generate_series(1, 3) AS seq
"""


async def test_events_and_deliveries_become_days_with_all_their_rows_and_back(
    database: Database, database_url: str
) -> None:
    """Also those of a job that somebody's clock has put into the future."""
    await downgrade(database_url, "0010")
    now = datetime.now(UTC)
    ids = [str(ULID.from_datetime(now + timedelta(days=n))) for n in (-400, 0, 2, 50)]
    # By hand: the verbs know no table of that version.
    await database.execute(
        "INSERT INTO jobs (id, tenant, queue, lane, kind, state, payload, completed_at, history, webhook_url, seq) "
        "SELECT id, 'default', 'default', 'noop', 'noop', 'done', '{}', now(), '-', 'http://a/', 3 "
        "FROM unnest($1::text[]) AS id",
        ids,
    )
    await database.execute(OLD_EVENTS, ids)
    await database.execute(OLD_DELIVERIES, ids[0], ids[3])
    logs = await database.fetch("SELECT * FROM events ORDER BY job_id, seq")
    listed = f"SELECT {SHOWN} FROM {{}} AS d ORDER BY job_id, seq"
    before = await database.fetch(listed.format("deliveries"))
    await migrate(database_url)
    assert await database.fetch("SELECT * FROM events ORDER BY job_id, seq") == logs
    after = await database.fetch(listed.format(outbox.ALL_DELIVERIES))
    assert [_comparable(row) for row in after] == [_comparable(row) for row in before]
    where = await database.fetch(
        "SELECT job_id, tableoid::regclass::text AS lies_in FROM events ORDER BY 1, seq"
    )
    assert [row["lies_in"] for row in where[::3]] == [
        *[f"events_{now + timedelta(days=1):%Y%m%d}"] * 2,
        f"events_{now + timedelta(days=2):%Y%m%d}",
        "events_rest",
    ]
    assert await database.fetchval("SELECT count(*) FROM outbox WHERE leased_until IS NOT NULL") == 1
    # What nobody sees any more does not come back; everything else does.
    await database.execute(
        "INSERT INTO events (job_id, seq, type, state) VALUES ('0', 1, 'queued', 'queued')"
    )
    await downgrade(database_url, "0010")
    assert await database.fetch("SELECT * FROM events ORDER BY job_id, seq") == logs
    back = await database.fetch(listed.format("deliveries"))
    assert [_comparable(row) for row in back] == [_comparable(row) for row in before]
    await migrate(database_url)
    assert await database.fetch("SELECT * FROM events ORDER BY job_id, seq") == logs


SHOWN = ", ".join(f"d.{name}" for name in outbox.Delivery.__struct_fields__)


def _comparable(row: asyncpg.Record) -> dict[str, object]:
    """When it is due says something only of what is pending."""
    shown = dict(row)
    return shown if shown["state"] == "pending" else {**shown, "next_try_at": None}


async def test_a_server_of_the_version_before_cannot_write_a_webhook_that_nobody_would_send(
    database: Database,
) -> None:
    with pytest.raises(asyncpg.NotNullViolationError, match="state"):
        await database.execute(
            "INSERT INTO deliveries (job_id, seq, type, host) VALUES ('a', 1, 'queued', 'h')"
        )


async def test_a_server_of_the_version_before_cannot_take_in_what_nobody_would_find(
    database: Database,
) -> None:
    with pytest.raises(asyncpg.NotNullViolationError, match="history"):
        await database.execute(TWO_ALIKE)
