"""The janitor: makes and drops the days of append-heavy tables, and empties the trash of artifacts."""

import time
from datetime import UTC, date, datetime

import structlog

from app.artifacts.store import ArtifactStore
from app.loops.loop import Loop
from app.store import artifacts
from app.store.announcements import KEPT_DAYS
from app.store.database import Database
from app.store.partitions import renew
from app.telemetry import PARTITIONS_DROPPED

log = structlog.get_logger()

ROUND_SECONDS = 30.0
# Days change seldom; those that could not be made or dropped are tried again sooner.
RENEW_SECONDS = 3600.0
AGAIN_SECONDS = 600.0
TRASH_BATCH = 100


class Janitor(Loop):
    """Any replica may run it. What one has done, the others find done."""

    def __init__(self, database: Database, store: ArtifactStore, *, chatter_days: int) -> None:
        self._database = database
        self._store = store
        self._keep_days = {"chatter": chatter_days, "announcements": KEPT_DAYS}
        self._renew_at = 0.0
        self._renewed_on: date | None = None
        super().__init__("janitor", self._run_once, interval=ROUND_SECONDS)

    async def _run_once(self) -> float | None:
        # The monotonic clock stands still while the machine sleeps; the day does not.
        today = datetime.now(UTC).date()
        if time.monotonic() >= self._renew_at or today != self._renewed_on:
            self._renew_at = time.monotonic() + await self._renew()
            self._renewed_on = today
        return 0 if await self._empty_trash() else None

    async def _renew(self) -> float:
        rest = RENEW_SECONDS
        for table, keep_days in self._keep_days.items():
            renewal = await renew(self._database, table, keep_days)
            if renewal is None or renewal.postponed:
                rest = AGAIN_SECONDS
            if renewal is None:
                continue
            if renewal.dropped:
                PARTITIONS_DROPPED.labels(table).inc(len(renewal.dropped))
            if renewal.dropped or renewal.postponed:
                log.info(
                    "janitor.renewed",
                    table=table,
                    dropped=[str(day) for day in renewal.dropped],
                    postponed=[str(day) for day in renewal.postponed],
                )
        return rest

    async def _empty_trash(self) -> bool:
        """Remove bytes that nothing refers to; True when there may be more."""
        locations = await artifacts.due_trash(self._database, TRASH_BATCH)
        removed = await self._store.delete(locations)
        await artifacts.forget_trash(self._database, removed)
        await artifacts.keep_trash(self._database, [each for each in locations if each not in removed])
        return len(locations) == TRASH_BATCH
