"""Remembers which workers were seen and writes it down now and then."""

from app.loops.loop import Loop
from app.store.database import Database
from app.store.remembered import Remembered
from app.store.workers import WorkerReport, seen

WRITE_SECONDS = 5.0
BATCH = 1000


class WorkerDirectory(Loop):
    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: dict[tuple[str, str], WorkerReport] = {}
        self._written: Remembered[tuple[str, str], None] = Remembered()
        self._own: WorkerReport | None = None
        super().__init__("worker-directory", self._write, interval=WRITE_SECONDS)

    def introduce(self, own: WorkerReport) -> None:
        """This process's own worker: about as long as the process is."""
        self._own = own

    def saw(self, worker_directory: WorkerReport) -> None:
        """Somebody asked for work. Whoever is new is written down at once, the others every few seconds."""
        who = (worker_directory.tenant, worker_directory.name)
        self._seen[who] = worker_directory
        if who not in self._written:
            self._written.put(who, None)
            self.wake()

    async def _write(self) -> float | None:
        current, self._seen = self._seen, {}
        present = [*current.values(), *([self._own] if self._own else [])]
        for first in range(0, len(present), BATCH):
            await seen(self._database, present[first : first + BATCH], WRITE_SECONDS / 2)
        return None
