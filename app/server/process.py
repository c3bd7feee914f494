"""One serving process: uvicorn's server around the parts of app/foreman.py."""

import asyncio
import contextlib
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from functools import partial

import structlog
import uvicorn
import uvloop

from app.api.cors import with_cors
from app.api.edge import Edge
from app.config import Settings
from app.embedded import EmbeddedPostgres
from app.errors import Unavailable
from app.foreman import Foreman
from app.main import create_app
from app.server import ServeError
from app.server.connection_limit import ConnectionLimit, allowed
from app.server.direct_submissions import DirectSubmissions, with_short_way
from app.server.first_key import provide_first_key
from app.server.postgres import PostgresKeeper
from app.server.protocol import paced
from app.server.secret_keys import refuse_wrong_keys
from app.server.tls import configured
from app.store.migrate import migrate
from app.store.outage import REMIND_SECONDS, Cause, PostgresError, Trouble, cause_of, words_of
from app.telemetry import CONNECTIONS
from foreman_client.wire import without_password

log = structlog.get_logger()

FIRST_KEY = """
The first API key of this server, with all rights. Keep it: it is not shown again.

  export FOREMAN_API_KEY={key}
"""
# How often a database that is not there yet is asked.
DATABASE_RETRY_SECONDS = 1.0
# How long a starting process may keep those waiting who come meanwhile, before it says that it is not ready.
HEAD_START_SECONDS = 10.0
# The loop takes one connection from each listening socket per turn. After a restart thousands want in at
# once, and whoever has a job to submit stands in the same line.
ACCEPTS = 4


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
            await refuse_wrong_keys(url, foreman.outgoing.box)
            await foreman.start()
            await provide_first_key(foreman.settings, foreman.database, _print_key)
        except (Unavailable, PostgresError) as problem:
            beneath = problem if isinstance(problem, PostgresError) else problem.__cause__ or problem
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


def _print_key(key: str) -> None:
    # For the person who started it, this once; never by way of the log.
    print(FIRST_KEY.format(key=key), flush=True)  # noqa: T201


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
        CONNECTIONS.set_function(lambda: len(self.server_state.connections))

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
        if self.config.ssl is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            await self._listen_by_tls(sockets or [], self.config.ssl)
        self._listening.set()

    async def _listen_by_tls(self, sockets: list[socket.socket], context: ssl.SSLContext) -> None:
        """As uvicorn's startup does it, which leaves a minute to a client that connects and says nothing."""
        settings, config = self._foreman.settings, self.config
        protocol = partial(
            config.http_protocol_class,
            config,  # type: ignore[call-arg]  # of asyncio's protocols in general nothing more is known
            self.server_state,
            self.lifespan.state,
        )
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                protocol,
                sock=each,
                ssl=context,
                backlog=config.backlog,
                ssl_handshake_timeout=settings.request_timeout_seconds,
                # An answer that ends the connection has that long to be taken; see app/server/connection.py.
                ssl_shutdown_timeout=settings.slow_reader_seconds,
            )
            for each in sockets
        ]

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
        # A migration that had to give way is tried again in a moment: whoever comes is better off elsewhere.
        if cause.trouble is not Trouble.BUSY:
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


def serve_here(
    settings: Settings,
    listener: socket.socket,
    on_ready: Callable[[], None],
    postgres: EmbeddedPostgres | None = None,
) -> None:
    edge = create_app(settings)
    foreman: Foreman = edge.app.state.foreman
    app = with_cors(edge, settings.cors_origins, local=foreman.authenticator is not None)
    keeper = PostgresKeeper(postgres, foreman.database.outage)

    tls = configured(settings)

    async def look_around() -> None:
        keeper.look()
        if tls is not None:
            tls.look()

    limit = ConnectionLimit(allowed(settings.max_connections))
    protocol = paced(settings.request_timeout_seconds, settings.slow_reader_seconds, limit)
    if settings.role != "worker":
        direct = DirectSubmissions(edge, foreman.intake, settings.max_json_depth)
        protocol = with_short_way(protocol, direct)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol,
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
        ssl_context_factory=None if tls is None else lambda _config, _usual: tls.context,
        callback_notify=look_around,
        timeout_notify=1,
    )
    server = _Server(config, edge, on_ready)
    # Before it is doubled: the double of a blocking socket would make it block in every process that has it.
    listener.setblocking(False)
    uvloop.run(server.serve(sockets=[listener, *(listener.dup() for _ in range(ACCEPTS - 1))]))
    if server.problem is not None:
        raise server.problem
