"""The hub: hints that something changed, at once within the process and coalesced between replicas.

A hint may be lost, late or doubled; nobody relies on it. Underneath, one query per poll interval asks
for all the watched jobs at once, and the worker polls for work. So LISTEN/NOTIFY only makes it faster,
and without it (PgBouncer, a lost connection) everything still happens. Never one NOTIFY per row.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import asyncpg
import orjson
import structlog

from app.events.log import LogReader
from app.loops.alarm import Alarm
from app.loops.loop import Loop
from app.store import notices, read
from app.store.database import AWAY, Database, connect, translated
from app.telemetry import NOTICES, WATCHED

# How long hints are gathered before they leave together; longer while they follow each other closely.
GATHER_SECONDS = 0.004
GATHER_MANY_SECONDS = 0.010
CLOSELY_SECONDS = 0.05
# More changed jobs than this are announced as "many": the listeners then look for themselves.
MANY = 250
# However often "many" is heard, all watched jobs are looked up no more often than this.
LOOK_AGAIN_SECONDS = 0.05
# How often the connection that listens is asked whether it still does, and how long it may take to answer.
ASK_SECONDS = 5.0
ANSWER_SECONDS = 5.0

OnWork = Callable[[str, str], None]
OnCancel = Callable[[Iterable[str]], None]
OnChange = Callable[[], None]
OnJobs = Callable[[Iterable[str]], None]
OnWebhooks = Callable[[Iterable[tuple[str, str]]], None]

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

    def __init__(self, database: Database, listen_url: str | None, poll_seconds: float) -> None:
        self.log = LogReader(database)
        self._database = database
        self._listen_url = listen_url
        self._origin = secrets.token_hex(6)
        self._watches: dict[str, set[Watch]] = {}
        self._on_work: list[OnWork] = []
        self._on_cancel: list[OnCancel] = []
        self._on_change: set[OnChange] = set()
        self._on_jobs: list[OnJobs] = []
        self._on_webhooks: list[OnWebhooks] = []
        self._jobs: set[str] = set()
        self._work: set[tuple[str, str]] = set()
        self._cancels: set[str] = set()
        self._connection: asyncpg.Connection | None = None
        self._closing = False
        self._sent = 0.0
        self._looked = 0.0
        self._sender = Loop("hub-sender", self._send, interval=3600)
        self._listener = Loop("hub-listener", self._listen, interval=ASK_SECONDS)
        self._poller = Loop("hub-poller", self._poll, interval=poll_seconds)

    async def start(self) -> None:
        await self._sender.start()
        await self._poller.start()
        if self._listen_url:
            await self._listener.start()

    async def stop(self) -> None:
        await asyncio.gather(self._sender.stop(), self._poller.stop(), self._listener.stop())
        if self._connection is not None and not self._connection.is_closed():
            self._connection.terminate()

    def close_watches(self) -> None:
        """Shutting down: everyone who waits on the line is answered now, with what there is."""
        self._closing = True
        for watches in self._watches.values():
            for watch in watches:
                watch.ring()
        self._changed_somewhere()

    @property
    def closing(self) -> bool:
        return self._closing

    # -- telling ---------------------------------------------------------------------------------

    def jobs_changed(self, job_ids: Iterable[str]) -> None:
        if self._watches or self._on_jobs:
            job_ids = list(job_ids)
            self._wake(job_ids)
        if len(self._jobs) <= MANY:
            self._jobs.update(job_ids)
        self._changed_somewhere()
        self._sender.wake()

    def nudge(self, job_id: str) -> None:
        """Wake who watches this job in this process; for what never reaches the database as such."""
        self._wake((job_id,))

    def work_ready(self, work: Iterable[tuple[str, str]]) -> None:
        """Claimable jobs appeared in these (queue, lane) pairs."""
        for queue, lane in work:
            for callback in self._on_work:
                callback(queue, lane)
            self._work.add((queue, lane))
        self._changed_somewhere()
        self._sender.wake()

    def webhooks_written(self, jobs: Iterable[tuple[str, str]]) -> None:
        """Jobs that changed here have a webhook: (job id, its URL). Heard in this process only."""
        for callback in self._on_webhooks:
            callback(jobs)

    def cancel_requested(self, job_ids: Iterable[str]) -> None:
        job_ids = list(job_ids)
        for callback in self._on_cancel:
            callback(job_ids)
        self._cancels.update(job_ids)
        self._sender.wake()

    # -- being told --------------------------------------------------------------------------------

    def on_work(self, callback: OnWork) -> None:
        self._on_work.append(callback)

    def on_cancel(self, callback: OnCancel) -> None:
        self._on_cancel.append(callback)

    def on_jobs(self, callback: OnJobs) -> None:
        """Told the ids of jobs whose log moved, here or on another replica."""
        self._on_jobs.append(callback)

    def on_webhooks(self, callback: OnWebhooks) -> None:
        self._on_webhooks.append(callback)

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
        if self._closing:
            watch.ring()
        self._watches.setdefault(job_id, set()).add(watch)
        WATCHED.inc()
        try:
            yield watch
        finally:
            WATCHED.dec()
            others = self._watches[job_id]
            others.discard(watch)
            if not others:
                del self._watches[job_id]

    # -- the loops ---------------------------------------------------------------------------------

    async def _send(self) -> float | None:
        if not (self._jobs or self._work or self._cancels):
            return None
        closely = time.monotonic() - self._sent < CLOSELY_SECONDS
        await asyncio.sleep(GATHER_MANY_SECONDS if closely else GATHER_SECONDS)
        jobs, self._jobs = self._jobs, set()
        work, self._work = self._work, set()
        cancels, self._cancels = self._cancels, set()
        # What is lost here is found by the others' polling.
        many = len(jobs) > MANY
        self._sent = time.monotonic()
        _SENT.inc()
        await notices.send(
            self._database, self._origin, jobs=() if many else jobs, many=many, work=work, cancels=cancels
        )
        return None

    async def _listen(self) -> float | None:
        if self._connection is not None and not self._connection.is_closed():
            if await self._answers(self._connection):
                return None
            # Open, but nobody is at the other end: what passes for idle would never be heard on again.
            log.warning("hub.listening_connection_hangs")
            self._connection.terminate()
        self._connection = await self._begin_to_listen()
        # Whatever was said while nobody listened is looked up.
        self._poller.wake()
        return None

    async def _begin_to_listen(self) -> asyncpg.Connection:
        connection = await connect(self._listen_url or "", self._database.listening)
        try:
            with translated():
                async with asyncio.timeout(ANSWER_SECONDS):
                    await connection.add_listener(notices.CHANNEL, self._heard)
        except BaseException:
            connection.terminate()
            raise
        # A lost connection is replaced at once, not at the next look.
        connection.add_termination_listener(lambda _: self._listener.wake())
        return connection

    async def _answers(self, connection: asyncpg.Connection) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.execute("SELECT 1")
        except AWAY:
            return False
        return True

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        notice = orjson.loads(str(payload))
        if notice["from"] == self._origin:
            return
        _HEARD.inc()
        self._wake(notice.get("jobs", ()))
        if notice.get("many") and self._watches:
            self._poller.wake()
        self._changed_somewhere()
        for queue, lane in notice.get("work", ()):
            for callback in self._on_work:
                callback(queue, lane)
        cancels = notice.get("cancels")
        if cancels:
            for on_cancel in self._on_cancel:
                on_cancel(cancels)

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
        self._wake(await read.moved_past(self._database, seen))
        return None

    def _wake(self, job_ids: Iterable[str]) -> None:
        for callback in self._on_jobs:
            callback(job_ids)
        for job_id in job_ids:
            for watch in self._watches.get(job_id, ()):
                if not watch.hears_the_run:
                    watch.ring()

    def _changed_somewhere(self) -> None:
        for callback in self._on_change:
            callback()
