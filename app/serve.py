"""`foreman serve`: the database, the migrations, the processes, the signals.

One process serves by itself. With several, the parent owns the embedded PostgreSQL and the listening
socket, and keeps the serving processes alive; it serves nothing itself.
"""

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType

import asyncpg
import structlog
import uvicorn
import uvloop

from app.api.cors import with_cors
from app.api.edge import Edge
from app.api.protocol import paced
from app.config import Settings, SettingsError
from app.embedded import EmbeddedPostgres, EmbeddedPostgresError
from app.errors import Unavailable
from app.foreman import Foreman
from app.main import create_app
from app.store.migrate import migrate
from app.store.outage import REMIND_SECONDS, Cause, Outage, Trouble, cause_of, words_of
from app.targets.config import from_environment
from app.telemetry import configure_logging
from app.webhooks.outgoing import Outgoing, for_development
from foreman_client.wire import without_password

log = structlog.get_logger()

# How often a database that is not there yet is asked.
DATABASE_RETRY_SECONDS = 1.0
PR_SET_PDEATHSIG = 1
# How long a starting process may keep those waiting who come meanwhile, before it says that it is not ready.
HEAD_START_SECONDS = 10.0
# A process that keeps dying is restarted ever more slowly.
RESTART_SECONDS = (0.1, 0.5, 1, 2, 5, 10)


class ServeError(Exception):
    """Serving cannot begin; the message says why."""


def serve(settings: Settings) -> None:
    """Serve until told to stop. Raises SettingsError or ServeError when it cannot begin."""
    configure_logging(settings.log_level, settings.log_format)
    _allow_many_connections()
    # Wrong settings are said before anything is started.
    Outgoing(settings)
    from_environment(settings.ollama_url, settings.ollama_slots, settings.targets)
    with listening_socket(settings) as listener, database(settings) as (ready, postgres):
        welcome = greeting(ready, listener, embedded=postgres is not None)
        if settings.processes == 1:
            _serve_here(ready, listener, lambda: _print(welcome), postgres)
        else:
            _Parent(ready, listener, welcome, postgres).run()


# The loop takes one connection from each listening socket per turn. After a restart thousands want in at
# once, and whoever has a job to submit stands in the same line.
ACCEPTS = 4


def _allow_many_connections() -> None:
    """Every stream is a file descriptor, and the usual soft limit is 1,024. Child processes inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS says "infinite" and means something else; then it stays as it is.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def listening_socket(settings: Settings) -> Iterator[socket.socket]:
    """Bound first of all: a port that is taken is said before anything is started."""
    host = settings.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, settings.port))
        except OSError as problem:
            raise ServeError(
                f"Cannot listen on {host}:{settings.port}: {problem.strerror or problem}."
            ) from problem
        yield listener


@contextlib.contextmanager
def database(settings: Settings) -> Iterator[tuple[Settings, EmbeddedPostgres | None]]:
    """The settings with a database that runs: the configured one, or an embedded one of our own."""
    if settings.database_url is not None:
        yield settings, None
        return
    postgres = EmbeddedPostgres(settings.data_dir)
    try:
        url = postgres.start()
    except EmbeddedPostgresError as problem:
        raise ServeError(str(problem)) from problem
    try:
        yield for_development(settings.model_copy(update={"database_url": url})), postgres
    except SettingsError as problem:
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
            self._next_try_at = now + RESTART_SECONDS[min(self._failures, len(RESTART_SECONDS) - 1)]
            self._failures += 1
        else:
            log.warning("serve.postgres_revived", tries=self._failures + 1)
            self._failures, self._told_at = 0, None


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - this is for the person who typed `make run`


async def _start_patiently(foreman: Foreman, tell: Callable[[Cause], None]) -> None:
    """Migrate and start as soon as the database is there, and tell why not meanwhile.

    A database that is away (compose, failover, full) is waited for. One that does not let us in may still be
    being set up, but not for long.
    """
    url = foreman.settings.database_url or ""
    patience = foreman.settings.database_patience_seconds
    refused_since: float | None = None
    said: tuple[Cause, float] | None = None
    while True:
        try:
            await migrate(url)
            await foreman.start()
        except (Unavailable, asyncpg.PostgresError) as problem:
            beneath = problem if isinstance(problem, asyncpg.PostgresError) else problem.__cause__ or problem
        else:
            return
        now = time.monotonic()
        cause, words = cause_of(beneath), words_of(beneath)
        tell(cause)
        if cause.trouble is not Trouble.REFUSED:
            refused_since = None
        elif now - (refused_since := refused_since or now) > patience:
            raise ServeError(f"{cause.text} Is FOREMAN_DATABASE_URL right? {without_password(url)}: {words}")
        if said is None or said[0] != cause or now - said[1] >= REMIND_SECONDS:
            log.warning(
                "serve.waiting_for_database",
                cause=cause.text,
                problem=words,
                database=without_password(url),
                gives_up_after_seconds=patience if refused_since else None,
            )
            said = cause, now
        await asyncio.sleep(DATABASE_RETRY_SECONDS)


class _Server(uvicorn.Server):
    """uvicorn's server, but a signal ends the process with 0, and the engine is told before the waiting.

    Who comes while it starts waits in the socket's queue for a moment, or is served by another process. If it
    takes long, or the database is away, it answers: that it is alive, and why it is not ready yet.
    """

    def __init__(self, config: uvicorn.Config, edge: Edge, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._edge = edge
        self._foreman: Foreman = edge.app.state.foreman
        self._on_ready = on_ready
        self._beginning: asyncio.Task[None] | None = None
        # Ready, or it is known why not; and whether anybody is listened to.
        self._settled = asyncio.Event()
        self._listening = asyncio.Event()
        self.problem: ServeError | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self.handle_exit)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._edge.not_yet = Unavailable("The server is starting.", retry_after=1)
        self._beginning = asyncio.create_task(self._begin())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), HEAD_START_SECONDS)
        await super().startup(sockets)
        self._listening.set()

    async def _begin(self) -> None:
        try:
            await _start_patiently(self._foreman, self._not_yet)
        except ServeError as problem:
            self.problem = problem
        except Exception as problem:
            log.exception("serve.not_started")
            self.problem = ServeError(f"The server could not start: {words_of(problem)}")
        if self.problem is not None:
            self.should_exit = True
            self._settled.set()
        else:
            self._edge.not_yet = None
            self._settled.set()
            await self._listening.wait()
            self._on_ready()

    def _not_yet(self, cause: Cause) -> None:
        self._edge.not_yet = Unavailable(f"The server is starting. {cause.text}", retry_after=2)
        self._settled.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Waiting requests are answered and running jobs are finished or given back first; uvicorn
        # then has only short answers to wait for.
        for server in self.servers:
            server.close()
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.wait([self._beginning])
        await self._foreman.begin_stop()
        await super().shutdown(sockets)
        if not self.force_exit:
            await self._foreman.stop()


def _serve_here(
    settings: Settings,
    listener: socket.socket,
    on_ready: Callable[[], None],
    postgres: EmbeddedPostgres | None = None,
) -> None:
    edge = create_app(settings)
    app = with_cors(edge, settings.cors_origins)

    foreman: Foreman = edge.app.state.foreman
    keeper = PostgresKeeper(postgres, foreman.database.outage)

    async def watch_postgres() -> None:
        keeper.look()

    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=paced(settings.request_timeout_seconds, settings.slow_reader_seconds),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        # Clients compare it with their own clock (`foreman doctor`).
        date_header=True,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.shutdown_grace_seconds) + 5,
        backlog=4096,
        callback_notify=watch_postgres,
        timeout_notify=1,
    )
    server = _Server(config, edge, on_ready)
    # Before it is doubled: the double of a blocking socket would make it block in every process that has it.
    listener.setblocking(False)
    uvloop.run(server.serve(sockets=[listener, *(listener.dup() for _ in range(ACCEPTS - 1))]))
    if server.problem is not None:
        raise server.problem


def greeting(settings: Settings, listener: socket.socket, *, embedded: bool) -> str:
    """What a stranger needs in the first minute: two lines to paste."""
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    where = f"embedded PostgreSQL in {settings.data_dir}" if embedded else "PostgreSQL"
    if settings.role == "worker":
        return f"\nForeman works ({where}); health at {url}/healthz\n"
    reach = "\nWebhooks and http jobs may call this machine (loopback)." if embedded else ""
    submit = '{"model": "echo", "messages": [{"role": "user", "content": "Hello, Foreman!"}]}'
    return (
        f"\nForeman listens on {url} ({where}; no authentication, this machine only){reach}\n\n"
        "Submit a job, then read the newest one:\n\n"
        f"  curl -s {url}/jobs -d '{submit}'\n"
        f"  curl -s \"{url}/jobs/$(curl -s '{url}/jobs?limit=1' | cut -d'\"' -f6)?wait=10\"\n"
    )


@dataclass
class _Serving:
    """A serving process, and what it says when it is ready (None) or cannot start (why)."""

    process: SpawnProcess
    said: Connection
    heard: bool = False


class _Parent:
    """Keeps N serving processes alive on one socket."""

    def __init__(
        self, settings: Settings, listener: socket.socket, welcome: str, postgres: EmbeddedPostgres | None
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._welcome = welcome
        self._keeper = PostgresKeeper(postgres)
        self._stopping = False
        self._is_ready = False
        self._problem: ServeError | None = None
        self._processes: list[_Serving] = []

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._processes = [self._spawn() for _ in range(self._settings.processes)]
        failures = 0
        while not self._stopping:
            wait(
                [
                    *(each.process.sentinel for each in self._processes),
                    *(each.said for each in self._processes if not each.heard),
                ],
                timeout=0.5,
            )
            self._keeper.look()
            for index, each in enumerate(self._processes):
                alive = each.process.is_alive()
                self._hear(each)
                if alive or self._stopping:
                    continue
                log.error("serve.process_died", pid=each.process.pid, exit_code=each.process.exitcode)
                time.sleep(RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)])
                failures += 1
                if not self._stopping:
                    self._processes[index] = self._spawn()
        self._join()
        if self._problem is not None:
            raise self._problem

    def _spawn(self) -> _Serving:
        context = multiprocessing.get_context("spawn")
        said, says = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(self._settings, self._listener, os.getpid(), says))
        process.start()
        says.close()
        return _Serving(process, said)

    def _hear(self, each: _Serving) -> None:
        """The first that is ready speaks for all; one that cannot start ends it, unless another could."""
        if each.heard or not each.said.poll():
            return
        each.heard = True
        try:
            problem = each.said.recv()
        except EOFError:
            return
        finally:
            each.said.close()
        if self._is_ready:
            return
        if problem is None:
            self._is_ready = True
            _print(self._welcome)
        else:
            self._problem = ServeError(problem)
            self._stopping = True

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _join(self) -> None:
        processes = [each.process for each in self._processes]
        for process in processes:
            process.terminate()
        ends = time.monotonic() + self._settings.shutdown_grace_seconds + 10
        for process in processes:
            process.join(max(0.1, ends - time.monotonic()))
            if process.is_alive():
                log.error("serve.process_killed", pid=process.pid)
                process.kill()
                process.join()


def _child(settings: Settings, listener: socket.socket, parent: int, says: Connection) -> None:
    """One serving process. It ends with its parent, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            return
    configure_logging(settings.log_level, settings.log_format)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            _serve_here(settings, listener, lambda: says.send(None))
        except ServeError as problem:
            says.send(str(problem))
            sys.exit(1)
