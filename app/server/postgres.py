"""The database that is served from: the configured one, or an embedded one that is kept alive."""

import contextlib
import time
from collections.abc import Iterator

import structlog

from app.config import Settings, SettingsError
from app.embedded import EmbeddedPostgres, EmbeddedPostgresError
from app.server import ServeError
from app.store.outage import REMIND_SECONDS, Outage, Trouble, cause_of
from app.webhooks.outgoing import for_development

log = structlog.get_logger()

# What keeps dying is restarted ever more slowly.
RESTART_SECONDS = (0.1, 0.5, 1, 2, 5, 10)


def restart_seconds(failures: int) -> float:
    return RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)]


@contextlib.contextmanager
def database(settings: Settings) -> Iterator[tuple[Settings, EmbeddedPostgres | None]]:
    """The settings with a database that runs: the configured one, or an embedded one of our own."""
    if settings.database_url is not None:
        yield settings, None
        return
    postgres = EmbeddedPostgres(settings.data_dir)
    try:
        url = postgres.start()
        yield for_development(settings.model_copy(update={"database_url": url})), postgres
    except (EmbeddedPostgresError, SettingsError) as problem:
        raise ServeError(str(problem)) from problem
    finally:
        postgres.stop()


class PostgresKeeper:
    """Starts a killed embedded PostgreSQL again, ever more slowly while it does not come up (a full disk).

    `outage`: that of the database, where it is this process that uses it. Of a full disk it may hear from
    here alone: all connections can end without a word.
    """

    def __init__(self, postgres: EmbeddedPostgres | None, outage: Outage | None = None) -> None:
        self._postgres = postgres
        self._outage = outage
        self._failures = 0
        self._next_try_at = 0.0
        self._told_at: float | None = None

    def look(self) -> None:
        """From the main thread: PostgreSQL ends with the thread that started it."""
        if self._postgres is None or self._postgres.running or time.monotonic() < self._next_try_at:
            return
        if self._failures == 0:
            log.error("serve.postgres_died")
        try:
            self._postgres.start()
        except EmbeddedPostgresError as problem:
            now = time.monotonic()
            if self._told_at is None or now - self._told_at >= REMIND_SECONDS:
                log.error("serve.postgres_not_revived", problem=str(problem))  # noqa: TRY400 - it says it all
                self._told_at = now
            if self._outage is not None and cause_of(problem).trouble is Trouble.FULL:
                self._outage.failed(problem)
            self._next_try_at = now + restart_seconds(self._failures)
            self._failures += 1
        else:
            log.warning("serve.postgres_revived", tries=self._failures + 1)
            self._failures, self._told_at = 0, None
