"""Books the usage of finished jobs, a batch at a time. Replicas skip each other's rows."""

from app.loops.loop import Loop
from app.store.database import Database
from app.store.usage import book

BOOK_SECONDS = 5.0
BATCH = 500


class UsageRecorder(Loop):
    def __init__(self, database: Database) -> None:
        self._database = database
        super().__init__("usage-recorder", self._run_once, interval=BOOK_SECONDS)

    async def _run_once(self) -> float | None:
        return 0 if await book(self._database, BATCH) == BATCH else None
