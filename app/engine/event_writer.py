"""Writes down what running jobs say: output, progress, logs.

Output is gathered so that a job writes at most one row per 100 ms, however fast its tokens come, and all jobs
write on the same beat, so that their rows share a statement. A run that has said plain text only and is over
before its first row leaves none: its result says it all.
Listeners in this process wait for none of that (see events/live_output.py).
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from typing import Any

import orjson
import structlog

from app.errors import Unavailable
from app.events.hub import Hub
from app.events.live_output import LiveOutput, LiveOutputs, Part, width
from app.loops.batcher import Batcher
from app.store.database import Database
from app.store.events import Appended, NewEvent, append
from app.store.job import ClaimedJob

log = structlog.get_logger()

FIRST_ROW_SECONDS = 0.03
ROW_SECONDS = 0.1
BEAT_SECONDS = 0.05
MAX_ROWS = 500
# An event this large fills as much of a batch as two small ones.
ROW_BYTES = 2048


class EventWriter:
    """Appends events in natural batches and tells the hub."""

    def __init__(self, database: Database, hub: Hub, live: LiveOutputs) -> None:
        self._database = database
        self._hub = hub
        self.live = live
        self._batcher: Batcher[NewEvent, Appended | None] = Batcher(
            self._flush, max_weight=MAX_ROWS, weight=_weight
        )

    async def append(self, event: NewEvent) -> Appended | None:
        return await self._batcher.put(event)

    async def drain(self) -> None:
        await self._batcher.drain()

    async def _flush(self, events: Sequence[NewEvent]) -> Sequence[Appended | None]:
        changes = await append(self._database, events)
        self._hub.announce(changes)
        return changes.answers


def _until_beat(earliest: float) -> float:
    """Seconds until the first beat that is not before `earliest`."""
    now = time.monotonic()
    return math.ceil(max(earliest, now) / BEAT_SECONDS) * BEAT_SECONDS - now


def _weight(event: NewEvent) -> int:
    return 1 + len(event.data or "") // ROW_BYTES


class Transcript:
    """What one run says. `say` never waits; `finish` returns when everything is written down."""

    def __init__(self, event_writer: EventWriter, job: ClaimedJob) -> None:
        self._event_writer = event_writer
        self._job_id = job.id
        self._lease_token = job.lease_token
        self._attempt = job.attempt
        # The seq of the claim: unlike the attempt's number, no two runs share it.
        self._run = job.seq
        self._live: LiveOutput | None = None
        self._unwritten: list[Part] = []
        self._written = 0
        self._writer: asyncio.Task[None] | None = None
        self._finishing = asyncio.Event()

    def open(self) -> LiveOutput:
        if self._live is None:
            self._live = self._event_writer.live.open(self._job_id, self._run)
        return self._live

    def say(self, part: Part) -> None:
        """Output: text as it comes, or a frame that is more than text."""
        if not part:
            return
        self.open().add(part)
        self._unwritten.append(part)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())

    async def note(self, type_: str, data: dict[str, Any], *, progress: dict[str, Any] | None = None) -> bool:
        """Progress or a log entry; False when the lease is lost."""
        written = await self._event_writer.append(
            NewEvent(
                self._job_id,
                type_,
                orjson.dumps(data).decode(),
                self._lease_token,
                None if progress is None else orjson.dumps(progress).decode(),
            )
        )
        return written is not None

    async def finish(self, *, result_follows: bool) -> None:
        """Write the rest, unless the result that follows holds all that was said."""
        if result_follows and self._written == 0 and all(isinstance(part, str) for part in self._unwritten):
            self._unwritten = []
        self._finishing.set()
        if self._writer is not None:
            await self._writer

    def close(self, result: str | None = None) -> None:
        """The run is settled: listeners go on with the job's end, which is `result` if that made it done."""
        if self._live is not None:
            self._event_writer.live.close(self._job_id, self._live, result)

    async def _write(self) -> None:
        """One row at every other beat, unless the run has ended."""
        earliest = time.monotonic() + FIRST_ROW_SECONDS if self._written == 0 else 0.0
        while True:
            if not self._finishing.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._finishing.wait(), _until_beat(earliest))
            # Half a beat is the room for waking up late and still being on time for the next.
            earliest = time.monotonic() + ROW_SECONDS - BEAT_SECONDS / 2
            row, self._unwritten = self._unwritten, []
            if not row:
                self._writer = None
                return
            try:
                await self._event_writer.append(self._event(row))
            except Unavailable:
                # The log is the second copy; the result, which follows, is complete by itself.
                log.debug("event_writer.output_not_written", job_id=self._job_id)

    def _event(self, parts: list[Part]) -> NewEvent:
        text = "".join(part for part in parts if isinstance(part, str))
        data: dict[str, Any] = {
            "attempt": self._attempt,
            "run": self._run,
            "offset": self._written,
            "text": text,
        }
        if any(not isinstance(part, str) for part in parts):
            data["parts"] = parts
        self._written += sum(width(part) for part in parts)
        return NewEvent(self._job_id, "output", orjson.dumps(data).decode(), self._lease_token)
