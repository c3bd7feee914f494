"""The way in: decides whether a submission may come in, gathers it into one commit, and announces it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from app.engine.pools import Seat
from app.errors import ForemanError, InvalidRequest
from app.events.hub import Hub
from app.executors.http_call import parse_call
from app.jobs.ids import new_traceparent
from app.jobs.openai_events import OPENAI_SHAPE, tell_ends
from app.jobs.signing import parse_secret
from app.jobs.submission import NewJob, invalid
from app.loops.batcher import Batcher, Tell
from app.loops.off_loop import off_loop
from app.outbound.client import GuardedClient
from app.outbound.guard import AddressPolicy
from app.secretbox import SecretBox
from app.store import enqueue, read
from app.store.arrivals import Arrival, arrive, may_arrive
from app.store.claims import Claimant
from app.store.database import Database
from app.store.idempotency import Receipt, Submission
from app.store.job import ClaimedJob
from app.store.key_memory import KeyMemory
from app.store.low_water import LowWater
from app.store.managed import ManagedEnqueue
from app.store.queues import QueueBook
from app.store.remembered import Remembered
from app.telemetry import REFUSED

if TYPE_CHECKING:
    from app.tracing.tracer import Tracer

MAX_ROWS = 1000
# While one batch waits for the disk, the next is on its way.
IN_FLIGHT = 2
# A name that takes longer to resolve is no objection: the delivery checks it again.
RESOLVE_SECONDS = 1.0


class Seats(Protocol):
    """Who has slots for calls that come in: see target_dispatcher.py."""

    @property
    def low_water(self) -> LowWater: ...

    def claimant(self, queue: str) -> Claimant: ...

    def seat_for(self, job: NewJob) -> Seat | None: ...

    async def begin(self, seats: Mapping[str, Seat], jobs: Sequence[ClaimedJob]) -> None: ...


@dataclass(frozen=True, slots=True)
class Seated:
    """A submission of one job that runs as soon as it is in the database."""

    submission: Submission
    seats: Seats
    seat: Seat


class Intake:
    """`submit` returns once the jobs are safely in the database."""

    def __init__(
        self,
        database: Database,
        hub: Hub,
        book: QueueBook,
        checks: "SubmissionChecks",
        memory: KeyMemory | None = None,
        tracer: "Tracer | None" = None,
    ) -> None:
        self._tracer = tracer
        self._database = database
        self._hub = hub
        self._book = book
        self._checks = checks
        self._known_queues: Remembered[str, None] = Remembered()
        self.managed = ManagedEnqueue(database, book, memory)
        self._plain = self._batcher(
            "submissions", lambda submissions: enqueue.enqueue(database, submissions), in_flight=IN_FLIGHT
        )
        # By a way of their own: whoever has to wait for a key's lock does not hold up the others.
        self._managed = self._batcher("managed_submissions", self.managed.enqueue)
        # In a process that runs jobs: who may have a slot for one that comes in.
        self.seats: Seats | None = None
        self._seated: Batcher[Seated, Receipt] = Batcher(
            "seated_submissions",
            self._flush_seated,
            max_weight=MAX_ROWS,
            size=lambda each: submission_bytes(each.submission),
            in_flight=IN_FLIGHT,
        )

    async def submit(self, submission: Submission) -> Receipt:
        self.begin_trace(submission)
        if await self.check(submission):
            return await self._managed.put(submission)
        seated = self._seat(submission)
        if seated is None:
            return await self._plain.put(submission)
        try:
            return await self._seated.put(seated)
        finally:
            seated.seat.leave()

    def _seat(self, submission: Submission) -> Seated | None:
        """With the slot that it can have at once, if so. Queues with rules of their own are not passed by."""
        job = submission.jobs[0]
        if self.seats is None or not may_arrive(submission) or self._book.rules(job.queue) is not None:
            return None
        seat = self.seats.seat_for(job)
        return None if seat is None else Seated(submission, self.seats, seat)

    async def _flush_seated(self, seated: Sequence[Seated]) -> list[Receipt | Exception]:
        submissions = [each.submission for each in seated]
        await self.know_queues(submissions)
        seats = seated[0].seats
        claimant = seats.claimant(submissions[0].jobs[0].queue)
        arrivals = [Arrival(each.submission, each.seat.target.name) for each in seated]
        arrived = await arrive(self._database, seats.low_water, claimant, arrivals)
        self.announce(submissions, arrived.enqueued)
        self._hub.announce(arrived.claimed)
        kept = {each.submission.jobs[0].id: each.seat for each in seated}
        await seats.begin(kept, arrived.claimed.answers)
        return arrived.enqueued.answers

    def take(self, submission: Submission, tell: Tell[Receipt]) -> bool:
        """The same for who does not wait: `tell` is called with what comes of it. False, and nothing is done,
        where anything must be asked or waited for but the commit."""
        for job in submission.jobs:
            if (
                job.webhook_url is not None
                or job.kind == "http"
                or job.parent_id is not None
                or job.depends_on is not None
                or self._book.rules(job.queue) is not None
            ):
                return False
        self.begin_trace(submission)
        self._plain.add(submission, tell)
        return True

    def begin_trace(self, submission: Submission) -> None:
        """No job is without a trace: jobs whose caller sent none share a fresh one."""
        if self._tracer is not None:
            self._tracer.receive(submission)
        elif submission.jobs[0].traceparent is None:
            traceparent = new_traceparent()
            for job in submission.jobs:
                job.traceparent = traceparent

    def announce(self, submissions: Sequence[Submission], changes: enqueue.Enqueued) -> None:
        """They are committed: let it be known, and traced."""
        self._hub.announce(changes)
        if self._tracer is not None:
            self._tracer.submitted(submissions, changes.answers)

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
        await self._seated.drain()
        await self._plain.drain()
        await self._managed.drain()

    def _batcher(
        self,
        name: str,
        write: Callable[[Sequence[Submission]], Awaitable[enqueue.Enqueued]],
        in_flight: int = 1,
    ) -> Batcher[Submission, Receipt]:
        async def flush(submissions: Sequence[Submission]) -> list[Receipt | Exception]:
            await self.know_queues(submissions)
            changes = await write(submissions)
            self.announce(submissions, changes)
            return changes.answers

        return Batcher(
            name,
            flush,
            max_weight=MAX_ROWS,
            weight=lambda each: len(each.jobs),
            size=submission_bytes,
            in_flight=in_flight,
        )

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


class SubmissionChecks:
    """What cannot be judged by the bytes of a job alone: URLs by the outbound guard, secrets by ours."""

    def __init__(
        self,
        policy: AddressPolicy,
        client: GuardedClient,
        box: SecretBox | None,
        own_url: str | None = None,
    ) -> None:
        """`own_url` is the operator's receiver: it was judged at the start, and nobody is refused for it."""
        self._own_url = own_url
        self._policy = policy
        self._client = client
        self._box = box

    async def check(self, jobs: Sequence[NewJob], *, is_batch: bool = False) -> None:
        """Check and complete jobs about to be enqueued. Raises InvalidRequest naming what is wrong."""
        urls: list[tuple[int, str, str]] = []
        for index, job in enumerate(jobs):
            if job.webhook_url is None and job.kind != "http":
                continue
            with _naming(index if is_batch else None):
                checked = await off_loop(len(job.payload), self._check, job)
                urls += [(index, field, url) for field, url in checked]
        if urls:
            refusals = await self._refusals({url for _, _, url in urls})
            for index, field, url in urls:
                if url in refusals:
                    with _naming(index if is_batch else None):
                        raise invalid(field, refusals[url])

    def _check(self, job: NewJob) -> list[tuple[str, str]]:
        """All that needs no name to be resolved; returns the URLs, each with the field it stands in."""
        urls = []
        if job.webhook_url is not None:
            if job.webhook_url != self._own_url:
                urls.append(("state_webhook_url", job.webhook_url))
            if job.webhook_shape == OPENAI_SHAPE:
                tell_ends(job)
        if job.kind == "http":
            urls.append(("payload.url", parse_call(job.payload).url))
        for field, url in urls:
            reason = self._policy.check_url(url)
            if reason is not None:
                raise invalid(field, reason)
        if job.webhook_secret is not None:
            job.sealed_webhook_secret = self._sealed(job.webhook_secret, job.id)
        return urls

    def _sealed(self, secret: str, job_id: str) -> bytes:
        try:
            parse_secret(secret)
        except ValueError as problem:
            raise invalid("webhook_secret", str(problem)) from None
        if self._box is None:
            raise invalid(
                "webhook_secret",
                "cannot be kept safe: this server has no FOREMAN_SECRET_KEY to encrypt it with",
            )
        return self._box.seal(secret, job_id)

    async def _refusals(self, urls: set[str]) -> dict[str, str]:
        ordered = sorted(urls)
        reasons = await asyncio.gather(
            *(self._client.refusal(url, deadline_seconds=RESOLVE_SECONDS) for url in ordered)
        )
        return {url: reason for url, reason in zip(ordered, reasons, strict=True) if reason is not None}


@contextlib.contextmanager
def _naming(index: int | None) -> Iterator[None]:
    """In a batch, an error names the entry it is about."""
    try:
        yield
    except InvalidRequest as problem:
        if index is None:
            raise
        raise InvalidRequest(
            f"jobs[{index}]: {problem.detail}", index=index, errors=problem.extra.get("errors", [])
        ) from problem
