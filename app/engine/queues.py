"""All that makes queues more than lists, put together: settings, gates, the way in, the loops."""

from collections.abc import Iterable

from app.config import Settings
from app.engine.bookkeeper import Bookkeeper
from app.engine.bulk_runner import BulkRunner
from app.engine.gatekeeper import Gatekeeper
from app.engine.intake import Intake
from app.engine.promoter import Promoter
from app.engine.pruner import Pruner
from app.engine.reconciler import Reconciler
from app.engine.scheduler import Scheduler
from app.events.hub import Hub
from app.jobs.queue_settings import usual_retention
from app.loops.parts import Part
from app.store.census import Census
from app.store.claims import SETTINGS, Claims, heads_of
from app.store.database import Database
from app.store.keys import Key
from app.store.queues import QueueBook
from app.telemetry import QUEUE_JOBS, QUEUE_OLDEST

MAX_MEASURED = 200


class Queues:
    """One per process. Its parts start before anybody claims or submits, stop after the last settlement."""

    def __init__(self, database: Database, hub: Hub, settings: Settings) -> None:
        self._database = database
        self._hub = hub
        self.book = QueueBook(database)
        self.census = Census(database)
        self.claims = Claims(database, self.book)
        self.promoter = Promoter(database, hub, settings.poll_seconds, self._open_keys)
        self.gatekeeper = Gatekeeper(database, hub, self.book, self.promoter.wake, settings.sweep_seconds)
        self.intake = Intake(database, hub, self.book, self.gatekeeper, self.promoter.wake)
        self.bookkeeper = Bookkeeper(database, hub, self.book, self.intake)
        self.reconciler = Reconciler(database, hub, self.book, settings.sweep_seconds)
        self.usual_retention = usual_retention(settings.retention_days, settings.dead_letter_days)
        self.pruner = Pruner(database, self.book, settings.sweep_seconds, self.usual_retention)
        self.scheduler = Scheduler(database, self.intake, settings.poll_seconds)
        self.bulk_runner = BulkRunner(database, hub, self.gatekeeper)

    def _open_keys(self, keys: Iterable[Key]) -> None:
        self.gatekeeper.open_keys(keys)

    @property
    def parts(self) -> list[Part]:
        return [
            self.bookkeeper,
            self.gatekeeper,
            self.promoter,
            self.reconciler,
            self.pruner,
            self.bulk_runner,
            self.scheduler,
        ]

    async def settings_changed(self, queue: str) -> None:
        """A queue was configured here: it counts here at once, and everywhere else within a second."""
        await self.book.refresh()
        self._hub.work_ready([(queue, SETTINGS)])
        self.reconciler.wake()

    async def announce(self, queue: str) -> None:
        """Say what there is to claim in a queue that was paused until now."""
        work = {(head.queue, head.lane) for head in await heads_of(self._database, [queue])}
        if work:
            self._hub.work_ready(work)

    async def measure(self) -> None:
        """Bring the gauges of the queues up to date, for whoever reads the metrics."""
        counts = await self.census.take()
        QUEUE_JOBS.clear()
        QUEUE_OLDEST.clear()
        # Callers name queues as they like; no more of them than a metrics server can stand.
        for name in sorted(counts)[:MAX_MEASURED]:
            for state, jobs in counts[name].states.items():
                QUEUE_JOBS.labels(name, state).set(jobs)
            QUEUE_OLDEST.labels(name).set(counts[name].oldest_queued_seconds or 0)
