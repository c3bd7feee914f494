"""Why the database cannot be used, in words, and one voice that says so for the whole process.

Every statement of a process goes through one of these: the first that fails is told with its cause, then once
a minute, and once more when the database is back. What fails meanwhile adds nothing to the log.
"""

import socket
import time
from dataclasses import dataclass
from enum import StrEnum

import asyncpg
import structlog

from app.telemetry import DATABASE_UP

log = structlog.get_logger()

# What PostgreSQL itself says; for those who wait until it lets them in.
PostgresError = asyncpg.PostgresError

REMIND_SECONDS = 60.0
# Statements fail late, too: the database is back when one succeeds and none has failed for so long.
SETTLED_SECONDS = 1.0
# A full disk lets small writes through now and then.
FULL_SECONDS = 2.0
WITHIN_SECONDS = 3.0
MAX_PROBLEM = 300


class Trouble(StrEnum):
    AWAY = "away"
    # It will not get better by waiting: a wrong password, role, name or host.
    REFUSED = "refused"
    FULL = "full"
    # It is there, only this statement had to give way.
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Cause:
    trouble: Trouble
    # For everybody, so it names neither role nor host.
    text: str


AWAY = Cause(Trouble.AWAY, "The database is not reachable right now.")
FULL = Cause(Trouble.FULL, "The database's disk is full.")
AWAY_SINCE_FULL = Cause(Trouble.FULL, "The database is not reachable right now; its disk was full.")

# The first that fits.
_CAUSES: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], Cause], ...] = (
    (asyncpg.DiskFullError, FULL),
    (
        asyncpg.InvalidAuthorizationSpecificationError,
        Cause(Trouble.REFUSED, "The database refuses our role or its password."),
    ),
    (asyncpg.ClientConfigurationError, Cause(Trouble.REFUSED, "The URL of the database is wrong.")),
    (asyncpg.InvalidCatalogNameError, Cause(Trouble.REFUSED, "There is no database of that name.")),
    (asyncpg.InsufficientPrivilegeError, Cause(Trouble.REFUSED, "Our role may not use the database.")),
    (socket.gaierror, Cause(Trouble.REFUSED, "The host of the database cannot be found.")),
    (
        asyncpg.CannotConnectNowError,
        Cause(Trouble.AWAY, "The database is starting, stopping or recovering."),
    ),
    (asyncpg.ReadOnlySQLTransactionError, Cause(Trouble.AWAY, "The database can only be read right now.")),
    (asyncpg.TooManyConnectionsError, Cause(Trouble.BUSY, "The database has no connection left for us.")),
    (asyncpg.OutOfMemoryError, Cause(Trouble.BUSY, "The database is out of memory.")),
    (
        (
            asyncpg.QueryCanceledError,
            asyncpg.LockNotAvailableError,
            asyncpg.DeadlockDetectedError,
            asyncpg.SerializationError,
        ),
        Cause(Trouble.BUSY, "The database is too busy right now."),
    ),
    (TimeoutError, Cause(Trouble.AWAY, "The database does not answer in time.")),
)


# Where tables and write-ahead log share a disk, PostgreSQL itself stops when that is full. It says why on the
# connection that it closes and in its own log, and neither has an error class for it.
NO_SPACE = "No space left on device"


def cause_of(problem: BaseException) -> Cause:
    if NO_SPACE in str(problem):
        return FULL
    return next((cause for kind, cause in _CAUSES if isinstance(problem, kind)), AWAY)


def words_of(problem: BaseException) -> str:
    """What the database or the network said, for the log: its first line, never the details with values.

    Of an end of PostgreSQL's own log it is the line that says what is full.
    """
    said = str(problem.args[-1] if isinstance(problem, OSError) and problem.args else problem)
    lines = said.splitlines() or [""]
    return (
        next((line for line in lines if NO_SPACE in line), lines[0])[:MAX_PROBLEM] or type(problem).__name__
    )


class Outage:
    """`cause` is None while all is well.

    `within`: what is part of another says nothing while that one is out, which is found out a moment later.
    """

    def __init__(
        self, of: str, *, settled_seconds: float = SETTLED_SECONDS, within: "Outage | None" = None
    ) -> None:
        self.cause: Cause | None = None
        self._log = log.bind(of=of)
        self._gauge = DATABASE_UP.labels(of)
        self._gauge.set(1)
        self._settled_seconds = settled_seconds
        self._within = within
        self._began = 0.0
        self._failed = 0.0
        # What was last told, and when.
        self._told: Cause | None = None
        self._told_at = 0.0
        self._busy_told_at = -REMIND_SECONDS

    def failed(self, problem: BaseException) -> Cause:
        cause = cause_of(problem)
        now = time.monotonic()
        if cause.trouble is Trouble.BUSY:
            if now - self._busy_told_at >= REMIND_SECONDS:
                self._busy_told_at = now
                self._log.warning("database.busy", cause=cause.text, problem=words_of(problem))
            return cause
        if self.is_full and cause.trouble is Trouble.AWAY:
            # PostgreSQL itself stops when its log no longer fits; then it cannot say so any more.
            cause = AWAY_SINCE_FULL
        if self.cause is None:
            self._began = now
            self._gauge.set(0)
        self.cause = cause
        self._failed = now
        if self._within is None or (self._within.cause is None and now - self._began >= WITHIN_SECONDS):
            self._tell(cause, problem, now)
        return cause

    def _tell(self, cause: Cause, problem: BaseException, now: float) -> None:
        """Once, once more when it turns out to be something else, and then now and then."""
        told, seconds = self._told, round(now - self._began, 1)
        if told is not None and told.trouble is cause.trouble and now - self._told_at < REMIND_SECONDS:
            return
        name = "database.unavailable" if told is None else "database.still_unavailable"
        self._log.error(name, cause=cause.text, problem=words_of(problem), seconds=seconds)
        self._told, self._told_at = cause, now

    def succeeded(self, *, has_room: bool = False) -> None:
        """A statement went through. A full disk can still be read: it is over once there is room again."""
        if self.cause is None or (self.is_full and not has_room):
            return
        now = time.monotonic()
        if now - self._failed < (FULL_SECONDS if self.is_full else self._settled_seconds):
            return
        self.cause = None
        self._gauge.set(1)
        if self._told is not None:
            self._told = None
            self._log.warning("database.back", seconds=round(now - self._began, 1))

    @property
    def is_full(self) -> bool:
        return self.cause is not None and self.cause.trouble is Trouble.FULL
