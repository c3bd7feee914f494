"""The keeper of batches: ends those whose run did not, and removes files whose time is over."""

import structlog

from app.engine.batch_results import BatchResults
from app.errors import Unavailable
from app.events.hub import Hub
from app.jobs.states import State
from app.loops.loop import Loop
from app.store import batches, control, files
from app.store.batches import Batch
from app.store.database import Database

log = structlog.get_logger()

BATCH = 100
# A batch that was cancelled, or is late: its last lines are about to end.
SOON_SECONDS = 0.5
# Somebody else began to write its files: for so long that is left to them.
PATIENCE_SECONDS = 60.0
REASON = "batch_ended"


class BatchKeeper(Loop):
    """Any replica may run it. What one has done, the others find done."""

    def __init__(self, database: Database, hub: Hub, results: BatchResults, sweep_seconds: float) -> None:
        self._database = database
        self._hub = hub
        self._results = results
        super().__init__("batch-keeper", self._run_once, interval=sweep_seconds)
        hub.wakes(self, lambda changes: bool(changes.cancels))

    async def _run_once(self) -> float | None:
        ended = await batches.ended(self._database, BATCH)
        open_still = [batch for batch in ended if not await self._end_by_itself(batch)]
        removed = await files.delete_expired(self._database, BATCH)
        if removed == BATCH:
            return 0
        return SOON_SECONDS if open_still else None

    async def _end_by_itself(self, batch: Batch) -> bool:
        """One batch's trouble is not the others'."""
        try:
            return await self._end(batch)
        except Unavailable:
            raise
        except Exception:
            log.exception("batch_keeper.not_ended", job_id=batch.job_id)
            return False

    async def _end(self, batch: Batch) -> bool:
        """Whether its files are written, by whomever."""
        counts = await batches.count(self._database, batch.job_id)
        if counts.live:
            if batch.state != State.EXPIRED:
                # Those of an expired one are late as well: that is said by the sweeper.
                cancelled = await control.cancel(self._database, [batch.job_id], batch.tenant, REASON)
                self._hub.announce(cancelled)
            return False
        if not await batches.finalizing(self._database, batch.job_id, unless_since=PATIENCE_SECONDS):
            return False
        return await self._results.finalize(batch, batch.state)
