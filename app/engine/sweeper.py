"""The sweeper: rescues or supersedes what lost its lease, expires what is late, ends overdue cancels."""

import structlog

from app.config import Settings
from app.events.hub import Hub
from app.loops.loop import Loop
from app.store.database import Database
from app.store.sweep import Watchfulness, sweep

log = structlog.get_logger()

# Keepers of leases come back within a second of an outage, workers over HTTP within the two seconds that they
# were told to wait. Where leases are short, so is the time until they are looked at.
GRACE_SECONDS, LEAST_GRACE_SECONDS = 5.0, 3.0


class Sweeper(Loop):
    """Any replica may run it; one at a time does."""

    def __init__(self, database: Database, hub: Hub, settings: Settings) -> None:
        self._database = database
        self._hub = hub
        self._grace = settings.cancel_grace_seconds
        self._sweep_seconds = settings.sweep_seconds
        grace = min(GRACE_SECONDS, max(LEAST_GRACE_SECONDS, settings.lease_seconds))
        self._watchfulness = Watchfulness(self._sweep_seconds, grace)
        super().__init__("sweeper", self._run_once, interval=self._sweep_seconds)

    async def _run_once(self) -> float | None:
        try:
            swept = await sweep(
                self._database, cancel_grace_seconds=self._grace, watchfulness=self._watchfulness
            )
        except Exception:
            self._watchfulness.failed()
            raise
        if swept is None:
            return None
        for verb, jobs in swept.moved.items():
            log.info("sweeper.moved", verb=verb, jobs=jobs)
        self._hub.announce(swept.changes)
        if swept.full:
            return 0
        if swept.blind_seconds:
            return min(swept.blind_seconds, self._sweep_seconds)
        return self._watchfulness.confirm_seconds if swept.unconfirmed else None
