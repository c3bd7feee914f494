"""The way in: decides whether a submission may come in, gathers it into one commit, and announces it."""

from collections.abc import Sequence

from app.engine.submission_checks import SubmissionChecks
from app.errors import ForemanError
from app.events.hub import Hub
from app.jobs.submission import NewJob
from app.loops.batcher import Batcher
from app.loops.off_loop import off_loop
from app.store import enqueue, read
from app.store.database import Database
from app.store.idempotency import Receipt, Submission
from app.store.managed import ManagedEnqueue
from app.store.queues import QueueBook
from app.store.remembered import Remembered
from app.telemetry import REFUSED

MAX_ROWS = 1000


class Intake:
    """`submit` returns once the jobs are safely in the database."""

    def __init__(
        self,
        database: Database,
        hub: Hub,
        book: QueueBook,
        checks: SubmissionChecks,
    ) -> None:
        self._database = database
        self._hub = hub
        self._book = book
        self._checks = checks
        self._known_queues: Remembered[str, None] = Remembered()
        self.managed = ManagedEnqueue(database, book)
        self._plain: Batcher[Submission, Receipt] = Batcher(
            self._flush,
            max_weight=MAX_ROWS,
            weight=lambda submission: len(submission.jobs),
            size=submission_bytes,
        )
        # By a way of their own: whoever has to wait for a key's lock does not hold up the others.
        self._managed: Batcher[Submission, Receipt] = Batcher(
            self._flush_managed,
            max_weight=MAX_ROWS,
            weight=lambda submission: len(submission.jobs),
            size=submission_bytes,
        )

    async def submit(self, submission: Submission) -> Receipt:
        managed = await self.check(submission)
        return await (self._managed if managed else self._plain).put(submission)

    async def check(self, submission: Submission) -> bool:
        """Refuse what may not come in; otherwise whether it must come in by the managed way."""
        await self._checks.check(submission.jobs, is_batch=submission.batch)
        return await off_loop(
            submission_bytes(submission), self.apply_rules, submission.jobs, batch=submission.batch
        )

    def apply_rules(self, jobs: Sequence[NewJob], *, batch: bool = False) -> bool:
        """Apply the rules of their queues to jobs; whether they must come in by the managed way."""
        managed = False
        for index, job in enumerate(jobs):
            rules = self._book.rules(job.queue)
            if rules is not None:
                try:
                    rules.apply(job)
                except ForemanError as refusal:
                    REFUSED.labels(refusal.code).inc()
                    if batch:
                        raise enqueue.indexed(refusal, index) from refusal
                    raise
                managed = managed or rules.is_managed
            managed = managed or job.depends_on is not None
        return managed

    async def drain(self) -> None:
        await self._plain.drain()
        await self._managed.drain()

    async def _flush(self, submissions: Sequence[Submission]) -> list[Receipt | Exception]:
        await self.know_queues(submissions)
        changes = await enqueue.enqueue(self._database, submissions)
        self._hub.announce(changes)
        return changes.answers

    async def _flush_managed(self, submissions: Sequence[Submission]) -> list[Receipt | Exception]:
        await self.know_queues(submissions)
        changes = await self.managed.enqueue(submissions)
        self._hub.announce(changes)
        return changes.answers

    async def know_queues(self, submissions: Sequence[Submission]) -> None:
        """Remember new queues, so that operators find them."""
        named = {job.queue for submission in submissions for job in submission.jobs}
        unknown = [queue for queue in named if queue not in self._known_queues]
        if unknown:
            await read.know_queues(self._database, unknown)
            for queue in unknown:
                self._known_queues.put(queue, None)


def submission_bytes(submission: Submission) -> int:
    """About how large it is: payloads are what can be."""
    jobs = submission.jobs
    return len(jobs[0].payload) if len(jobs) == 1 else sum([len(job.payload) for job in jobs])
