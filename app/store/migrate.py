"""Schema migrations: safe to run from several processes at once, at every start, and beside a server that works.

One process at a time, by an advisory lock in a transaction of its own; each migration is a transaction by itself. None
waits long for a table's lock, because everybody else would wait behind it: it gives up, and is tried again. Indexes on
tables that may be large are built by `build_index`, which holds nobody up.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import sqlalchemy as sa
from alembic import command, op
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from app.store import locks
from app.store.database import CONNECT_SECONDS, asyncpg_url, translated

# Transaction-level, so that it is safe behind PgBouncer and gone with the connection. Tried, not waited for: who waits
# has a snapshot, and an index that is built concurrently waits for all of those.
TRY_LOCK = sa.text(f"SELECT pg_try_advisory_xact_lock({locks.MIGRATE})")
TRY_AGAIN_SECONDS = 0.2
# The transaction with the lock is idle for as long as the migrations take. Said last: until its next statement a
# transaction keeps the snapshot of the one before.
STAY = sa.text("SET LOCAL idle_in_transaction_session_timeout = 0")
LOCK_TIMEOUT = "SET LOCAL lock_timeout = '3s'"


async def migrate(url: str) -> str:
    """Bring the schema to the newest revision; returns it."""
    engine = _engine(url)
    try:
        with translated(), _unwrapped():
            async with _alone(engine), engine.connect() as connection:
                await connection.run_sync(_upgrade)
    finally:
        await engine.dispose()
    return newest_revision()


@contextlib.asynccontextmanager
async def _alone(engine: AsyncEngine) -> AsyncIterator[None]:
    while True:
        async with engine.begin() as connection:
            if (await connection.execute(TRY_LOCK)).scalar():
                await connection.execute(STAY)
                yield
                return
        await asyncio.sleep(TRY_AGAIN_SECONDS)


IS_BROKEN = "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass('{name}') AND NOT indisvalid"


def build_index(name: str, definition: str) -> None:
    """For migrations: build an index while the table is written to. In a migration that does nothing else, since
    this cannot be taken back: one that was broken off is run again, and finds what is there already."""
    with op.get_context().autocommit_block():
        if op.get_bind().execute(sa.text(IS_BROKEN.format(name=name))).scalar():
            op.execute(f"DROP INDEX CONCURRENTLY {name}")
        op.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {definition}")


def drop_index(name: str) -> None:
    """The same for one that nobody needs any more."""
    with op.get_context().autocommit_block():
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")


@contextlib.contextmanager
def _unwrapped() -> Iterator[None]:
    """SQLAlchemy wraps the driver's errors; what lies beneath tells whether the database is only away."""
    try:
        yield
    except sa.exc.DBAPIError as problem:
        beneath = None if problem.orig is None else problem.orig.__cause__
        raise beneath or problem from problem


def newest_revision() -> str:
    return ScriptDirectory.from_config(_config()).get_current_head() or ""


async def current_revision(connection: Any) -> str | None:
    """The database's revision, read over an asyncpg connection."""
    try:
        return await connection.fetchval("SELECT version_num FROM alembic_version")  # type: ignore[no-any-return]
    except asyncpg.UndefinedTableError:
        return None


def scripts_folder() -> Path:
    """`alembic/` lies beside the package in a checkout and inside it in an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "alembic"
    return shipped if shipped.is_dir() else package.parent / "alembic"


def _engine(url: str) -> AsyncEngine:
    async def connect() -> Any:
        return await asyncpg.connect(asyncpg_url(url), timeout=CONNECT_SECONDS, statement_cache_size=0)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)

    @sa.event.listens_for(engine.sync_engine, "begin")
    def give_up_soon(connection: sa.Connection) -> None:
        # What runs outside of a transaction (see build_index) locks nobody out, and waits for whom it has to.
        if connection.get_isolation_level() != "AUTOCOMMIT":
            connection.exec_driver_sql(LOCK_TIMEOUT)

    return engine


def _upgrade(connection: sa.Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    current = MigrationContext.configure(connection).get_current_revision()
    # The look has begun a transaction, and each migration wants its own.
    connection.rollback()
    if current is not None and current not in known:
        # A newer version migrated already and we are the old one in a rolling deploy: leave it be.
        return
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
