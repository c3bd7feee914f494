"""What the other rooms tell, as spans. Runs, and waits that led to none, are read from the log of their jobs.

It is told of them by the events that ended them (`Changes.left`), in the one place that tells everything: so
every way to end a run is in it, and whoever settles needs not know of traces.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import structlog

from app.errors import Unavailable
from app.jobs.ids import new_traceparent
from app.loops.loop import Loop
from app.store.attempts import ended_attempts
from app.store.changes import Changes, Seq
from app.store.database import Database
from app.store.idempotency import Receipt, Submission
from app.store.job import ClaimedJob
from app.store.outbox import DueDelivery
from app.telemetry import SPANS
from app.tracing import spans

if TYPE_CHECKING:
    from app.tracing.exporter import SpanExporter

log = structlog.get_logger()

# How long ends are gathered before they are looked up together.
GATHER_SECONDS = 0.1
MAX_LOOK_UP = 500
WAIT_FOR_ROOM_SECONDS = 0.5
# Ends that were not looked up yet: while the database is away, or slower than the jobs.
MAX_UNREAD = 20_000
# How long the collector has for the last spans when the server stops.
FLUSH_SECONDS = 3.0

_DROPPED = SPANS.labels("dropped")


class Tracer(Loop):
    def __init__(self, database: Database, exporter: "SpanExporter", grace_seconds: float) -> None:
        self._database = database
        self._exporter = exporter
        self._flush_seconds = min(FLUSH_SECONDS, grace_seconds)
        self._unread: deque[Seq] = deque()
        super().__init__("tracer", self._run_once, interval=3600)

    async def start(self) -> None:
        self._exporter.start()
        await super().start()

    async def stop(self) -> None:
        """Those who end runs have stopped before; what they left is read, and exported within the grace."""
        await super().stop()
        with contextlib.suppress(Unavailable):
            while self._unread:
                await self._read()
        _DROPPED.inc(len(self._unread))
        await asyncio.to_thread(self._exporter.close, self._flush_seconds)

    # -- what is told --------------------------------------------------------------------------------------

    def receive(self, submission: Submission) -> None:
        """It has been read, and is about to be enqueued. If its caller sent no trace, one begins with it."""
        submission.received_at = time.time_ns()
        if submission.jobs[0].traceparent is not None:
            return
        submission.begins_trace = True
        traceparent = new_traceparent()
        context = spans.context_of(traceparent)
        if context is not None and not self._exporter.begins(context.trace_id):
            # Whoever goes on with it, here or elsewhere, does as was decided here.
            traceparent = context._replace(flags=0).traceparent(context.span_id)
        for job in submission.jobs:
            job.traceparent = traceparent

    def submitted(self, submissions: Sequence[Submission], answers: Sequence[Receipt | Exception]) -> None:
        """They are committed, or refused; what was refused has left nothing to trace."""
        now = time.time_ns()
        for submission, answer in zip(submissions, answers, strict=True):
            if isinstance(answer, Receipt):
                self._exporter.put(spans.of_submission(submission, answer, now))

    def announced(self, changes: Changes[Any]) -> None:
        """What a verb changed in this process: claims end waits, and some events end runs."""
        for job in changes.claimed:
            self._exporter.put(spans.of_wait(job))
        if changes.left:
            room = MAX_UNREAD - len(self._unread)
            self._unread += changes.left[:room]
            _DROPPED.inc(max(0, len(changes.left) - room))
            self.wake()

    def delivered(self, delivery: DueDelivery, outcome: str, status: int | None, began: int) -> None:
        """One try to deliver a webhook, begun at this moment (nanoseconds)."""
        self._exporter.put(spans.of_delivery(delivery, outcome, status, began, time.time_ns()))

    def running(self, job: ClaimedJob) -> str | None:
        """The traceparent for whom a claimed job's run calls: the span of that run, if it is recorded."""
        context = spans.context_of(job.traceparent)
        if context is None or not self._exporter.continues(context):
            return job.traceparent
        return context.traceparent(spans.id_of(job.id, job.seq))

    # -- what is read --------------------------------------------------------------------------------------

    async def _run_once(self) -> float | None:
        if not self._unread:
            return None
        await asyncio.sleep(GATHER_SECONDS)
        while self._unread and self._exporter.has_room:
            await self._read()
        # What there is no room for waits where it costs least: as the names of events.
        return WAIT_FOR_ROOM_SECONDS if self._unread else None

    async def _read(self) -> None:
        ended = [self._unread.popleft() for _ in range(min(MAX_LOOK_UP, len(self._unread)))]
        try:
            for each in await ended_attempts(self._database, ended):
                for span in spans.of_attempt(each):
                    self._exporter.put(span)
        except Unavailable:
            # They are still there when the database is back.
            self._unread.extendleft(reversed(ended))
            raise
        except Exception:
            # Whatever it is, it would be the same the next time.
            log.exception("traces.not_read", jobs=len(ended))
            _DROPPED.inc(len(ended))
