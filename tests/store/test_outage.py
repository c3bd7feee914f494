"""Every cause has its sentence; an outage is told once, then now and then, and once when it is over."""

import socket
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from app.embedded import EmbeddedPostgresError
from app.store.database import AWAY
from app.store.outage import REMIND_SECONDS, Outage, Trouble, cause_of

FULL = asyncpg.DiskFullError('could not extend file "base/5/16384": No space left on device')
# Its last words on a connection, when the write-ahead log no longer fits.
PANIC = asyncpg.ConnectionDoesNotExistError(
    "connection was closed in the middle of operation: "
    'could not write to file "pg_wal/xlogtemp.17": No space left on device'
)
GONE = ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 5432)")


@pytest.mark.parametrize(
    ("problem", "trouble", "words"),
    [
        (asyncpg.InvalidPasswordError('password authentication failed for user "x"'), "refused", "password"),
        (asyncpg.InvalidAuthorizationSpecificationError('role "x" does not exist'), "refused", "role"),
        (asyncpg.InvalidCatalogNameError('database "x" does not exist'), "refused", "no database"),
        (asyncpg.InsufficientPrivilegeError("permission denied for schema public"), "refused", "may not"),
        (socket.gaierror(-2, "Name or service not known"), "refused", "host"),
        (asyncpg.ClientConfigurationError("could not determine user name"), "refused", "URL"),
        (FULL, "full", "disk is full"),
        (PANIC, "full", "disk is full"),
        (OSError(28, "No space left on device"), "full", "disk is full"),
        (GONE, "away", "not reachable"),
        (asyncpg.CannotConnectNowError("the database system is starting up"), "away", "starting"),
        (asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT"), "away", "read"),
        (TimeoutError(), "away", "in time"),
        (asyncpg.TooManyConnectionsError("sorry, too many clients already"), "busy", "connection"),
        (asyncpg.QueryCanceledError("canceling statement"), "busy", "busy"),
    ],
)
def test_every_cause_has_its_sentence(problem: Exception, trouble: str, words: str) -> None:
    cause = cause_of(problem)
    assert cause.trouble is Trouble(trouble)
    assert words in cause.text
    # What is told to everybody names neither role nor database.
    assert '"x"' not in cause.text
    assert isinstance(problem, (*AWAY, asyncpg.InsufficientPrivilegeError))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let time pass."""
    now = 1000.0

    def passes(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    return passes


def events(lines: list[Any]) -> list[str]:
    return [line["event"].removeprefix("database.") for line in lines]


def test_it_is_told_once_then_every_minute_and_when_it_is_over(passes: Callable[[float], None]) -> None:
    with capture_logs() as lines:
        watched = Outage("database")
        for _ in range(1000):
            watched.failed(GONE)
            passes(0.1)
        assert events(lines) == ["unavailable", "still_unavailable"]
        passes(REMIND_SECONDS)
        watched.failed(GONE)
        # One that went through while others still fail is not yet the end.
        watched.succeeded()
        assert watched.cause is not None
        passes(1)
        watched.succeeded()
        watched.succeeded()
    assert watched.cause is None
    assert events(lines) == ["unavailable", "still_unavailable", "still_unavailable", "back"]
    assert lines[0]["cause"] == "The database is not reachable right now."
    assert "127.0.0.1" in lines[0]["problem"]
    assert lines[-1]["seconds"] == pytest.approx(161, abs=1)


def test_a_full_disk_is_over_when_there_is_room_not_when_something_can_be_read(
    passes: Callable[[float], None],
) -> None:
    with capture_logs() as lines:
        watched = Outage("database")
        watched.failed(FULL)
        passes(5)
        watched.succeeded()
        assert watched.is_full
        # PostgreSQL stops over it: that is the same outage still, and the cause is not forgotten.
        assert "disk was full" in watched.failed(GONE).text
        passes(5)
        watched.succeeded(has_room=True)
    assert not watched.is_full
    assert events(lines) == ["unavailable", "back"]


def test_of_the_end_of_a_log_the_line_that_names_the_full_disk_is_told() -> None:
    problem = EmbeddedPostgresError(
        "PostgreSQL did not start. The end of /data/postgres.log:\n"
        "2024-01-01 00:00:00 UTC [17] LOG:  database system was not properly shut down\n"
        '2024-01-01 00:00:01 UTC [17] FATAL:  could not write to file "pg_wal/xlogtemp.17": No space left on device\n'
        "2024-01-01 00:00:02 UTC [16] LOG:  startup process (PID 17) exited with exit code 1"
    )
    with capture_logs() as lines:
        watched = Outage("database")
        watched.failed(GONE)
        assert "disk is full" in watched.failed(problem).text
        assert "disk was full" in watched.failed(GONE).text
    assert events(lines) == ["unavailable", "still_unavailable"]
    assert lines[1]["problem"].endswith('xlogtemp.17": No space left on device')


def test_a_statement_that_had_to_give_way_is_no_outage(passes: Callable[[float], None]) -> None:
    with capture_logs() as lines:
        watched = Outage("database")
        for _ in range(100):
            watched.failed(asyncpg.QueryCanceledError("canceling statement due to statement timeout"))
            passes(1)
    assert watched.cause is None
    assert events(lines) == ["busy", "busy"]


def test_what_is_part_of_it_is_told_only_when_it_is_not_the_whole(passes: Callable[[float], None]) -> None:
    with capture_logs() as lines:
        whole = Outage("database")
        part = Outage("listen", settled_seconds=0, within=whole)
        part.failed(GONE)
        whole.failed(GONE)
        for _ in range(20):
            passes(1)
            part.failed(GONE)
        whole.succeeded()
        part.succeeded()
        assert [line["of"] for line in lines] == ["database", "database"]
        # Only LISTEN has a wrong URL.
        for _ in range(20):
            part.failed(GONE)
            passes(1)
        part.succeeded()
    assert [(line["of"], line["event"]) for line in lines[2:]] == [
        ("listen", "database.unavailable"),
        ("listen", "database.back"),
    ]
