"""Writes down what running jobs say: output, progress, logs.

Output is gathered so that a job writes at most one row per 100 ms, however fast its tokens come, and all jobs
write on the same beat, so that their rows share a statement. While nobody reads a job's log, its rows are
fewer. What is left when the run ends goes into the commit of its settlement. A quick run that has said text
only and is over before its first row leaves none: its result says it all.
Listeners in this process wait for none of that (see events/live_output.py).
"""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import orjson
import structlog

from app.dialects import dialect_named
from app.dialects.kept import is_end, shown_text, text_of
from app.errors import Unavailable
from app.events.hub import Hub
from app.events.live_output import LiveOutput, LiveOutputs, Part, width
from app.loops.batcher import Batcher
from app.store.database import Database
from app.store.events import Appended, NewEvent, append
from app.store.job import ClaimedJob

log = structlog.get_logger()

FIRST_ROW_SECONDS = 0.03
BEAT_SECONDS = 0.1
# Between the rows of a job whose log nobody reads.
UNREAD_ROW_SECONDS = 1.0
# A run that spoke for no longer than that was quick.
QUICK_SECONDS = 0.1
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
            "events", self._flush, max_weight=MAX_ROWS, weight=_weight
        )
        # Those that have said something which is not written down yet; and the timer of their next beat.
        self._speaking: set[Transcript] = set()
        self._beat: asyncio.TimerHandle | None = None

    async def append(self, event: NewEvent) -> Appended | None:
        return await self._batcher.put(event)

    def write(self, event: NewEvent) -> "asyncio.Future[Appended | None]":
        """The same, for those who do not wait for it."""
        return self._batcher.submit(event)

    async def drain(self) -> None:
        await self._batcher.drain()

    def is_read(self, job_id: str) -> bool:
        """Whether anybody may be waiting for the rows of this job."""
        return self._hub.log_is_read(job_id)

    def spoke(self, transcript: "Transcript") -> None:
        """It has something to write down, at the next beat at which it may."""
        self._speaking.add(transcript)
        if self._beat is None:
            self._beat = asyncio.get_running_loop().call_later(_until_beat(), self._on_beat)

    def fell_silent(self, transcript: "Transcript") -> None:
        self._speaking.discard(transcript)

    def _on_beat(self) -> None:
        now = time.monotonic()
        for transcript in [each for each in self._speaking if each.is_due(now)]:
            transcript.write_row(now)
        self._beat = None
        if self._speaking:
            self._beat = asyncio.get_running_loop().call_later(_until_beat(), self._on_beat)

    async def _flush(self, events: Sequence[NewEvent]) -> Sequence[Appended | None]:
        changes = await append(self._database, events)
        self._hub.announce(changes)
        return changes.answers


def _until_beat() -> float:
    """Seconds until the next beat; one that would be at once has just been."""
    now = time.monotonic()
    left = math.ceil(now / BEAT_SECONDS) * BEAT_SECONDS - now
    return left if left > BEAT_SECONDS / 10 else left + BEAT_SECONDS


def _weight(event: NewEvent) -> int:
    return 1 + len(event.data or "") // ROW_BYTES


class Transcript:
    """What one run says. `say` never waits; `finish` returns what has to be written with the settlement."""

    def __init__(self, event_writer: EventWriter, job: ClaimedJob) -> None:
        self._event_writer = event_writer
        self._job = job
        self._numbers_events = dialect_named(job.dialect).numbers_events
        self._live: LiveOutput | None = None
        self._unwritten: list[Part] = []
        self._written = 0
        # When the first word was said, when the next row may be written, and the one that is on its way.
        self._began = 0.0
        self._due = 0.0
        self._row: asyncio.Future[Appended | None] | None = None

    def open(self) -> LiveOutput:
        if self._live is None:
            # A run is known by the seq of the claim: unlike the attempt's number, no two runs share it.
            self._live = self._event_writer.live.open(self._job.id, self._job.seq)
        return self._live

    def say(self, part: Part) -> None:
        """Output: text as it comes, or a frame that is more than text."""
        if not part:
            return
        live = self._live
        if live is None:
            live = self.open()
        live.add(part)
        if not self._unwritten:
            if not self._began:
                self._began = time.monotonic()
                self._due = self._began + self._pause(FIRST_ROW_SECONDS)
            self._event_writer.spoke(self)
        self._unwritten.append(part)

    async def note(self, type_: str, data: dict[str, Any], *, progress: dict[str, Any] | None = None) -> bool:
        """Progress or a log entry; False when the lease is lost."""
        written = await self._event_writer.append(
            NewEvent(
                self._job.id,
                type_,
                orjson.dumps(data).decode(),
                self._job.lease_token,
                None if progress is None else orjson.dumps(progress).decode(),
            )
        )
        return written is not None

    def is_due(self, now: float) -> bool:
        """Not while a row is on its way: a database that is slow gets larger rows, not more of them."""
        return now >= self._due and self._row is None

    def write_row(self, now: float) -> None:
        self._event_writer.fell_silent(self)
        # Half a beat is the room for a beat that comes late: the next one need not be missed.
        self._due = now + self._pause(BEAT_SECONDS / 2)
        self._row = self._event_writer.write(self._as_event(self._take()))
        self._row.add_done_callback(self._was_written)

    def _pause(self, if_read: float) -> float:
        """Seconds until the next row, as far as can be told now: whoever comes later waits for it once."""
        # Webhooks of output are readers as well, and whoever hears the run may come back to read on.
        is_read = (
            self._job.webhook_url is not None
            or self._numbers_events
            or self._event_writer.is_read(self._job.id)
        )
        return if_read if is_read else UNREAD_ROW_SECONDS - BEAT_SECONDS / 2

    def _was_written(self, row: "asyncio.Future[Appended | None]") -> None:
        self._row = None
        if not row.cancelled() and row.exception() is not None:
            # The log is the second copy; the result, which follows, is complete by itself.
            log.debug("event_writer.output_not_written", job_id=self._job.id)

    async def finish(self, *, result_follows: bool) -> str | None:
        """The data of a last row, to be written with the settlement; None when there is nothing to write.

        Whoever gets webhooks for output gets one of that row as well: it is then written here, on its own.
        """
        self._event_writer.fell_silent(self)
        if self._row is not None:
            # Output comes before the end, also in the log.
            await asyncio.wait([self._row])
        if not self._unwritten or (result_follows and self._result_says_it_all()):
            return None
        data = self._take()
        if self._job.webhook_url is None:
            return data
        try:
            await self._event_writer.append(self._as_event(data))
        except Unavailable:
            log.debug("event_writer.output_not_written", job_id=self._job.id)
        return None

    def _result_says_it_all(self) -> bool:
        """And nobody can have missed the rows that such a run would have."""
        quick = self._written == 0 and time.monotonic() - self._began <= QUICK_SECONDS
        if not quick:
            return False
        frames = [part for part in self._unwritten if not isinstance(part, str) and not is_end(part)]
        # One that shows what the texts look like is in the result as well.
        return not frames or (len(frames) == 1 and text_of(frames[0]) is not None)

    def close(self, result: str | None = None) -> None:
        """The run is settled: listeners go on with the job's end, which is `result` if that made it done."""
        self._event_writer.fell_silent(self)
        if self._live is not None:
            self._event_writer.live.close(self._job.id, self._live, result)

    def _take(self) -> str:
        """What was said since the last row, as the data of the next."""
        parts, self._unwritten = self._unwritten, []
        text = "".join([shown_text(part) for part in parts])
        data: dict[str, Any] = {
            "attempt": self._job.attempt,
            "run": self._job.seq,
            "offset": self._written,
            "text": text,
        }
        if any(not isinstance(part, str) for part in parts):
            data["parts"] = parts
        self._written += sum(width(part) for part in parts)
        return orjson.dumps(data).decode()

    def _as_event(self, data: str) -> NewEvent:
        return NewEvent(self._job.id, "output", data, self._job.lease_token)
