"""All that makes queues more than lists, put together: settings, gates, the way in, the loops."""

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from app.config import Settings
from app.engine.bulk_runner import BulkRunner
from app.engine.intake import Intake, SubmissionChecks
from app.engine.promoter import Promoter
from app.engine.pruner import Pruner
from app.engine.reconciler import Reconciler
from app.engine.scheduler import Scheduler
from app.engine.settings_refresher import SettingsRefresher
from app.engine.unblocker import Unblocker
from app.errors import Unavailable
from app.events.hub import Hub
from app.jobs.queue_settings import usual_retention
from app.loops.parts import Part
from app.store.census import Census
from app.store.changes import Changes
from app.store.claims import Claims
from app.store.database import Database
from app.store.heads import heads_of
from app.store.key_memory import KeyMemory
from app.store.queues import QueueBook
from app.telemetry import LOOK_SECONDS, QUEUE_JOBS, QUEUE_OLDEST, Names

if TYPE_CHECKING:
    from app.tracing.tracer import Tracer


class Queues:
    """One per process. Its parts start before anybody claims or submits, stop after the last settlement."""

    def __init__(
        self,
        database: Database,
        hub: Hub,
        settings: Settings,
        checks: SubmissionChecks,
        tracer: "Tracer | None" = None,
    ) -> None:
        self._database = database
        self._hub = hub
        self.book = QueueBook(database)
        self.census = Census(database)
        self.claims = Claims(database, self.book)
        self.promoter = Promoter(database, hub, settings.poll_seconds)
        memory = KeyMemory()
        self.unblocker = Unblocker(database, hub, self.book, settings.sweep_seconds, memory)
        self.intake = Intake(database, hub, self.book, checks, memory, tracer)
        self.settings_refresher = SettingsRefresher(database, hub, self.book)
        self.reconciler = Reconciler(database, hub, self.book, settings.sweep_seconds, memory)
        self.usual_retention = usual_retention(settings.retention_days, settings.dead_letter_days)
        self.pruner = Pruner(database, hub, self.book, settings.sweep_seconds, self.usual_retention)
        self.scheduler = Scheduler(database, hub, self.intake, settings.poll_seconds)
        self.bulk_runner = BulkRunner(database, hub)

    @property
    def parts(self) -> list[Part]:
        return [
            self.settings_refresher,
            self.unblocker,
            self.promoter,
            self.reconciler,
            self.pruner,
            self.bulk_runner,
            self.scheduler,
        ]

    async def configured(self, changes: Changes[Any]) -> None:
        """Queues were configured here: it counts here at once, and everywhere else within a second."""
        await self.book.refresh()
        # What can be claimed there: a queue that was paused has had nobody who knew of it.
        heads = await heads_of(self._database, changes.settings)
        changes.work |= {(head.queue, head.lane) for head in heads}
        self._hub.announce(changes)

    async def measure(self) -> None:
        """Bring the gauges of the queues up to date, for whoever reads the metrics."""
        try:
            counts = await self.census.take_within(LOOK_SECONDS)
        except Unavailable:
            # Better nothing than what was true some time ago.
            counts = {}
        QUEUE_JOBS.clear()
        QUEUE_OLDEST.clear()
        names, oldest = Names(), defaultdict[str, float](float)
        for queue in sorted(queue for queue, count in counts.items() if any(count.states.values())):
            [name] = names.known(queue)
            for state, jobs in counts[queue].states.items():
                QUEUE_JOBS.labels(name, state).inc(jobs)
            oldest[name] = max(oldest[name], counts[queue].oldest_queued_seconds or 0)
        for name, seconds in oldest.items():
            QUEUE_OLDEST.labels(name).set(seconds)
