"""The running parts of one process: the one place where everything is put together."""

import structlog

from app import __version__
from app.api.open_streams import OpenStreams
from app.api.services import Services
from app.artifacts.store import ArtifactStore
from app.config import Settings
from app.engine.batch_keeper import BatchKeeper
from app.engine.batch_results import BatchLimits, BatchResults
from app.engine.batch_runner import SLOTS as BATCH_SLOTS
from app.engine.batch_runner import BatchRunner
from app.engine.claimers import Claimers
from app.engine.disk_watch import DiskWatch
from app.engine.event_writer import EventWriter
from app.engine.explain import Explainer
from app.engine.intake import SubmissionChecks
from app.engine.janitor import Janitor
from app.engine.leases import Leases
from app.engine.pools import Pool, is_llm_lane
from app.engine.queues import Queues
from app.engine.remote_claims import RemoteClaims
from app.engine.sampler import Sampler
from app.engine.settler import Settler
from app.engine.sweeper import Sweeper
from app.engine.target_dispatcher import TargetDispatcher
from app.engine.usage_recorder import UsageRecorder
from app.engine.worker import Worker
from app.engine.worker_directory import WorkerDirectory
from app.events.hub import Hub
from app.events.live_output import LiveOutputs
from app.events.shared_feed import SharedFeed
from app.executors.echo import EchoExecutor
from app.executors.http import HttpExecutor
from app.executors.noop import NoopExecutor
from app.identity.authenticator import Authenticator
from app.identity.job_limits import JobLimits
from app.identity.limits import usual_limits
from app.jobs.lanes import BATCH, BATCH_LANE, LLM_KINDS, kind_of
from app.jobs.tenants import DEFAULT_TENANT
from app.loops.housekeeping import Housekeeping
from app.loops.parts import Parts, Resource
from app.store.daily_counts import DailyTally
from app.store.database import Database
from app.store.migrate import newest_revision
from app.store.workers import WorkerReport
from app.targets.config import from_environment
from app.targets.registry import Registry
from app.telemetry import BUILD
from app.tracing import make_tracer
from app.webhooks.deliverer import Deliverer
from app.webhooks.outgoing import Outgoing
from app.webhooks.send import Sender

log = structlog.get_logger()

ECHO_SLOTS = 64
# A noop holds its slot for no time at all: its slots only bound how far claims run ahead of settlements.
NOOP_SLOTS = 2000


class Foreman:
    """The running parts of one process, and the order in which they start and stop."""

    def __init__(self, settings: Settings) -> None:
        if settings.database_url is None:
            raise ValueError("a database URL is needed; `foreman serve` starts an embedded one")
        self.settings = settings
        BUILD.labels(__version__, settings.role).set(1)
        self.database = Database(
            settings.database_url,
            pooled=settings.listen_database_url is not None or settings.listen == "off",
            size=settings.database_connections,
            fences=settings.row_security == "on",
        )
        self.database.measured()
        listen_url = settings.listen_database_url or settings.database_url
        self.tracer = make_tracer(settings, self.database)
        self.hub = Hub(
            self.database,
            listen_url if settings.listen == "on" else None,
            settings.poll_seconds,
            self.tracer.announced if self.tracer else None,
        )
        self.outgoing = Outgoing(settings)
        self.webhook_client = self.outgoing.client()
        self.http_client = self.outgoing.client()
        checks = SubmissionChecks(
            self.outgoing.policy, self.webhook_client, self.outgoing.box, settings.openai_webhook_url
        )
        self.queues = Queues(self.database, self.hub, settings, checks, self.tracer)
        self.settler = Settler(self.database, self.hub)
        self.live = LiveOutputs(self.hub.nudge)
        self.event_writer = EventWriter(self.database, self.hub, self.live)
        self.intake = self.queues.intake
        self.sweeper = Sweeper(self.database, self.hub, settings)
        self.artifacts = ArtifactStore(self.database, settings.artifacts_url)
        self.janitor = Janitor(self.database, self.artifacts, chatter_days=settings.chatter_days)
        self._batch_limits = BatchLimits(settings.max_body_bytes, settings.max_json_depth)
        self._batch_results = BatchResults(self.database, self.artifacts, self._batch_limits)
        sender = Sender(self.webhook_client, self.outgoing.box, self.outgoing.server_secrets, self.database)
        tally = DailyTally()
        self.webhooks = Deliverer(self.database, self.hub, sender, settings, tally, self.tracer)
        self.targets = Registry(
            self.database,
            self.http_client,
            self.outgoing.box,
            from_environment(settings.ollama_url, settings.ollama_slots, settings.targets),
            inventory_seconds=settings.inventory_seconds,
            idle_seconds=settings.target_timeout_seconds,
            whole_seconds=settings.target_answer_seconds,
        )
        self.worker = None if settings.role == "api" else self._make_worker()
        self.dispatcher = (
            None
            if self.worker is None
            else TargetDispatcher(self.database, self.hub, self.targets, self.worker, settings)
        )
        self.intake.seats = self.dispatcher
        self.worker_directory = WorkerDirectory(self.database)
        if self.worker:
            self.worker_directory.introduce(
                WorkerReport(
                    DEFAULT_TENANT,
                    self.worker.name,
                    queues=["*"],
                    kinds=["http", "noop", *sorted(LLM_KINDS), BATCH],
                    concurrency=settings.worker_slots,
                    version=__version__,
                )
            )
        self.authenticator = (
            Authenticator(self.database, usual_limits(settings)) if settings.auth == "on" else None
        )
        remote_claims = RemoteClaims(self.hub, self.queues.claims, self.settler, settings)
        claimers = Claimers(self.database)
        self.services = Services(
            settings,
            self.database,
            self.hub,
            self.live,
            self.intake,
            self.settler,
            self.event_writer,
            Leases(self.database),
            remote_claims,
            self.worker_directory,
            newest_revision(),
            OpenStreams(settings.max_streams, settings.keep_alive_seconds),
            SharedFeed(self.database, settings.poll_seconds),
            self.artifacts,
            self.queues,
            self.targets,
            claimers,
            Explainer(self.database, self.targets, claimers, settings),
            JobLimits(self.database),
            [
                self.queues.measure,
                self.targets.measure,
                self.webhooks.measure,
                *([self.dispatcher.measure] if self.dispatcher else []),
            ],
            self.webhooks,
            self.authenticator,
        )
        self._serving = Parts(
            [
                Resource(self.database.close, open=self.database.open),
                # Stopped when all the others have: then nothing more will happen that it has to tell.
                Sampler(self.database, self.queues.census, tally),
                # After all who end something.
                *([self.tracer] if self.tracer else []),
                self.hub,
                *([self.authenticator] if self.authenticator else []),
                *self.queues.parts,
                self.sweeper,
                self.targets,
                UsageRecorder(self.database),
                DiskWatch(self.database),
                Housekeeping(),
                self.janitor,
                BatchKeeper(self.database, self.hub, self._batch_results, settings.sweep_seconds),
                self.worker_directory,
                Resource(self.http_client.aclose),
                Resource(self.webhook_client.aclose),
                self.webhooks,
                Resource(self.event_writer.drain),
                Resource(self.settler.drain),
                Resource(remote_claims.drain),
                Resource(self.intake.drain),
            ]
        )
        # A target's slots are held until the runs on it have ended.
        self._claiming = Parts(
            [self.dispatcher.slots, self.worker, self.dispatcher] if self.worker and self.dispatcher else []
        )

    def _make_worker(self) -> Worker:
        pools = [
            Pool("noop", NoopExecutor(), NOOP_SLOTS, lambda lane: kind_of(lane) == "noop"),
            Pool(
                "http",
                HttpExecutor(self.http_client, self.tracer.running)
                if self.tracer
                else HttpExecutor(self.http_client),
                self.settings.worker_slots,
                lambda lane: kind_of(lane) == "http",
            ),
            Pool(
                "batch",
                BatchRunner(
                    self.database,
                    self.hub,
                    self.artifacts,
                    self.intake,
                    self._batch_results,
                    self._batch_limits,
                ),
                BATCH_SLOTS,
                lambda lane: lane == BATCH_LANE,
            ),
            Pool("echo", EchoExecutor(), ECHO_SLOTS, self._echo_accepts, live=True),
        ]
        return Worker(
            self.database,
            self.hub,
            self.settler,
            self.event_writer,
            self.queues.claims,
            pools,
            self.settings,
        )

    def _echo_accepts(self, lane: str) -> bool:
        return self.targets.is_empty and is_llm_lane(lane)

    async def start(self) -> None:
        """Raises Unavailable when the database goes away meanwhile; called again, it goes on where it was."""
        await self._serving.start()
        await self._claiming.start()
        log.info("foreman.started", role=self.settings.role, version=__version__)

    async def begin_stop(self) -> None:
        """Stop claiming, answer those who wait on the line, finish or give back what runs."""
        self.hub.close_watches()
        await self._claiming.stop()

    async def stop(self) -> None:
        await self.begin_stop()
        await self._serving.stop()
        log.info("foreman.stopped")
