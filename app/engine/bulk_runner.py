"""The bulk runner: takes the steps of bulk operations, small ones, with rests between them."""

import time

from app.events.hub import Hub
from app.loops.loop import Loop
from app.store import bulk
from app.store.database import Database

# It rests twice as long as it works, so that whoever submits in the meantime hardly notices.
REST_SHARE = 2.0
POLL_SECONDS = 1.0
FORGET_SECONDS = 3600.0


class BulkRunner(Loop):
    """Every replica runs one; a step holds its operation's row, so they share the work."""

    def __init__(self, database: Database, hub: Hub) -> None:
        self._database = database
        self._hub = hub
        self._forgot_at = 0.0
        super().__init__("bulk-runner", self._run_once, interval=POLL_SECONDS)
        hub.wakes(self, lambda changes: bool(changes.operations))

    async def _run_once(self) -> float | None:
        began = time.perf_counter()
        changes = await bulk.step(self._database)
        if changes is None:
            if time.monotonic() - self._forgot_at > FORGET_SECONDS:
                self._forgot_at = time.monotonic()
                await bulk.forget_old(self._database)
            return None
        self._hub.announce(changes)
        return REST_SHARE * (time.perf_counter() - began)
