"""create_app: the one place where everything is put together."""

import contextlib
import functools
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app import __version__
from app.api import (
    artifacts,
    bulk,
    dead_letters,
    describe,
    describe_events,
    describe_queues,
    describe_webhooks,
    document,
    events,
    feed,
    health,
    jobs,
    ollama,
    openai,
    queues,
    schedules,
    stream,
    targets,
    webhooks,
    workers,
)
from app.api.admission import Admission
from app.api.edge import Edge
from app.api.guard import Guard
from app.api.house import House
from app.api.lines import Lines
from app.api.mount import mounted
from app.api.problems import (
    handle_bug,
    handle_foreman_error,
    handle_http_exception,
    handle_invalid_parameters,
)
from app.api.routes import Route, Scope
from app.artifacts.store import ArtifactStore
from app.config import Settings, listed
from app.engine.claimdesk import ClaimDesk
from app.engine.claimers import Claimers
from app.engine.dispatcher import Dispatcher
from app.engine.janitor import Janitor
from app.engine.leases import Leases
from app.engine.ledger import LedgerKeeper
from app.engine.pools import Pool, is_llm_lane
from app.engine.presence import PresenceBook
from app.engine.queues import Queues
from app.engine.room_watch import RoomWatch
from app.engine.scribe import Scribe
from app.engine.settler import Settler
from app.engine.sweeper import Sweeper
from app.engine.worker import Worker
from app.errors import ForemanError, Unavailable
from app.events.bulletin import Bulletin
from app.events.feed import Feed
from app.events.hub import Hub
from app.executors.echo import EchoExecutor
from app.executors.http import HttpExecutor
from app.executors.noop import NoopExecutor
from app.jobs.lanes import DEFAULT_TENANT, LLM_KINDS
from app.loops.housekeeping import Housekeeping
from app.store.database import Database
from app.store.migrate import newest_revision
from app.store.workers import Presence
from app.targets.config import from_environment
from app.targets.registry import Registry
from app.webhooks.dispatcher import Dispatcher as WebhookDispatcher
from app.webhooks.outgoing import Outgoing
from app.webhooks.send import Sender

log = structlog.get_logger()

DESCRIPTION = "A durable job server that speaks HTTP: hand it work, hang up, be told when it is done."
ECHO_SLOTS = 64
# What is being sent when the server stops may finish; a receiver slower than this gets it once more.
WEBHOOK_GRACE_SECONDS = 3.0
# A noop holds its slot for no time at all: its slots are only the size of a claim.
NOOP_SLOTS = 1000

# In the order in which the framework looks for them.
ROUTES = [
    *targets.routes,
    *ollama.routes,
    *openai.routes,
    *health.routes,
]

_HOT = {
    "/jobs": jobs.submit,
    "/jobs/batch": jobs.submit_batch,
    "/claims": workers.claim,
    "/settlements": workers.settlements,
}
_STREAMS = {
    "/jobs/{job_id}/events": events.read,
    "/jobs/{job_id}/stream": stream.stream,
    "/events": feed.feed,
}
# Those that are not declared yet, as far as the edge needs to know them.
UNDECLARED = [
    *(
        Route("POST", path, endpoint, scope=Scope.OPEN, tag="", summary="", responses={}, hot=True)
        for path, endpoint in _HOT.items()
    ),
    *(
        Route("GET", path, endpoint, scope=Scope.OPEN, tag="", summary="", responses={}, stream=True)
        for path, endpoint in _STREAMS.items()
    ),
]
ROUTERS = [
    each.router
    for each in (
        jobs,
        workers,
        events,
        stream,
        feed,
        artifacts,
        webhooks,
        queues,
        dead_letters,
        bulk,
        schedules,
    )
]


class Foreman:
    """The running parts of one process, and the order in which they start and stop."""

    def __init__(self, settings: Settings) -> None:
        if settings.database_url is None:
            raise ValueError("a database URL is needed; `foreman serve` starts an embedded one")
        self.settings = settings
        self.database = Database(
            settings.database_url,
            pooled=settings.listen_database_url is not None or settings.listen == "off",
            size=settings.database_connections,
        )
        listen_url = settings.listen_database_url or settings.database_url
        self.hub = Hub(self.database, listen_url if settings.listen == "on" else None, settings.poll_seconds)
        self.queues = Queues(self.database, self.hub, settings)
        self.settler = Settler(
            self.database,
            self.hub,
            self.queues.gatekeeper,
            self.queues.promoter.wake,
        )
        self.feed = Feed(self.hub.nudge)
        self.scribe = Scribe(self.database, self.hub, self.feed)
        self.intake = self.queues.intake
        self.sweeper = Sweeper(
            self.database,
            self.hub,
            self.queues.gatekeeper,
            sweep_seconds=settings.sweep_seconds,
            cancel_grace_seconds=settings.cancel_grace_seconds,
            lease_seconds=settings.lease_seconds,
        )
        self.artifacts = ArtifactStore(self.database, settings.artifacts_url)
        self.janitor = Janitor(self.database, self.artifacts, chatter_days=settings.chatter_days)
        self.outgoing = Outgoing(settings)
        self.webhook_client = self.outgoing.client()
        self.http_client = self.outgoing.client()
        self.webhooks = WebhookDispatcher(
            self.database,
            self.hub,
            Sender(self.webhook_client, self.outgoing.box, self.outgoing.server_secrets, self.database),
            host_concurrency=settings.webhook_host_concurrency,
            poll_seconds=settings.poll_seconds,
        )
        self.targets = Registry(
            self.database,
            self.http_client,
            self.outgoing.box,
            from_environment(settings.ollama_url, settings.ollama_slots, settings.targets),
            inventory_seconds=settings.inventory_seconds,
            idle_seconds=settings.target_timeout_seconds,
        )
        self.ledger = LedgerKeeper(self.database)
        self.worker = None if settings.role == "api" else self._make_worker()
        self.dispatcher = None if self.worker is None else self._make_dispatcher(self.worker)
        self.presence = PresenceBook(self.database)
        if self.worker:
            self.presence.introduce(
                Presence(
                    DEFAULT_TENANT,
                    self.worker.name,
                    queues=["*"],
                    kinds=["http", "noop", *sorted(LLM_KINDS)],
                    concurrency=settings.worker_slots,
                    version=__version__,
                )
            )
        self.house = House(
            settings,
            self.database,
            self.hub,
            self.feed,
            self.intake,
            self.settler,
            self.scribe,
            Leases(self.database),
            ClaimDesk(
                self.database,
                self.hub,
                self.queues.claims,
                self.settler,
                settings.poll_seconds,
                settings.lease_seconds,
            ),
            self.presence,
            newest_revision(),
            Lines(settings.max_streams, settings.keep_alive_seconds),
            Bulletin(self.database, settings.poll_seconds),
            self.artifacts,
            self.queues,
            Admission(self.outgoing.policy, self.webhook_client, self.outgoing.box),
            self.webhooks,
            self.targets,
            Claimers(self.database),
        )
        self.housekeeping = Housekeeping()
        self.room_watch = RoomWatch(self.database)
        self._to_start: deque[Callable[[], Awaitable[None] | None]] = deque(
            [
                self.database.open,
                self.hub.start,
                self.queues.start,
                self.sweeper.start,
                self.presence.start,
                self.janitor.start,
                self.webhooks.start,
                self.targets.start,
                self.ledger.start,
                *([self.worker.start] if self.worker else ()),
                *([self.dispatcher.start] if self.dispatcher else ()),
                self.housekeeping.start,
                self.room_watch.start,
            ]
        )
        self._stopped = False

    def _make_worker(self) -> Worker:
        pools = [
            Pool("noop", NoopExecutor(), NOOP_SLOTS, lambda lane: lane == "noop"),
            Pool(
                "http",
                HttpExecutor(self.http_client),
                self.settings.worker_slots,
                lambda lane: lane == "http",
            ),
            Pool(
                "echo",
                EchoExecutor(),
                ECHO_SLOTS,
                lambda lane: self.targets.is_empty and is_llm_lane(lane),
                live=True,
            ),
        ]
        return Worker(
            self.database,
            self.hub,
            self.settler,
            self.scribe,
            self.queues.claims,
            pools,
            name=f"{socket.gethostname()}:{os.getpid()}",
            lease_seconds=self.settings.lease_seconds,
            poll_seconds=self.settings.poll_seconds,
        )

    def _make_dispatcher(self, worker: Worker) -> Dispatcher:
        return Dispatcher(
            self.database,
            self.hub,
            self.targets,
            worker,
            self.queues.claims,
            patience_seconds=self.settings.affinity_patience_seconds,
            poll_seconds=self.settings.poll_seconds,
        )

    async def start(self) -> None:
        """Raises Unavailable when the database goes away meanwhile; called again, it goes on where it was."""
        while self._to_start:
            started = self._to_start[0]()
            if started is not None:
                await started
            self._to_start.popleft()
        log.info("foreman.started", role=self.settings.role, version=__version__)

    async def begin_stop(self) -> None:
        """Stop claiming, answer those who wait on the line, finish or give back what runs."""
        if self._stopped:
            return
        self._stopped = True
        self.hub.close_watches()
        if self.dispatcher:
            await self.dispatcher.stop()
        if self.worker:
            await self.worker.stop(self.settings.shutdown_grace_seconds)
        if self.dispatcher:
            await self.dispatcher.release()

    async def stop(self) -> None:
        """Also what was never started. What the database does not take any more is found by the others."""
        grace = min(WEBHOOK_GRACE_SECONDS, self.settings.shutdown_grace_seconds)
        for stop in (
            self.begin_stop,
            self.intake.drain,
            self.house.claim_desk.drain,
            self.settler.drain,
            self.scribe.drain,
            lambda: self.webhooks.stop(grace),
            self.webhook_client.aclose,
            self.http_client.aclose,
            self.presence.stop,
            self.janitor.stop,
            self.housekeeping.stop,
            self.room_watch.stop,
            self.ledger.stop,
            self.targets.stop,
            self.sweeper.stop,
            self.queues.stop,
            self.hub.stop,
            self.database.close,
        ):
            with contextlib.suppress(Unavailable):
                await stop()
        log.info("foreman.stopped")


def create_app(settings: Settings) -> Edge:
    """Put together, not started: `foreman serve` does that once the database is there."""
    foreman = Foreman(settings)
    app = FastAPI(
        title="Foreman",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            ForemanError: handle_foreman_error,
            RequestValidationError: handle_invalid_parameters,
            HTTPException: handle_http_exception,
            Exception: handle_bug,
        },
    )
    app.state.foreman = foreman
    app.state.house = foreman.house
    is_worker = settings.role == "worker"
    routes = list(health.routes) if is_worker else ROUTES
    # Not include_router: that would match every request twice and bring back the machinery that
    # the direct routes do without.
    for router in [] if is_worker else ROUTERS:
        app.router.routes.extend(router.routes)
    app.router.routes.extend(mounted(routes))
    by_framework = app.openapi

    @functools.cache
    def openapi() -> dict[str, Any]:
        described = by_framework()
        document.describe(described, routes)
        described.setdefault("components", {}).setdefault("schemas", {}).update(
            describe.SCHEMAS | describe_events.SCHEMAS | describe_queues.SCHEMAS | describe_webhooks.SCHEMAS
        )
        return described

    # FastAPI's documented way to extend the document.
    app.openapi = openapi  # type: ignore[method-assign]
    return Edge(
        app,
        Guard(listed(settings.allowed_hosts), listed(settings.cors_origins)),
        max_body_bytes=settings.max_body_bytes,
        max_artifact_bytes=settings.max_artifact_bytes,
        max_bytes_in_flight=settings.max_bytes_in_flight,
        routes=routes if is_worker else [*UNDECLARED, *routes],
    )
