"""The hub: hints that something changed, at once within the process and coalesced between replicas.

A hint may be lost, late or doubled; nobody relies on it. Underneath, one query per poll interval asks
for all the watched jobs at once, and the worker polls for work. So LISTEN/NOTIFY only makes it faster,
and without it (PgBouncer, a lost connection) everything still happens. Never one NOTIFY per row, and none
at all while no other process listens (neighbours.py).
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import structlog

from app.events.log import LogReader
from app.events.neighbours import GREET_SECONDS, Neighbours
from app.loops.alarm import Alarm
from app.loops.loop import Loop
from app.store import notices, read
from app.store.changes import Changes, Failure
from app.store.database import Database
from app.telemetry import NOTICES, WATCHED, SparingLog, child, observe_all

# How long hints are gathered before they leave together; longer while they follow each other closely.
GATHER_SECONDS = 0.004
GATHER_MANY_SECONDS = 0.010
CLOSELY_SECONDS = 0.05
# More changed jobs than this are announced as "many": the listeners then look for themselves.
MANY = 250
# However often "many" is heard, all watched jobs are looked up no more often than this.
LOOK_AGAIN_SECONDS = 0.05

Listener = Callable[[Changes[Any]], None]
OnChange = Callable[[], None]

log = structlog.get_logger()

_SENT = NOTICES.labels("sent")
_HEARD = NOTICES.labels("heard")


class Watch(Alarm):
    """One waiter on one job. Registered before the job is read, so that no change falls in between."""

    __slots__ = ("hears_the_run", "job_id", "seen")

    def __init__(self, job_id: str) -> None:
        super().__init__()
        self.job_id = job_id
        self.seen = 0
        # Rung by the run itself, word by word: what the log says meanwhile is no news.
        self.hears_the_run = False

    @contextlib.contextmanager
    def hearing(self) -> Iterator[None]:
        self.hears_the_run = True
        try:
            yield
        finally:
            self.hears_the_run = False

    async def changed(self, seen: int, timeout: float) -> bool:
        """Wait until the job's log may have moved past `seen`; False when the time is over."""
        self.seen = seen
        return await self.wait(timeout)


class Hub:
    """Hints between the parts of one process, and between processes; `log` is what the woken ones read."""

    def __init__(
        self,
        database: Database,
        listen_url: str | None,
        poll_seconds: float,
        on_announced: Listener | None = None,
    ) -> None:
        self.log = LogReader(database)
        # Hears what happened in this process, and nothing of the others: who writes the traces.
        self._on_announced = on_announced
        self._database = database
        self._listen_url = listen_url
        self._origin = secrets.token_hex(6)
        self._watches: dict[str, set[Watch]] = {}
        self._listeners: list[Listener] = []
        self._on_change: set[OnChange] = set()
        self._neighbours = Neighbours()
        # What the other processes have yet to be told.
        self._untold: Changes[None] = Changes()
        # Somebody has just come, and is to look around.
        self._newcomer = False
        self._bad_ends = SparingLog(log)
        self._connection: notices.Listener | None = None
        self._lost_at: float | None = None
        self.closing = False
        self._sent = 0.0
        self._looked = 0.0
        self._sender = Loop("hub-sender", self._send, interval=3600)
        self._listener = Loop("hub-listener", self._listen, interval=GREET_SECONDS)
        self._poller = Loop("hub-poller", self._poll, interval=poll_seconds)

    async def start(self) -> None:
        await self._sender.start()
        await self._poller.start()
        if self._listen_url:
            await self._listener.start()

    async def stop(self) -> None:
        await asyncio.gather(self._sender.stop(), self._poller.stop(), self._listener.stop())
        if self._connection is not None:
            self._connection.close()
        self._bad_ends.tell_the_rest()

    def close_watches(self) -> None:
        """Shutting down: everyone who waits on the line is answered now, with what there is."""
        self.closing = True
        for watches in self._watches.values():
            for watch in watches:
                watch.ring()
        self._changed_somewhere()

    # -- telling ---------------------------------------------------------------------------------

    def announce(self, changes: Changes[Any]) -> None:
        """Wake whom it concerns here, tell the other processes, count. To be called after the commit."""
        self._spread(changes)
        if self._neighbours.may_listen:
            self._tell_others(changes)
        for counted, number in changes.counts.items():
            child(*counted).inc(number)
        for counted, seconds in changes.durations.items():
            observe_all(child(*counted), seconds)
        for failure in changes.failed:
            self._log_failure(failure)
        if self._on_announced is not None:
            self._on_announced(changes)

    def _tell_others(self, changes: Changes[Any]) -> None:
        untold = self._untold
        if changes.jobs and len(untold.jobs) <= MANY:
            untold.jobs |= changes.jobs
        untold.work |= changes.work
        untold.cancels |= changes.cancels
        untold.room |= changes.room
        untold.settings |= changes.settings
        if untold.jobs or untold.work or untold.cancels or untold.room or untold.settings:
            self._sender.wake()

    def _spread(self, changes: Changes[Any]) -> None:
        """What is new here, wherever it happened."""
        for listener in self._listeners:
            listener(changes)
        self._wake(changes.jobs)
        if changes.jobs or changes.work or changes.settings:
            self._changed_somewhere()

    def _log_failure(self, failure: Failure) -> None:
        """A job ended badly. Of its error only the code: the message is the target's or the worker's text."""
        self._bad_ends.warning(
            f"job.{failure.state}",
            job_id=failure.job_id,
            kind=failure.kind,
            queue=failure.queue,
            attempt=failure.attempt,
            code=failure.code,
            request_id=failure.request_id,
        )

    def nudge(self, job_id: str) -> None:
        """Wake who watches this job in this process; for what never reaches the database as such."""
        self._wake((job_id,))

    def _wake(self, job_ids: Iterable[str]) -> None:
        if self._watches:
            for job_id in job_ids:
                for watch in self._watches.get(job_id, ()):
                    if not watch.hears_the_run:
                        watch.ring()

    # -- being told --------------------------------------------------------------------------------

    def subscribe(self, listener: Listener) -> None:
        """Be told of all changes that are announced here, and of what crosses from other processes."""
        self._listeners.append(listener)

    def wakes(self, loop: Loop, concerns: Callable[[Changes[Any]], bool]) -> None:
        """Let the loop run at once after changes that concern it."""
        self.subscribe(lambda changes: loop.wake() if concerns(changes) else None)

    @contextlib.contextmanager
    def any_change(self, callback: OnChange) -> Iterator[None]:
        """Be told that something changed somewhere, not what."""
        self._on_change.add(callback)
        try:
            yield
        finally:
            self._on_change.discard(callback)

    @contextlib.contextmanager
    def watch(self, job_id: str) -> Iterator[Watch]:
        watch = Watch(job_id)
        if self.closing:
            watch.ring()
        self._watches.setdefault(job_id, set()).add(watch)
        WATCHED.inc()
        try:
            yield watch
        finally:
            watch.put_away()
            WATCHED.dec()
            others = self._watches[job_id]
            others.discard(watch)
            if not others:
                del self._watches[job_id]

    def log_is_read(self, job_id: str) -> bool:
        """Whether somebody may wait for what is written into this job's log, here or in another process."""
        return (
            self._neighbours.may_listen
            or bool(self._on_change)
            or any(not watch.hears_the_run for watch in self._watches.get(job_id, ()))
        )

    # -- the loops ---------------------------------------------------------------------------------

    async def _send(self) -> float | None:
        closely = time.monotonic() - self._sent < CLOSELY_SECONDS
        await asyncio.sleep(GATHER_MANY_SECONDS if closely else GATHER_SECONDS)
        untold, self._untold = self._untold, Changes()
        newcomer, self._newcomer = self._newcomer, False
        too_many = len(untold.jobs) > MANY
        # An answer to a newcomer alone tells of no change.
        is_change = untold != Changes()
        if too_many:
            untold.jobs = set()
        self._sent = time.monotonic()
        # What is lost here is found by the others' polling.
        sent = await notices.send(self._database, self._origin, untold, many=newcomer or too_many)
        if sent and is_change:
            _SENT.inc()
        return None

    async def _listen(self) -> float | None:
        if self._connection is not None and self._connection.is_open:
            if await self._connection.greet(self._origin):
                return None
            # Open, but nobody is at the other end: what passes for idle would never be heard on again.
            log.warning("hub.listening_connection_hangs")
            self._connection.close()
        self._connection = await notices.Listener.open(
            self._listen_url or "", self._database.listening, self._heard, self._lost
        )
        if self._lost_at is not None:
            # A longer one was told of while it lasted, too (app/store/outage.py).
            seconds = round(time.monotonic() - self._lost_at, 1)
            log.warning("hub.listens_again", seconds=seconds)
            self._lost_at = None
        await self._connection.greet(self._origin, asks=True)
        # Whatever was said while nobody listened is looked up.
        self._poller.wake()
        return None

    def _lost(self) -> None:
        self._neighbours.lost()
        if self._lost_at is None:
            self._lost_at = time.monotonic()
        # Replaced at once, not at the next look.
        self._listener.wake()

    def _heard(self, payload: str) -> None:
        notice = notices.read(payload)
        if notice.origin == self._origin:
            self._neighbours.heard_itself()
            return
        self._neighbours.heard()
        if notice.asks:
            # Of what happened before it was known to be there, it was not told.
            self._newcomer = True
            self._sender.wake()
        if notice.is_greeting:
            return
        _HEARD.inc()
        self._spread(notice.changes())
        if notice.many:
            self._changed_somewhere()
            if self._watches:
                self._poller.wake()

    async def _poll(self) -> float | None:
        if not self._watches:
            return None
        await asyncio.sleep(max(0.0, self._looked + LOOK_AGAIN_SECONDS - time.monotonic()))
        seen = {
            job_id: min(watch.seen for watch in watches)
            for job_id, watches in self._watches.items()
            if not all(watch.hears_the_run for watch in watches)
        }
        self._looked = time.monotonic()
        if not seen:
            return None
        # Of a change that another process made, and whose hint was lost.
        self._spread(Changes(jobs=set(await read.moved_past(self._database, seen))))
        return None

    def _changed_somewhere(self) -> None:
        for callback in self._on_change:
            callback()
