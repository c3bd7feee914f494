"""Two replicas on one PostgreSQL, all of which may be killed, frozen or cut off from each other; and requests to them.

A request can be struck at an exact moment, without any clock: nobody can write to the table of jobs while we hold its
lock, so what was sent waits there, and is struck while it waits. Or commits wait for a standby that there is not: what
was asked for is then in the log on disk, and nobody has been told. A request that got no answer is sent again until it
has one.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar

import asyncpg
import httpx

from app.embedded import EmbeddedPostgres
from tests.conftest import Server
from tests.patience import PATIENCE, wait_until
from tests.processes import kill_at_once

T = TypeVar("T")

# What does not wait for its commit stays in memory for ten seconds: a crash takes with it all that was told too early.
# kill -9 loses nothing that was written to a file, so there is no need to wait for the disk.
KEEPS_ITS_WORD = {"synchronous_commit": "on", "full_page_writes": "on", "wal_writer_delay": "10s"}
# No lease and no delay ends while a test runs; the grace of a cancel ends soon, as does whatever a crash left undone.
SETTINGS = {
    "FOREMAN_CANCEL_GRACE_SECONDS": "0.2",
    "FOREMAN_SWEEP_SECONDS": "0.2",
    "FOREMAN_LOG_LEVEL": "warning",
}


class Strike(Enum):
    """What happens to a request that is under way, or to the fleet when nobody asks for anything."""

    # The replica that was asked: while its statement waits (which PostgreSQL may carry out all the same), and when all
    # is done but for the answer.
    KILL = "kill -9 of the replica"
    KILL_COMMITTED = "kill -9 of the replica, after the commit"
    TERM = "SIGTERM to the replica"
    # It goes on later, and meanwhile the same is asked of the other one.
    FREEZE = "SIGSTOP of the replica"
    FREEZE_OTHER = "SIGSTOP of the other replica"
    CUT = "pg_terminate_backend of all connections"
    CUT_COMMITTED = "pg_terminate_backend of all connections, after the commit"
    CRASH = "kill -9 of PostgreSQL"
    CRASH_COMMITTED = "kill -9 of PostgreSQL, after the commit"
    CRASH_ANSWERED = "kill -9 of PostgreSQL, after the answer"


AFTER_THE_COMMIT = {Strike.KILL_COMMITTED, Strike.CUT_COMMITTED, Strike.CRASH_COMMITTED}


@dataclass(frozen=True)
class Ask:
    method: str
    path: str
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    """What became of a request: its answers (two, when it was asked twice on purpose), and how often there was none."""

    answers: list[httpx.Response] = field(default_factory=list)
    lost: int = 0

    @property
    def tries(self) -> int:
        return len(self.answers) + self.lost

    @property
    def one(self) -> httpx.Response:
        return self.answers[0]

    @property
    def statuses(self) -> list[int]:
        return sorted(answer.status_code for answer in self.answers)


class Replica:
    def __init__(self, url: str, log_path: Path) -> None:
        self._place = socket.socket()
        # Bound, and not listening: nobody else is given the port while the replica is away.
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self.server = Server(url, self._place.getsockname()[1], SETTINGS, log_path=log_path)
        # A time-out only ends what hangs.
        self.client = httpx.Client(base_url=self.server.url, timeout=60 * PATIENCE)
        self._is_up = False

    def launch(self) -> None:
        """Started, and not waited for: meanwhile the other one is asked."""
        self._is_up = False
        self.server.launch()

    def is_up(self) -> bool:
        if not self._is_up:
            assert self.server.process is not None
            assert self.server.process.poll() is None, f"a replica has ended:\n{self.server.log()[-4000:]}"
            with contextlib.suppress(httpx.TransportError):
                self._is_up = self.client.get("/readyz").status_code == 200
        return self._is_up

    def close(self) -> None:
        self.client.close()
        self._place.close()
        if self.server.process is not None and self.server.process.poll() is None:
            self.server.kill()

    def signal(self, number: int) -> None:
        os.kill(self.server.pid, number)

    def kill(self) -> None:
        self.server.kill()
        self.launch()

    def stop(self) -> None:
        # One that has not even begun to serve knows nothing of signals yet.
        knows_signals = self._is_up
        code = self.server.stop(60 * PATIENCE)
        assert code == 0 or not knows_signals, f"SIGTERM ended it with {code}:\n{self.server.log()[-4000:]}"
        self.launch()

    def ask(self, ask: Ask) -> httpx.Response | Exception:
        try:
            answer = self.client.request(ask.method, ask.path, content=ask.content, headers=ask.headers)
        except httpx.TimeoutException:
            raise
        except httpx.TransportError as problem:
            return problem
        assert answer.status_code not in {500, 502, 504}, (ask, answer.text, self.server.log()[-4000:])
        if answer.status_code == 503:
            assert answer.headers["content-type"] == "application/problem+json", answer.headers
            assert answer.json()["code"] == "unavailable", answer.text
            assert int(answer.headers["retry-after"]) > 0
        return answer


@contextlib.contextmanager
def frozen(replica: Replica) -> Iterator[None]:
    replica.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        # If it was killed meanwhile, this is its successor, who is not frozen.
        replica.signal(signal.SIGCONT)


WAITS_FOR_STANDBY = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


class Fleet:
    def __init__(self, data_dir: Path, log_dir: Path) -> None:
        self.postgres = EmbeddedPostgres(data_dir, durable=False, options=KEEPS_ITS_WORD)
        self._log_dir = log_dir
        self.replicas: list[Replica] = []
        self._threads = ThreadPoolExecutor(2)
        self._runner = asyncio.Runner()
        self._eye: asyncpg.Connection | None = None

    def __enter__(self) -> "Fleet":
        self.postgres.start()
        try:
            self.replicas = [Replica(self.postgres.dsn, self._log_dir / f"replica-{n}.log") for n in range(2)]
            for replica in self.replicas:
                replica.launch()
            self.wait_for_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for replica in self.replicas:
            replica.close()
        self._threads.shutdown()
        if self._eye is not None:
            self._eye.terminate()
        self._runner.close()
        self.postgres.stop()

    def wait_for_all(self) -> None:
        wait_until(lambda: all(replica.is_up() for replica in self.replicas), 60, self.logs)

    def logs(self) -> str:
        return "\n".join(replica.server.log()[-4000:] for replica in self.replicas)

    # -- requests ------------------------------------------------------------------------------------------

    def send(self, ask: Ask, at: int, strike: Strike | None = None) -> Outcome:
        """Ask one of the replicas, and both in turn until there is an answer."""
        outcome = Outcome()
        at = self._choose(at)
        if strike is None:
            self._note(outcome, self.replicas[at].ask(ask))
        else:
            self._send_struck(ask, at, strike, outcome)

        def answered() -> bool:
            nonlocal at
            if not outcome.answers:
                at = self._choose(1 - at)
                self._note(outcome, self.replicas[at].ask(ask))
            return bool(outcome.answers)

        if not outcome.answers:
            wait_until(answered, 60, lambda: f"not answered: {ask}\n{self.logs()}")
        if outcome.lost:
            self.wait_for_open_transactions()
        return outcome

    def _choose(self, at: int) -> int:
        """This one; or the other, while it starts."""
        wait_until(lambda: any(replica.is_up() for replica in self.replicas), 60, self.logs)
        return at if self.replicas[at].is_up() else 1 - at

    @staticmethod
    def _note(outcome: Outcome, answer: httpx.Response | Exception) -> None:
        if isinstance(answer, httpx.ConnectError):
            return
        if isinstance(answer, Exception) or answer.status_code == 503:
            outcome.lost += 1
        else:
            outcome.answers.append(answer)

    def _send_struck(self, ask: Ask, at: int, strike: Strike, outcome: Outcome) -> None:
        asked, other = self.replicas[at], self.replicas[1 - at]
        if strike is Strike.CRASH_ANSWERED:
            self._note(outcome, asked.ask(ask))
            self._crash()
            return
        if strike is Strike.FREEZE_OTHER:
            self._note(outcome, self._ask_while_frozen(asked, ask, other).result())
            return
        if strike in AFTER_THE_COMMIT:
            with self._nobody_is_told():
                sent = self._threads.submit(asked.ask, ask)
                wait_until(lambda: sent.done() or self._fetch(WAITS_FOR_STANDBY))
                self.strike(strike, asked)
            self._note(outcome, sent.result())
            return
        with self._nobody_writes() as let_go:
            sent = self._threads.submit(asked.ask, ask)
            wait_until(lambda: sent.done() or self._somebody_waits())
            if strike is Strike.FREEZE:
                self._note(outcome, self._ask_while_frozen(other, ask, asked, let_go).result())
            elif strike is Strike.TERM:
                asked.signal(signal.SIGTERM)
                let_go()
                asked.stop()
            else:
                self.strike(strike, asked)
        self._note(outcome, sent.result())

    def _ask_while_frozen(
        self, asked: Replica, ask: Ask, other: Replica, first: Callable[[], None] = lambda: None
    ) -> "Future[httpx.Response | Exception]":
        """Until it is answered, or has to wait for what the frozen one holds."""
        with frozen(other):
            first()
            sent = self._threads.submit(asked.ask, ask)
            wait_until(lambda: sent.done() or self._somebody_waits())
        return sent

    # -- strikes -------------------------------------------------------------------------------------------

    def strike(self, strike: Strike, replica: Replica) -> None:
        """Now, whatever is under way."""
        match strike:
            case Strike.KILL | Strike.KILL_COMMITTED:
                replica.kill()
            case Strike.TERM:
                replica.stop()
            case Strike.CUT | Strike.CUT_COMMITTED:
                self._cut()
            case Strike.CRASH | Strike.CRASH_COMMITTED:
                self._crash()
            case _:
                raise ValueError(f"{strike} is about a request")

    def _cut(self) -> None:
        # Not in its WHERE, where PostgreSQL would be free to ask for it first.
        cut = self._fetch(
            "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'foreman'"
        )
        pids = [row["pid"] for row in cut]
        there = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'foreman' AND pid = ANY ($1::int[])"
        wait_until(lambda: not self._fetch(there, pids))

    def _crash(self) -> None:
        """kill -9 of all its processes at once: what was only in shared memory is gone."""
        postmaster = self.postgres.pid
        assert postmaster is not None
        kill_at_once(postmaster)
        wait_until(lambda: not self.postgres.running)
        if self._eye is not None:
            self._eye.terminate()
            self._eye = None
        self.postgres.start()

    # -- what PostgreSQL is doing --------------------------------------------------------------------------

    def run(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return self._runner.run(awaited())

    def _connect(self) -> asyncpg.Connection:
        return self.run(asyncpg.connect(self.postgres.dsn, server_settings={"application_name": "strikes"}))

    def _fetch(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        if self._eye is None:
            self._eye = self._connect()
        return list(self.run(self._eye.fetch(statement, *arguments)))

    @contextlib.contextmanager
    def _nobody_writes(self) -> Iterator[Callable[[], None]]:
        """Until it is let go of: whoever writes to the table of jobs, or locks a row, waits."""
        holder = self._connect()
        self.run(holder.execute("BEGIN"))
        self.run(holder.execute("LOCK TABLE jobs IN EXCLUSIVE MODE"))

        def let_go() -> None:
            if holder.is_closed():
                return
            # It may have crashed with all the others.
            with contextlib.suppress(OSError, asyncpg.InterfaceError, asyncpg.PostgresError):
                self.run(holder.execute("ROLLBACK"))
                self.run(holder.close())

        try:
            yield let_go
        finally:
            let_go()

    def _somebody_waits(self) -> bool:
        return bool(self._fetch("SELECT 1 FROM pg_locks WHERE NOT granted"))

    @contextlib.contextmanager
    def _nobody_is_told(self) -> Iterator[None]:
        """Commits are on disk, and wait for a standby that never answers."""
        self._set_standby("nobody")
        try:
            yield
        finally:
            self._set_standby("")

    def _set_standby(self, name: str) -> None:
        self._fetch(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        self._fetch("SELECT pg_reload_conf()")
        setting = "SELECT current_setting('synchronous_standby_names') AS name"
        wait_until(lambda: self._fetch(setting)[0]["name"] == name)

    def wait_for_open_transactions(self) -> None:
        """Until all that began before this was called is committed or undone, also for those who died in the middle."""
        [now] = self._fetch("SELECT clock_timestamp() AS at")
        began_before = """
            SELECT 1 FROM pg_stat_activity
            WHERE application_name = 'foreman' AND xact_start <= $1 AND state <> 'idle'
            """
        wait_until(lambda: not self._fetch(began_before, now["at"]))
