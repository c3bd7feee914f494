"""Schema migrations: safe to run from several processes at once, and at every start."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from app.store import locks
from app.store.database import CONNECT_SECONDS, asyncpg_url, translated

# Transaction-level, so that it is safe behind PgBouncer and gone with the connection.
LOCK = sa.text(f"SELECT pg_advisory_xact_lock({locks.MIGRATE})")


async def migrate(url: str) -> str:
    """Bring the schema to the newest revision; returns it."""
    engine = _engine(url)
    try:
        with translated(), _unwrapped():
            async with engine.begin() as connection:
                await connection.execute(LOCK)
                await connection.run_sync(_upgrade)
    finally:
        await engine.dispose()
    return newest_revision()


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

    return create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)


def _upgrade(connection: sa.Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in known:
        # A newer version migrated already and we are the old one in a rolling deploy: leave it be.
        return
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
