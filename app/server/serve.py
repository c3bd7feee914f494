"""`foreman serve` from its settings to its end: in this process, or as the parent of several."""

import contextlib
import multiprocessing
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType

import structlog

from app.config import Settings
from app.embedded import EmbeddedPostgres
from app.embedded.processes import ends_with_parent
from app.server import ServeError
from app.server.postgres import PostgresKeeper, database, restart_seconds
from app.server.process import serve_here
from app.server.tls import configured
from app.targets.config import from_environment
from app.telemetry import configure_logging
from app.webhooks.outgoing import Outgoing

log = structlog.get_logger()


def serve(settings: Settings) -> None:
    """Serve until told to stop. Raises SettingsError or ServeError when it cannot begin."""
    configure_logging(settings.log_level, settings.log_format)
    _allow_many_connections()
    # Wrong settings are said before anything is started.
    Outgoing(settings)
    from_environment(settings.ollama_url, settings.ollama_slots, settings.targets)
    configured(settings)
    with listening_socket(settings) as listener, database(settings) as (ready, postgres):
        # For the person who typed `make run`.
        greet = partial(print, greeting(ready, listener, embedded=postgres is not None), flush=True)
        if settings.processes == 1:
            serve_here(ready, listener, greet, postgres)
        else:
            _Parent(ready, listener, greet, postgres).run()


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


def greeting(settings: Settings, listener: socket.socket, *, embedded: bool) -> str:
    """What a stranger needs in the first minute: two lines to paste."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # by which name it is called from here
    scheme, curl = ("http", "curl -s") if settings.tls_cert is None else ("https", "curl -sk")
    url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    where = f"embedded PostgreSQL in {settings.data_dir}" if embedded else "PostgreSQL"
    if settings.role == "worker":
        return f"\nForeman works ({where}); health at {url}/healthz\n"
    reach = "\nWebhooks and http jobs may call this machine (loopback)." if embedded else ""
    # By an address: the certificate is for a name.
    unproven = "" if settings.tls_cert is None else " (-k: the certificate need not be for this address)"
    if settings.auth == "on":
        curl += ' -H "Authorization: Bearer $FOREMAN_API_KEY"'
        reach = ""
    callers = "callers need an API key" if settings.auth == "on" else "no authentication, this machine only"
    submit = '{"model": "echo", "messages": [{"role": "user", "content": "Hello, Foreman!"}]}'
    return (
        f"\nForeman listens on {url} ({where}; {callers}){reach}\n"
        f"Open {url}/ui in a browser to see all of it.\n\n"
        f"Submit a job, then read the newest one{unproven}:\n\n"
        f"  {curl} {url}/jobs -d '{submit}'\n"
        f"  {curl} \"{url}/jobs/$({curl} '{url}/jobs?limit=1' | cut -d'\"' -f6)?wait=10\"\n"
    )


@dataclass
class _Serving:
    """A serving process, and what it says when it is ready (None) or cannot start (why)."""

    process: SpawnProcess
    said: Connection
    heard: bool = False


class _Parent:
    """Keeps N serving processes alive on one socket; it serves nothing itself."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        on_ready: Callable[[], None],
        postgres: EmbeddedPostgres | None,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._on_ready = on_ready
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
                time.sleep(restart_seconds(failures))
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
            if problem is not None:
                log.error("serve.process_not_started", problem=problem)
            return
        if problem is None:
            self._is_ready = True
            self._on_ready()
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
    if not ends_with_parent(signal.SIGTERM, parent):
        return
    configure_logging(settings.log_level, settings.log_format)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            serve_here(settings, listener, lambda: says.send(None))
        except ServeError as problem:
            says.send(str(problem))
            sys.exit(1)
