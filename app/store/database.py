"""The connection pool, and the one place where a database that is away turns into `Unavailable`.

Statements here are short and set-based: acquire, run one statement, release. Nothing holds a
connection across a network call.
"""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, ClassVar, Protocol, TypeVar

import asyncpg
import structlog

from app.errors import DatabaseUnavailable, InvalidRequest
from app.store.outage import Outage, cause_of
from app.telemetry import (
    DATABASE_CONNECTIONS,
    DATABASE_CONNECTIONS_MOST,
    DATABASE_WAIT_SECONDS,
    DATABASE_WAITING,
)

log = structlog.get_logger()

# Nothing of such a statement was done: PostgreSQL undid it to let others go on (40001, 40P01), or did not even
# begin because its prepared form no longer fits the table (a newer version added a column).
UNDONE = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidCachedStatementError,
)

# asyncpg shows a lost or refused connection in many ways; all of them mean "try again later". Of PostgreSQL's own
# errors it is whole classes: 08 connection, 40 rolled back, 53 out of resources, 57 an operator stepped in,
# 58 the machine below it.
AWAY = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.TransactionRollbackError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InvalidCatalogNameError,
    # A password that is just being changed, a role that is just being made.
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.LockNotAvailableError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TransactionTimeoutError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
)


# PostgreSQL keeps no NUL, neither in text (22021) nor in JSON (22P05).
NOT_TEXT = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)


class Runner(Protocol):
    """What runs statements: the database (each its own commit) or one connection in a transaction."""

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]: ...

    async def execute(self, statement: str, *arguments: Any) -> str: ...


RETRY_AFTER_SECONDS = 2.0
CONNECT_SECONDS = 5.0
# A database that is only busy is waited for longer than one that does not answer.
ACQUIRE_SECONDS = 15.0
COMMAND_SECONDS = 30.0
# How long a connection that nobody needed is kept at hand; the pool closes those that it got back after a while.
AT_HAND_SECONDS = 60.0
# How often a statement that was undone is run again, and the longest pause before it.
SECOND_TRIES = 4
PAUSE_SECONDS = 0.05

T = TypeVar("T")


# Every statement is planned once: what the store asks again and again costs more to plan than to run. A plan that
# was made while a table was empty must still be good when it is full, so each is written such that the planner has
# only one way: LATERAL … LIMIT 1, OFFSET 0, = ANY (ARRAY(…)) and ranges of one (rows.looked_up) are fences, and so are
# conditions of indexes that follow only where their first column is named (see tests/store/test_first_plans.py). To
# read a small table whole, or as a bitmap and then to sort it, seems cheap to it: until it is not small any more.
PLANNING = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
}
# A process that is frozen in the middle of a transaction (a laptop that sleeps) must not keep its locks from the others:
# no sweeper of the whole fleet would get its turn until it wakes up. Nothing of ours pauses for long in there.
SESSION = PLANNING | {"idle_in_transaction_session_timeout": "10s"}
# The same for one transaction: behind a PgBouncer a session is nobody's own.
SESSION_HERE = "; ".join(
    f"SET LOCAL {name} = '{value}'" for name, value in SESSION.items() if name != "plan_cache_mode"
)
# The only way into an inverted index is a bitmap.
INVERTED = "SET LOCAL enable_bitmapscan = on"

IN_ORDER = (
    "SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL enable_seqscan = off; "
    "SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off"
)
AS_EVER = "RESET plan_cache_mode; RESET enable_seqscan; RESET enable_bitmapscan; RESET enable_sort"


# PostgreSQL's own types have the same numbers everywhere; what is made later, or at initdb, may have others.
OWN_TYPES_BELOW = 10_000


class Connection(asyncpg.Connection):  # type: ignore[misc]  # the driver has no types
    """What one connection has found out about PostgreSQL's own types, the others know as well.

    The driver asks for arrays of numbers or times anew on each connection, and that costs PostgreSQL more than all
    that the first caller of the connection wanted. There is no public way to tell it.
    """

    __slots__ = ()
    _own_types: ClassVar[dict[frozenset[int], Any]] = {}

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> Any:
        wanted = frozenset(typeoids)
        known = self._own_types.get(wanted)
        if known is not None:
            return known
        found = await super()._introspect_types(typeoids, timeout)
        # Without a name it has taken the place of the statement it was asked for, which must then be prepared again.
        if found[1].name and max(wanted) < OWN_TYPES_BELOW:
            self._own_types[wanted] = found
        return found


class Database:
    """A pool that heals by itself. `open` once, `close` once."""

    def __init__(self, url: str, *, pooled: bool = False, size: int = 10, fences: bool = False) -> None:
        """`pooled`: behind a PgBouncer in transaction mode the server's connection changes under us, and with
        it the prepared statements; and it refuses start-up settings that it does not know.

        `fences`: what is read for a tenant is read as a role that sees nothing else (see migration 0021)."""
        self.fences = fences
        self._url = asyncpg_url(url)
        self._pooled = pooled
        self._statement_cache = 0 if pooled else 256
        self._settings = {"application_name": "foreman"} | ({} if pooled else SESSION)
        self._size = size
        self._pool: asyncpg.Pool | None = None
        # Taken from the pool and not in use, with the moment since when, the last used at the end. To give a
        # connection back to the pool costs more than most statements: a task for each.
        self._at_hand: deque[tuple[asyncpg.pool.PoolConnectionProxy, float]] = deque()
        # How many wait for the pool to have one: then nothing is kept at hand.
        self._waiting = 0
        self.outage = Outage("database")
        # Its URL may be another one, and be wrong while everything else works.
        self.listening = Outage("listen", settled_seconds=0, within=self.outage)

    async def open(self) -> None:
        """Connect; raises `Unavailable` when the database does not answer."""
        with translated(self.outage):
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=1,
                max_size=self._size,
                timeout=CONNECT_SECONDS,
                command_timeout=COMMAND_SECONDS,
                statement_cache_size=self._statement_cache,
                max_inactive_connection_lifetime=300,
                reset=_nothing_to_reset,
                connection_class=Connection,
                server_settings=self._settings,
            )
        if self.fences and not await self.fetchval(MAY_FENCE):
            log.warning("database.no_row_security", problem="The role foreman_tenant could not be made.")
            self.fences = False

    def measured(self) -> None:
        """The metrics tell of this pool: that of the process, and not of one that was opened in passing."""
        DATABASE_CONNECTIONS.labels("in_use").set_function(lambda: self._connections() - self._idle())
        DATABASE_CONNECTIONS.labels("idle").set_function(self._idle)
        DATABASE_CONNECTIONS_MOST.set(self._size)
        DATABASE_WAITING.set_function(lambda: self._waiting)

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                while self._at_hand:
                    await pool.release(self._at_hand.pop()[0])
                await asyncio.wait_for(pool.close(), 5)
            except AWAY:
                self._at_hand.clear()
                pool.terminate()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy]:
        if self._pool is None:
            raise DatabaseUnavailable("The database connection is closed.", retry_after=RETRY_AFTER_SECONDS)
        pool = self._pool
        with translated(self.outage):
            connection = await self._take(pool)
            try:
                yield connection
            except BaseException:
                # What it was doing may not have ended: the pool sees to that.
                await pool.release(connection)
                raise
            await self._give_back(pool, connection)
        if self.outage.cause is not None:
            self.outage.succeeded()

    async def _take(self, pool: asyncpg.Pool) -> asyncpg.pool.PoolConnectionProxy:
        while self._at_hand:
            connection, _ = self._at_hand.pop()
            if not _is_lost(connection):
                return connection
            await pool.release(connection)
        self._waiting += 1
        began = time.monotonic()
        try:
            return await pool.acquire(timeout=ACQUIRE_SECONDS)
        finally:
            self._waiting -= 1
            DATABASE_WAIT_SECONDS.observe(time.monotonic() - began)

    def _connections(self) -> int:
        return 0 if self._pool is None else int(self._pool.get_size())

    def _idle(self) -> int:
        return 0 if self._pool is None else int(self._pool.get_idle_size()) + len(self._at_hand)

    async def _give_back(self, pool: asyncpg.Pool, connection: asyncpg.pool.PoolConnectionProxy) -> None:
        if self._waiting or self._pool is None:
            await pool.release(connection)
            return
        now = time.monotonic()
        self._at_hand.append((connection, now))
        if now - self._at_hand[0][1] > AT_HAND_SECONDS:
            await pool.release(self._at_hand.popleft()[0])

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy]:
        async with self.connection() as connection, self.begin(connection):
            yield connection

    @contextlib.asynccontextmanager
    async def begin(self, connection: Any) -> AsyncIterator[None]:
        """A transaction with the settings of every session of ours."""
        async with connection.transaction():
            if self._pooled:
                await connection.execute(SESSION_HERE)
            yield

    async def _once(self, run: Callable[[Any], Awaitable[T]]) -> T:
        """Run one statement, as a whole transaction."""
        async with self.connection() as connection:
            if not self._pooled:
                return await _until_done(lambda: run(connection))

            async def planned() -> T:
                async with self.begin(connection):
                    return await run(connection)

            return await _until_done(planned)

    def of(self, tenant: str) -> "Reads":
        """For what is read on behalf of a tenant, and of nobody else."""
        return _TenantReads(self, tenant) if self.fences else self

    # Each of these is a whole transaction, and tried again when PostgreSQL undid it. A block that is a transaction
    # of several statements is not: only who wrote it knows what else happened in it. It raises `Unavailable`.

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        return await self._once(lambda connection: connection.fetch(statement, *arguments))

    async def fetch_planned(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        """For filters that a caller chose: planned anew, for these very values."""
        return await self._fetch_set("SET LOCAL plan_cache_mode = force_custom_plan", statement, *arguments)

    async def fetch_inverted(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        """For a look-up in an inverted index."""
        return await self._fetch_set(INVERTED, statement, *arguments)

    async def fetch_in_order(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        """For a walk along an index that stops at its LIMIT: planned for these very values, and never by reading all
        there is and sorting that."""
        return await self._fetch_set(IN_ORDER, statement, *arguments)

    async def _fetch_set(self, settings: str, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        async def once() -> list[asyncpg.Record]:
            async with self.begin(connection):
                await connection.execute(settings)
                rows: list[asyncpg.Record] = await connection.fetch(statement, *arguments)
                return rows

        async with self.connection() as connection:
            return await _until_done(once)

    async def fetchrow(self, statement: str, *arguments: Any) -> asyncpg.Record | None:
        return await self._once(lambda connection: connection.fetchrow(statement, *arguments))

    async def fetchval(self, statement: str, *arguments: Any) -> Any:
        return await self._once(lambda connection: connection.fetchval(statement, *arguments))

    async def execute(self, statement: str, *arguments: Any) -> str:
        return str(await self._once(lambda connection: connection.execute(statement, *arguments)))


class Reads(Protocol):
    """What reads of a tenant are asked of: the database, or the part of it that the tenant sees."""

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]: ...

    async def fetch_planned(self, statement: str, *arguments: Any) -> list[asyncpg.Record]: ...

    async def fetchrow(self, statement: str, *arguments: Any) -> asyncpg.Record | None: ...

    async def fetchval(self, statement: str, *arguments: Any) -> Any: ...


# Set for one transaction, so that it is gone with it, also behind a PgBouncer.
AS_TENANT = "SELECT set_config('role', 'foreman_tenant', true), set_config('foreman.tenant', $1, true)"
MAY_FENCE = """
SELECT coalesce((SELECT pg_has_role(current_user, oid, 'MEMBER') FROM pg_roles WHERE rolname = 'foreman_tenant'), false)
   AND (SELECT relrowsecurity FROM pg_class WHERE oid = to_regclass('jobs'))
"""


class _TenantReads:
    """Reads as a role to which PostgreSQL shows one tenant's rows only: whatever a statement forgot to ask."""

    __slots__ = ("_database", "_tenant")

    def __init__(self, database: Database, tenant: str) -> None:
        self._database = database
        self._tenant = tenant

    async def _run(self, run: Callable[[Any], Awaitable[T]], settings: str = "") -> T:
        async def once() -> T:
            async with self._database.begin(connection):
                if settings:
                    await connection.execute(settings)
                await connection.execute(AS_TENANT, self._tenant)
                return await run(connection)

        async with self._database.connection() as connection:
            return await _until_done(once)

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        return await self._run(lambda connection: connection.fetch(statement, *arguments))

    async def fetch_planned(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        settings = "SET LOCAL plan_cache_mode = force_custom_plan"
        return await self._run(lambda connection: connection.fetch(statement, *arguments), settings)

    async def fetchrow(self, statement: str, *arguments: Any) -> asyncpg.Record | None:
        return await self._run(lambda connection: connection.fetchrow(statement, *arguments))

    async def fetchval(self, statement: str, *arguments: Any) -> Any:
        return await self._run(lambda connection: connection.fetchval(statement, *arguments))


async def in_transaction(runner: Runner, steps: Callable[[Runner], Awaitable[T]]) -> T:
    """Take these steps in the runner's transaction, or in one of their own, which is begun anew when PostgreSQL undid it:
    so they must do nothing but run statements."""
    if not isinstance(runner, Database):
        return await steps(runner)

    async def once() -> T:
        async with runner.begin(connection):
            return await steps(connection)

    async with runner.connection() as connection:
        return await _until_done(once)


async def _until_done(once: Callable[[], Awaitable[T]]) -> T:
    for _ in range(SECOND_TRIES):
        try:
            return await once()
        except UNDONE:
            # Not in step with whom it collided with.
            await asyncio.sleep(PAUSE_SECONDS * random.random())
    return await once()


def _is_lost(connection: asyncpg.pool.PoolConnectionProxy) -> bool:
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        # The pool has taken it back by itself when its end was noticed.
        return True


async def _nothing_to_reset(_connection: Any) -> None:
    """asyncpg would send four statements each time a connection goes back to the pool: a second round trip
    for every first. Nothing here leaves anything in a session: no LISTEN, no SET, no session-level lock.
    """


@contextlib.contextmanager
def translated(outage: Outage | None = None) -> Any:
    """Turn every way in which the database can be away into one error that names the cause."""
    try:
        yield
    except NOT_TEXT as problem:
        # Checked where texts come in; this is for the place where somebody forgot.
        raise InvalidRequest("There is a NUL character in a text, which cannot be kept.") from problem
    except AWAY as problem:
        cause = cause_of(problem) if outage is None else outage.failed(problem)
        raise DatabaseUnavailable(cause.text, retry_after=RETRY_AFTER_SECONDS) from problem


def asyncpg_url(url: str) -> str:
    """Accept SQLAlchemy's spelling of a URL as well."""
    return url.replace("postgresql+asyncpg://", "postgresql://", 1)


async def connect(url: str, outage: Outage | None = None) -> asyncpg.Connection:
    """One connection outside the pool, for LISTEN."""
    with translated(outage):
        connection = await asyncpg.connect(
            asyncpg_url(url),
            timeout=CONNECT_SECONDS,
            statement_cache_size=0,
            server_settings={"application_name": "foreman"},
        )
    if outage is not None:
        outage.succeeded()
    return connection
