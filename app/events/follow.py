"""Following a job's output from any position, live where it runs and through the log everywhere else.

A reader's place is (run, position): which run of the job, and how far into what it said. When the job is
run anew (its worker died, it was released or retried), the new run says everything from the start. As long
as that repeats what the reader already has, the reader notices nothing; when it says something else, the
reader is told, because what was sent cannot be taken back.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
import structlog

from app.dialects.kept import is_end, rest_of, text_of
from app.errors import InvalidRequest, NotFound, Unavailable
from app.events.hub import Hub, Watch
from app.events.live_output import LiveOutput, LiveOutputs, Part, width
from app.jobs.artifacts import completion
from app.jobs.states import TERMINAL
from app.store.database import Database
from app.store.events import Event, Page, Want
from app.store.job import Job
from app.store.read import get_job


class Output(msgspec.Struct, frozen=True, gc=False):
    """A piece of output: `position` is where it ends, so that a reader can resume right after it."""

    run: int
    position: int
    part: Part


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing for a while: time to keep the connection alive."""

    state: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """The job was run anew and says something else than before: the reader has to begin again. Comes last."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The job ended, or the server is closing: then its state is not terminal. Comes last.

    `result` and `error` are JSON text.
    """

    state: str
    result: str | None
    error: str | None


Followed = Output | Quiet | Restarted | Ended

# How many pieces are handed on at once: a reader that is far behind gets them at its own pace.
AT_ONCE = 64

# A run begins with its claim; its rows follow until the next one.
_BEGINS = "loading"
_WITH_OUTPUT: tuple[str, ...] = (_BEGINS, "output")
_WITHOUT_OUTPUT: tuple[str, ...] = (_BEGINS,)

# How long to wait before a database that is away is asked once more.
AWAY_SECONDS = 1.0

Unit = str | dict[str, Any]
# Tells the reader a piece without waiting for anything; False when that is not possible now.
TellNow = Callable[[Part], bool]

log = structlog.get_logger()


class _DivergedError(Exception):
    """The new run does not repeat the old one."""


class Follower:
    """Follows one job's output. Holds no database connection while it waits."""

    def __init__(self, database: Database, hub: Hub, live: LiveOutputs, job_id: str, tenant: str) -> None:
        self._database = database
        self._hub = hub
        self._live_outputs = live
        self._job_id = job_id
        self._tenant = tenant
        self._watch: Watch | None = None
        self._abandoned = False
        # How far the log was read, and what is looked for in it.
        self._seq = 0
        self._types = _WITH_OUTPUT
        # The run that is being read, and the position up to which the reader has it.
        self._run = 0
        self._position = 0
        # Of a run in this process: how far it was heard, and when it was last told on.
        self._reached = 0
        self._spoke = 0.0
        # Waiting for the run's next word, with nothing of the last ones still on its way to the reader.
        self._is_listening = False
        self._tell_now: TellNow | None = None
        self._only_end = False
        # What the reader has from an earlier run, as far as the new one has not yet repeated it.
        self._past: list[Unit] | None = None
        # A row is missing: the rest comes from the result, if positions in it are those of the run. They are
        # not when the run said more than text.
        self._hole = False
        self._result_fits = True
        # What texts look like, as long as the reader was not told: that was said before its place.
        self._like: Part | None = None

    async def resume(self, run: int, position: int) -> None:
        """Go on behind what the reader already has. Raises InvalidRequest for a place never given out."""
        events = (await self._page(run - 1, _WITHOUT_OUTPUT)).events
        if not events or events[0].seq != run:
            raise InvalidRequest("Last-Event-ID is not an id of this job's stream.")
        self._run, self._position, self._seq = run, position, run

    def abandon(self) -> None:
        """The reader is gone: what is being followed ends without a last word."""
        self._abandoned = True
        if self._watch is not None:
            self._watch.ring()

    async def follow(
        self,
        quiet_seconds: float,
        *,
        fresh: bool = False,
        tell_now: TellNow | None = None,
        only_end: bool = False,
    ) -> AsyncGenerator[Sequence[Followed], None]:
        """Pieces in order, `Quiet` at least every `quiet_seconds`, and one of the two last words, once.

        What is there together comes together, so that it can be sent together. `fresh`: the job was enqueued
        just now, so there is nothing to read before something happens. `tell_now` is asked to take a piece
        right where the run says it; those that it takes do not come here, and a reader who waits for nothing
        else costs no turn of the loop for each word. `only_end`: the reader waits for the whole, and `Quiet`
        comes however much is said.
        """
        self._tell_now = tell_now
        self._only_end = only_end
        with self._hub.watch(self._job_id) as watch:
            self._watch = watch
            try:
                silent = fresh and not self._abandoned and self._live_outputs.get(self._job_id) is None
                if silent and not await watch.changed(1, quiet_seconds):
                    yield [Quiet("queued")]
                while not self._abandoned:
                    live = self._live_outputs.get(self._job_id)
                    # An older run that does not know yet that it lost its lease is not listened to.
                    if live is not None and live.run >= self._run:
                        with live.heard_by(self._ear(live, watch)), watch.hearing():
                            await self._enter_live(live)
                            while (heard := await self._hear(live, watch, quiet_seconds)) is not None:
                                yield heard
                        if live.result is not None and self._has_heard(live):
                            yield [Ended("done", live.result, None)]
                            return
                    async for read in self._read_on(watch, quiet_seconds):
                        yield read
                        if isinstance(read[-1], Ended):
                            return
            except _DivergedError:
                yield [Restarted()]

    async def _read_on(self, watch: Watch, quiet_seconds: float) -> AsyncIterator[Sequence[Followed]]:
        """The next page of the log; where there is none, what comes next is waited for."""
        if self._abandoned:
            # The ring that said so is spent: nothing may be waited for any more.
            return
        page = await self._page_when_there(watch)
        if page is None:
            yield [Quiet("unknown")]
            return
        if not self._run:
            page = await self._from_last_run(page)
        pieces = [piece for event in page.events for piece in await self._read(event)]
        if pieces:
            yield pieces
        self._seq = page.next_after
        if not page.is_last:
            return
        self._types = _WITH_OUTPUT
        ending = await self._ending(page)
        if ending:
            yield ending
        elif not await watch.changed(page.seq, quiet_seconds):
            yield [Quiet(page.state)]

    # -- where it runs -----------------------------------------------------------------------------

    async def _enter_live(self, live: LiveOutput) -> None:
        await self._enter(live.run)
        self._hole = False
        self._reached = 0 if self._past is not None else self._position
        if self._reached:
            self._like = self._like or live.last_kept_before(self._reached - 1)
        self._spoke = time.monotonic()

    async def _hear(self, live: LiveOutput, watch: Watch, quiet_seconds: float) -> Sequence[Followed] | None:
        """What the run says next; None when it is over, or nobody listens any more."""
        while not self._abandoned:
            if live.end > self._reached:
                pieces: list[Followed] = []
                for start, part in live.after(self._reached, AT_ONCE):
                    self._reached = start + width(part)
                    piece = self._piece(part, start)
                    if piece is not None:
                        pieces.append(piece)
                if pieces:
                    self._has_spoken()
                    return pieces
            elif live.closed:
                # All of it was heard: the log has nothing to add but what came next.
                self._seq, self._types, self._result_fits = live.run, _WITHOUT_OUTPUT, False
                return None
            else:
                self._is_listening = True
                try:
                    await watch.wait(max(0.01, quiet_seconds - (time.monotonic() - self._spoke)))
                finally:
                    self._is_listening = False
            if time.monotonic() - self._spoke >= quiet_seconds:
                self._spoke = time.monotonic()
                return [Quiet("working")]
        return None

    def _ear(self, live: LiveOutput, watch: Watch) -> Callable[[], None]:
        """What the run calls with each word: the reader is told at once, or its task is woken to do it."""

        def heard() -> None:
            if not self._is_listening or not self._was_told_now(live):
                watch.ring()

        return heard if self._tell_now is not None else watch.ring

    def _was_told_now(self, live: LiveOutput) -> bool:
        """Only the next word of a run that was heard so far, and nothing that has to be compared."""
        if self._tell_now is None or live.closed or self._past is not None or self._hole:
            return False
        start, part = live.last()
        if not start == self._reached == self._position or self._like is not None:
            return False
        try:
            if not self._tell_now(part):
                return False
        except Exception:
            # It is this reader's trouble and not the run's: its task meets it again, and ends with it.
            log.debug("follower.not_told_now", job_id=self._job_id, exc_info=True)
            return False
        self._reached = self._position = live.end
        self._has_spoken()
        if not isinstance(part, str) and _is_more_than_text(part):
            self._result_fits = False
        return True

    def _has_spoken(self) -> None:
        if not self._only_end:
            self._spoke = time.monotonic()

    def _has_heard(self, live: LiveOutput) -> bool:
        """All of that run, and nothing that it did not say."""
        return self._run == live.run and self._position == live.end and self._past is None

    # -- through the log ---------------------------------------------------------------------------

    async def _page(self, after: int, types: tuple[str, ...]) -> Page:
        return await _page_of(self._hub, self._job_id, after, types, self._tenant)

    async def _page_when_there(self, watch: Watch) -> Page | None:
        """None while the database is away: the reader keeps its place, there is no reason to send it off."""
        try:
            return await self._page(self._seq, self._types)
        except Unavailable:
            if self._hub.closing:
                raise
            await watch.wait(AWAY_SECONDS)
            return None

    async def _ending(self, page: Page) -> list[Output | Ended]:
        """The last words, if it is time for them."""
        if page.state not in TERMINAL and not self._hub.closing:
            return []
        job = await self._job()
        # It may have been revived in this very moment.
        if job.state not in TERMINAL and not self._hub.closing:
            return []
        return [*self._rest_of(job), Ended(job.state, job.result, job.error)]

    async def _job(self) -> Job:
        job = await get_job(self._database, self._job_id, self._tenant)
        if job is None:
            raise NotFound("There is no such job.")
        return job

    async def _read(self, event: Event) -> list[Output]:
        if event.type == _BEGINS:
            await self._enter(event.seq)
            return []
        return [piece for part, start in _parts(event) if (piece := self._piece(part, start)) is not None]

    async def _from_last_run(self, page: Page) -> Page:
        """A reader who has nothing yet begins with the run that counts; what earlier ones said is history."""
        runs = [event.seq for event in page.events if event.type == _BEGINS]
        known = page
        while not known.is_last:
            known = await self._page(known.next_after, _WITHOUT_OUTPUT)
            runs += [event.seq for event in known.events]
        if len(runs) < 2:
            return page
        return await self._page(runs[-1] - 1, _WITH_OUTPUT)

    async def _enter(self, run: int) -> None:
        """A run begins. What the reader has from an earlier one is remembered, to be compared."""
        if run <= self._run:
            return
        if self._position and self._past is None:
            self._past = await self._recall(self._run, self._position)
            if not self._past:
                raise _DivergedError
        self._run, self._hole, self._result_fits = run, False, True

    async def _recall(self, run: int, position: int) -> list[Unit]:
        """What the log knows of the first `position` units of that run; the last moments may be missing."""
        units: list[Unit] = []
        after = run
        while True:
            page = await self._page(after, _WITH_OUTPUT)
            for event in page.events:
                if event.type == _BEGINS:
                    return units[:position]
                for part, start in _parts(event):
                    if start != len(units):
                        return units[:position]
                    units += _units(part)
                if len(units) >= position:
                    return units[:position]
            if page.is_last:
                return units[:position]
            after = page.next_after

    def _rest_of(self, job: Job) -> Iterator[Output]:
        """What was never written down as a row stands in the result: a quick run's whole answer."""
        if job.state != "done" or job.kind == "embed" or not self._result_fits:
            return
        self._hole = False
        text = completion(job.kind, job.result)
        piece = self._piece(text, 0) if text else None
        if piece is not None:
            yield piece

    def _piece(self, part: Part, start: int) -> Output | None:
        """What of this part lies beyond the reader's position."""
        if _is_more_than_text(part):
            self._result_fits = False
        if self._past is not None:
            self._compare(part, start, self._past)
        end = start + width(part)
        if start > self._position and self._result_fits:
            self._hole = True
        if end <= self._position or self._hole:
            if not isinstance(part, str) and text_of(part) is not None:
                self._like = part
            return None
        if start < self._position:
            part = rest_of(part, self._position - start)
        self._position, self._past = end, None
        return Output(self._run, end, self._with_its_looks(part))

    def _with_its_looks(self, part: Part) -> Part:
        like, self._like = self._like, None
        if not isinstance(like, dict) or not isinstance(part, str):
            return part
        return {"frame": like["frame"], "says": part}

    def _compare(self, part: Part, start: int, past: list[Unit]) -> None:
        for offset, unit in enumerate(_units(part)[: max(0, len(past) - start)]):
            if past[start + offset] != unit:
                raise _DivergedError


async def earlier_runs(hub: Hub, job_id: str, tenant: str) -> list[list[Part]]:
    """What each run before the last one said, as far as the log knows: nearly always there is none."""
    if not await _was_run_again(hub, job_id, tenant):
        return []
    runs: list[list[Part]] = []
    after, is_last = 0, False
    while not is_last:
        page = await _page_of(hub, job_id, after, _WITH_OUTPUT, tenant)
        for event in page.events:
            if event.type == _BEGINS:
                runs.append([])
            elif runs:
                runs[-1] += [part for part, _ in _parts(event)]
        after, is_last = page.next_after, page.is_last
    return runs[:-1]


async def _was_run_again(hub: Hub, job_id: str, tenant: str) -> bool:
    begun, after, is_last = 0, 0, False
    while begun < 2 and not is_last:
        page = await _page_of(hub, job_id, after, _WITHOUT_OUTPUT, tenant)
        begun += len(page.events)
        after, is_last = page.next_after, page.is_last
    return begun > 1


async def _page_of(hub: Hub, job_id: str, after: int, types: tuple[str, ...], tenant: str) -> Page:
    page = await hub.log.read(Want(job_id, after, types, tenant=tenant))
    if page is None:
        raise NotFound("There is no such job.")
    return page


def _parts(event: Event) -> Iterator[tuple[Part, int]]:
    """The parts of an output row, each with the position at which it begins."""
    data = orjson.loads(event.data or "{}")
    start: int = data["offset"]
    for part in data.get("parts") or [data["text"]]:
        yield part, start
        start += width(part)


def _units(part: Part) -> list[Unit]:
    """Of ends, one is as good as another: their figures differ from run to run."""
    text = text_of(part)
    if text is not None:
        return list(text)
    return [{"ends": []}] if is_end(part) else [part]


def _is_more_than_text(part: Part) -> bool:
    """Then positions in it are no longer those in the result."""
    return text_of(part) is None and not is_end(part)
