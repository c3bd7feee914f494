"""Kind `batch`: checks the lines of a batch, makes a job of each, waits for them, writes what they came to.

Whatever it does can be done again by another run, after a kill or beside one that has lost its lease: the
lines of a file are always grouped and cut into the same chunks, each chunk comes in with a key of its own or
not at all, and the files of a batch are made visible by one commit.
"""

import hashlib
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import orjson

from app.artifacts.store import ArtifactStore
from app.engine.batch_results import BatchLimits, BatchResults
from app.engine.intake import Intake
from app.errors import ForemanError, JobTerminal, NotFound, QueueFull
from app.events.hub import Hub, Watch
from app.executors.protocol import ClaimedJob, RunContext
from app.jobs.batch_lines import (
    ENDPOINTS,
    Checker,
    Endpoint,
    Line,
    LineError,
    Place,
    Span,
    chunks,
    read_line,
    spans,
)
from app.jobs.file_ids import wire_id
from app.jobs.outcomes import Cancelled, Failed, JobError, Outcome, Released, Succeeded
from app.jobs.states import State
from app.jobs.submission import NewJob
from app.loops.off_loop import off_loop
from app.store import batches, control
from app.store.batches import Batch, Counts
from app.store.database import Database
from app.store.files import File
from app.store.idempotency import Submission
from app.telemetry import BATCHES_ENDED

# A waiting batch costs a look now and then: its place is nothing that others could use better.
SLOTS = 1000
# What one commit takes in, and what is read of the file at once.
CHUNK_LINES = 500
CHUNK_BYTES = 8 * 1024 * 1024
# What lies between two lines of a chunk is rather read over than stepped over.
GAP_BYTES = 32 * 1024
# Looks at the lines: soon at first and after something happened, later and later while nothing does. However
# many lines there are, looking takes no more than a small share of the time.
LOOK_SECONDS = 0.1
LONGEST_LOOK_SECONDS = 5.0
LOOK_SHARE = 20
PROGRESS_SECONDS = 5.0
FULL_SECONDS = 1.0
# No job has so many events: its own log says nothing new to whom waits for its lines.
NEVER = 2**31 - 1
# No caller's key can begin so.
KEY_MARK = "\x01batch"


class BatchRunner:
    """The executor."""

    def __init__(
        self,
        database: Database,
        hub: Hub,
        artifacts: ArtifactStore,
        intake: Intake,
        results: BatchResults,
        limits: BatchLimits,
    ) -> None:
        self._database = database
        self._hub = hub
        self._artifacts = artifacts
        self._intake = intake
        self._results = results
        self._limits = limits

    async def run(self, job: ClaimedJob, context: RunContext) -> Outcome:
        await context.start()
        batch = await batches.of_job(self._database, job.id)
        if batch is None:
            return Failed(JobError("batch_not_found", "There is no batch that this job would be the run of."))
        with self._hub.watch(job.id) as watch:
            if batch.finalized_at is None:
                ended = await self._enter_lines(job, batch, watch) or await self._wait(job, context, watch)
                if ended is not None:
                    return ended
                await self._finalize(job.id)
        batch = await batches.of_job(self._database, job.id)
        return Cancelled() if batch is None else _outcome(batch)

    # -- the lines come in ---------------------------------------------------------------------------

    async def _enter_lines(self, job: ClaimedJob, batch: Batch, watch: Watch) -> Outcome | None:
        """None when all of them are there."""
        known = {line.custom_id for line in await batches.lines(self._database, job.id)}
        if batch.total is not None and len(known) >= batch.total:
            return None
        endpoint = ENDPOINTS.get(batch.endpoint)
        file = await batches.input_file(self._database, batch.input_file_id)
        if file is None or endpoint is None:
            return await self._refuse(job.id, [LineError("invalid_input_file", "The input file is gone.")])
        checked = await self._check(file, endpoint)
        if checked.errors:
            return await self._refuse(job.id, checked.errors)
        await batches.begin(self._database, job.id, len(checked.places))
        source = _Source(file, endpoint, job, batch.key_id)
        for chunk in chunks(checked.grouped(), CHUNK_LINES, CHUNK_BYTES):
            try:
                if not await self._enter(source, chunk, known, watch):
                    return Released()
            except JobTerminal:
                # It was cancelled or is late, and that will be said to this run, too.
                return Cancelled()
            except ForemanError as refusal:
                if refusal.status >= 500:
                    raise
                await self._cancel_lines(job)
                return await self._refuse(job.id, [LineError(refusal.code, refusal.detail)])
        return None

    async def _check(self, file: File, endpoint: Endpoint) -> Checker:
        checker = Checker(endpoint, self._limits.max_json_depth, self._limits.max_line_bytes)
        try:
            async for piece in self._artifacts.read(file.location, 0, file.size):
                await off_loop(len(piece), checker.feed, piece)
                if checker.is_over:
                    break
        except NotFound:
            checker.errors.append(LineError("invalid_input_file", "The bytes of the input file are gone."))
            return checker
        checker.end()
        return checker

    async def _enter(self, source: "_Source", chunk: Sequence[Place], known: set[str], watch: Watch) -> bool:
        """Make jobs of these lines, unless they have some; False when this process ends."""
        lines = await self._read(source, chunk)
        if any(line.custom_id in known for line in lines):
            # They came in together.
            return not self._hub.closing
        jobs = [source.job_of(line) for line in lines]
        digest = hashlib.sha256(" ".join(str(place.number) for place in chunk).encode()).digest()
        key = f"{KEY_MARK} {source.parent.id} {digest.hex()}"
        submission = Submission(jobs, source.parent.tenant, key, digest, batch=True)
        while not self._hub.closing:
            try:
                await self._intake.submit(submission)
            except QueueFull:
                await watch.changed(NEVER, FULL_SECONDS)
            except NotFound:
                # They were there, and somebody has deleted them since.
                return True
            else:
                return True
        return False

    async def _read(self, source: "_Source", chunk: Sequence[Place]) -> list[Line]:
        """The lines of a chunk, in its order."""
        found: dict[int, Line] = {}
        for span in spans(chunk, GAP_BYTES, CHUNK_BYTES):
            pieces = self._artifacts.read(source.file.location, span.offset, span.length)
            data = b"".join([piece async for piece in pieces])
            found |= await off_loop(len(data), self._lines_of, source.endpoint, span, data)
        return [found[place.number] for place in chunk]

    def _lines_of(self, endpoint: Endpoint, span: Span, data: bytes) -> dict[int, Line]:
        depth = self._limits.max_json_depth
        found = {}
        for place in span.places:
            start = place.offset - span.offset
            found[place.number] = read_line(data[start : start + place.length], endpoint, depth)
        return found

    async def _cancel_lines(self, job: ClaimedJob) -> None:
        """Some have come in before one was refused."""
        lines = [line.id for line in await batches.lines(self._database, job.id)]
        self._hub.announce(await control.cancel(self._database, lines, job.tenant, "batch_failed"))

    async def _refuse(self, job_id: str, errors: Sequence[LineError]) -> Outcome:
        document = {"object": "list", "data": errors}
        await batches.refuse(self._database, job_id, msgspec.json.encode(document).decode())
        BATCHES_ENDED.labels(State.FAILED).inc()
        return _refusal(errors)

    # -- the lines run -------------------------------------------------------------------------------

    async def _wait(self, job: ClaimedJob, context: RunContext, watch: Watch) -> Outcome | None:
        """None when all lines have ended."""
        pace = _Pace()
        while not self._hub.closing:
            began = time.monotonic()
            counts = await batches.count(self._database, job.id)
            if not counts.live and not await self._is_late(job.id):
                return None
            if pace.is_time_to_tell(counts):
                ended, lines = counts.completed + counts.failed, counts.lines
                await context.progress(step="lines", current=ended, total=lines, fraction=ended / lines)
            await watch.changed(NEVER, pace.rest(counts, time.monotonic() - began))
        return Released()

    async def _is_late(self, job_id: str) -> bool:
        """Then its lines have ended for being late as well, and it is about to be told so."""
        batch = await batches.of_job(self._database, job_id)
        return batch is not None and batch.is_late

    async def _finalize(self, job_id: str) -> None:
        batch = await batches.of_job(self._database, job_id)
        if batch is not None and await batches.finalizing(self._database, job_id):
            await self._results.finalize(batch, State.DONE)


class _Source(NamedTuple):
    """Where lines come from, and what their jobs have in common."""

    file: File
    endpoint: Endpoint
    parent: ClaimedJob
    key_id: str | None

    def job_of(self, line: Line) -> NewJob:
        job = line.as_job(self.endpoint, self.parent.id, self.parent.tenant)
        job.key_id = self.key_id
        job.request_id = self.parent.id
        job.traceparent = self.parent.traceparent
        return job


class _Pace:
    """When to look at the lines again, and when to tell how far they are."""

    def __init__(self) -> None:
        self._last: Counts | None = None
        self._rest = LOOK_SECONDS
        self._told_at = 0.0

    def is_time_to_tell(self, counts: Counts) -> bool:
        now = time.monotonic()
        if counts == self._last or now - self._told_at < PROGRESS_SECONDS:
            return False
        self._told_at = now
        return True

    def rest(self, counts: Counts, took: float) -> float:
        self._rest = LOOK_SECONDS if counts != self._last else self._rest * 2
        self._last = counts
        return min(max(self._rest, took * LOOK_SHARE), LONGEST_LOOK_SECONDS)


def _outcome(batch: Batch) -> Outcome:
    """Of one whose files are written, or whose lines were refused."""
    if batch.errors is not None:
        return _refusal(msgspec.json.decode(batch.errors, type=_Errors).data)
    result = {
        "output_file_id": wire_id(batch.output_file_id),
        "error_file_id": wire_id(batch.error_file_id),
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
    }
    return Succeeded(orjson.dumps(result).decode())


class _Errors(msgspec.Struct):
    data: list[LineError]


def _refusal(errors: Sequence[LineError]) -> Failed:
    first = errors[0]
    where = "" if first.line is None else f"line {first.line}: "
    more = "" if len(errors) == 1 else f" ({len(errors)} lines are wrong)"
    return Failed(JobError("invalid_batch", f"{where}{first.message}{more}"))
