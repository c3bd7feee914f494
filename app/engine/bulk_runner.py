"""The bulk runner: takes the steps of bulk operations, small ones, with rests between them."""

import time

from app.engine.gatekeeper import Gatekeeper
from app.events.hub import Hub
from app.loops.loop import Loop
from app.store import bulk
from app.store.bulk import Step
from app.store.database import Database
from app.telemetry import BULK

# It rests twice as long as it works, so that whoever submits in the meantime hardly notices.
REST_SHARE = 2.0
POLL_SECONDS = 1.0
FORGET_SECONDS = 3600.0


class BulkRunner(Loop):
    """Every replica runs one; a step holds its operation's row, so they share the work."""

    def __init__(self, database: Database, hub: Hub, gatekeeper: Gatekeeper) -> None:
        self._database = database
        self._hub = hub
        self._gatekeeper = gatekeeper
        self._forgot_at = 0.0
        super().__init__("bulk-runner", self._run_once, interval=POLL_SECONDS)

    async def _run_once(self) -> float | None:
        began = time.perf_counter()
        step = await bulk.step(self._database)
        if step is None:
            if time.monotonic() - self._forgot_at > FORGET_SECONDS:
                self._forgot_at = time.monotonic()
                await bulk.forget_old(self._database)
            return None
        self._tell(step)
        return REST_SHARE * (time.perf_counter() - began)

    def _tell(self, step: Step) -> None:
        BULK.labels(step.action).inc(step.jobs)
        self._hub.jobs_changed([*step.deleted, *(each.id for each in step.moved if each.changed)])
        self._gatekeeper.steered(step.moved)
        asked = [each.id for each in step.moved if each.cancel_requested]
        if asked:
            self._hub.cancel_requested(asked)
        ready = {
            (each.queue, each.lane) for each in step.moved if each.state == "queued" and each.key is None
        }
        if ready:
            self._hub.work_ready(ready)
