"""The janitor: makes, drops and sweeps the days of append-heavy tables, and empties the trash."""

import time
from datetime import UTC, date, datetime, timedelta

import structlog

from app.artifacts.store import ArtifactStore
from app.loops.loop import Loop
from app.store import artifacts
from app.store.announcements import KEPT_DAYS
from app.store.database import Database
from app.store.partitions import JOB_DAYS, OF_JOBS, renew, sweep
from app.telemetry import PARTITIONS_DROPPED

log = structlog.get_logger()

ROUND_SECONDS = 30.0
# Days change seldom; those that could not be made or dropped are tried again sooner.
RENEW_SECONDS = 3600.0
AGAIN_SECONDS = 600.0
TRASH_BATCH = 100
# How long a crowded day rests that was swept: its jobs are kept for very long, so little happens there.
SWEPT_DAYS = 7
THE_BEGINNING = ("", 0)


class Janitor(Loop):
    """Any replica may run it. What one has done, the others find done."""

    def __init__(self, database: Database, store: ArtifactStore, *, chatter_days: int) -> None:
        self._database = database
        self._store = store
        self._keep_days = {
            "chatter": chatter_days,
            "announcements": KEPT_DAYS,
            **dict.fromkeys(OF_JOBS, JOB_DAYS),
        }
        self._renew_at = 0.0
        self._renewed_on: date | None = None
        # Crowded days: how far each was swept, and when one was last swept to its end.
        self._crowded: dict[str, tuple[str, int]] = {}
        self._swept_on: dict[str, date] = {}
        super().__init__("janitor", self._run_once, interval=ROUND_SECONDS)

    async def _run_once(self) -> float | None:
        # The monotonic clock stands still while the machine sleeps; the day does not.
        today = datetime.now(UTC).date()
        if time.monotonic() >= self._renew_at or today != self._renewed_on:
            self._renew_at = time.monotonic() + await self._renew()
            self._renewed_on = today
        await self._sweep(today)
        return 0 if await self._empty_trash() else None

    async def _renew(self) -> float:
        rest = RENEW_SECONDS
        for table, keep_days in self._keep_days.items():
            renewal = await renew(self._database, table, keep_days)
            if renewal is None or renewal.postponed:
                rest = AGAIN_SECONDS
            if renewal is None:
                continue
            self._crowd(renewal.crowded)
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

    def _crowd(self, names: list[str]) -> None:
        week_ago = datetime.now(UTC).date() - timedelta(days=SWEPT_DAYS)
        for name in names:
            if self._swept_on.get(name, week_ago) <= week_ago:
                self._crowded.setdefault(name, THE_BEGINNING)

    async def _sweep(self, today: date) -> None:
        """A batch of one crowded day a round: some hundred thousand rows an hour."""
        name = next(iter(self._crowded), None)
        if name is not None:
            place = await sweep(self._database, name, self._crowded[name])
            if place is not None:
                self._crowded[name] = place
            else:
                del self._crowded[name]
                self._swept_on[name] = today

    async def _empty_trash(self) -> bool:
        """Remove bytes that nothing refers to; True when there may be more."""
        locations = await artifacts.due_trash(self._database, TRASH_BATCH)
        removed = await self._store.delete(locations)
        await artifacts.forget_trash(self._database, removed)
        await artifacts.keep_trash(self._database, [each for each in locations if each not in removed])
        return len(locations) == TRASH_BATCH
