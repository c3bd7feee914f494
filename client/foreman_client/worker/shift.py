"""One run of a worker, from the first claim to the last settlement."""

import asyncio
import contextlib
import logging
import signal
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from foreman_client.blocking import Foreman
from foreman_client.client import AsyncForeman
from foreman_client.compatibility import VersionMismatchWarning
from foreman_client.errors import ForemanError, RateLimited, Unavailable, Unreachable
from foreman_client.wire import without_password
from foreman_client.worker.active import LEASE_LOST, SHUTDOWN, ActiveJob
from foreman_client.worker.backoff import Backoff
from foreman_client.worker.claims import Claimer
from foreman_client.worker.reach import Reach
from foreman_client.worker.runner import Runner
from foreman_client.worker.settlements import Settlement, Settler
from foreman_client.worker.tasks import Task

log = logging.getLogger("foreman_client.worker")

# How long a claim is held open when there is no work.
WAIT_SECONDS: Final = 25.0
# A cancel is noticed at the next heartbeat, and its grace is 10 s by default.
HEARTBEAT_SECONDS: Final = 2.0
# A job that lasts longer than this is announced as working; shorter ones do not cost that call.
ANNOUNCE_SECONDS: Final = 0.02
# More unsettled jobs than this, and claiming waits.
MAX_UNSETTLED: Final = 5000
# How long after the end of its lease a result is kept for a server that does not answer.
PATIENCE_SECONDS: Final = 900.0
# Between two looks at the version of a server that is away.
VERSION_PAUSE_SECONDS: Final = 60.0
# The end: for a claim under way, for handlers that were cancelled, for the last settlements.
CLAIM_CUT_SECONDS: Final = 0.2
CLEANUP_SECONDS: Final = 0.25
FLUSH_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Terms:
    """A worker's settings."""

    url: str | None
    api_key: str | None
    name: str
    queues: tuple[str, ...]
    concurrency: int
    lease_seconds: float
    drain_seconds: float


class Shift:
    def __init__(self, terms: Terms, tasks: Mapping[str, Task]) -> None:
        self._terms = terms
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._client = AsyncForeman(terms.url, api_key=terms.api_key)
        self._settler = Settler(self._client, patience_seconds=PATIENCE_SECONDS)
        self._runner = Runner(self._settler, lambda: self._blocking_client)
        self._claimer = Claimer(
            self._client,
            worker=terms.name,
            queues=terms.queues,
            kinds=sorted(tasks),
            lease_seconds=terms.lease_seconds,
            wait_seconds=WAIT_SECONDS,
            concurrency=terms.concurrency,
        )
        # Jobs under our lease, and the tasks that occupy slots; a thread may outlive its job.
        self._active: dict[str, ActiveJob] = {}
        self._slots: set[asyncio.Task[None]] = set()
        self._reach = Reach()
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    @cached_property
    def _blocking_client(self) -> Foreman:
        """For handlers in threads; made when the first one runs."""
        return Foreman(self._terms.url, api_key=self._terms.api_key)

    async def work(self, *, signals: bool) -> None:
        if signals:
            # Windows has no such handlers; there Ctrl-C ends the loop, and the leases run out.
            with contextlib.suppress(NotImplementedError):
                for number in (signal.SIGTERM, signal.SIGINT):
                    self._loop.add_signal_handler(number, self._stop)
        background = [
            asyncio.create_task(self._settler.run(), name="foreman-settler"),
            asyncio.create_task(self._keep_leases(), name="foreman-leases"),
        ]
        claiming = asyncio.create_task(self._claim(), name="foreman-claims")
        # Beside the work, which neither waits for its answer nor ends with it.
        comparing = asyncio.create_task(self._compare_versions(), name="foreman-versions")
        stopping = asyncio.create_task(self._stopping.wait())
        server = without_password(self._client.url)
        log.info("worker %s takes %s from %s", self._terms.name, ", ".join(self._tasks), server)
        try:
            await asyncio.wait({claiming, stopping, *background}, return_when=asyncio.FIRST_COMPLETED)
            await self._leave(claiming)
            for task in (claiming, *background):
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            for each in (claiming, stopping, comparing, *background, *self._slots):
                each.cancel()
            await asyncio.gather(claiming, stopping, comparing, *background, return_exceptions=True)
            await self._client.close()
            if "_blocking_client" in self.__dict__:
                self._blocking_client.close()
            if signals:
                with contextlib.suppress(NotImplementedError):
                    for number in (signal.SIGTERM, signal.SIGINT):
                        self._loop.remove_signal_handler(number)

    async def _compare_versions(self) -> None:
        """Warn if the server is none that this client was made for; as soon as it answers."""
        backoff = Backoff(VERSION_PAUSE_SECONDS)
        while True:
            try:
                await self._client.check_version()
            except (Unreachable, Unavailable, RateLimited):
                await asyncio.sleep(backoff.next())
            except (ForemanError, VersionMismatchWarning) as error:
                # Made an error by the filters for warnings, or an answer of no use. Neither ends a worker.
                log.warning("the server's version: %s", error)
                return
            else:
                return

    def ask_to_stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()
        self._room.set()

    # --- claiming ------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        ahead: asyncio.Task[list[dict[str, Any]]] | None = None
        asked = 0
        try:
            while not self._stopping.is_set():
                if ahead is None:
                    if (free := await self._free_slots()) <= 0:
                        continue
                    asked = free + self._reach.beyond(free)
                    claimed = await self._claimer.claim(asked)
                else:
                    claimed, ahead = await ahead, None
                full = len(claimed) >= asked
                if full and self._reach.ahead and len(self._settler) <= MAX_UNSETTLED:
                    # These will have ended by the time that the next are here: nobody waits for the other.
                    asked = self._terms.concurrency + self._reach.beyond(self._terms.concurrency)
                    ahead = asyncio.create_task(self._claimer.claim(asked))
                surplus = await self._begin_all(claimed)
                self._reach.learn(full=full, all_ended=not self._slots, gave_back=bool(surplus))
            if ahead is not None:
                # Nothing begins any more: what it brings goes back to the queue.
                await self._begin_all(await ahead)
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.wait({ahead})

    async def _free_slots(self) -> int:
        """How many handlers may begin; 0 after having waited for one to end: then look at all of it again."""
        free = self._terms.concurrency - len(self._slots)
        if free <= 0:
            self._room.clear()
            await self._room.wait()
            return 0
        if len(self._settler) > MAX_UNSETTLED:
            await self._settler.drained()
        return free

    async def _begin_all(self, claimed: list[dict[str, Any]]) -> int:
        """Start what has room, as long as handlers end at once; give back the rest, and say how many."""
        lease_seconds = self._terms.lease_seconds
        waiting = deque(ActiveJob(data, self._client, self._settler, lease_seconds) for data in claimed)
        while waiting and len(self._slots) < self._terms.concurrency and not self._stopping.is_set():
            room = self._terms.concurrency - len(self._slots)
            self._begin([waiting.popleft() for _ in range(min(room, len(waiting)))])
            # One pass for handlers that end at once.
            await asyncio.sleep(0)
        for job in waiting:
            self._settler.put(Settlement(job, "release", {}))
        return len(waiting)

    def _begin(self, jobs: list[ActiveJob]) -> None:
        for job in jobs:
            task = self._tasks[job.kind]
            if task.blocking:
                job.interruptible = False
            if former := self._active.get(job.job_id):
                # The same job again: the lease of the run that we still have was given up on.
                former.lease_lost("lease_lost")
            self._active[job.job_id] = job
            # Named: to make up a name costs more than to be given one.
            job.runner = self._loop.create_task(self._run(task, job), name=task.kind)
            self._slots.add(job.runner)
        self._loop.call_later(ANNOUNCE_SECONDS, self._announce, jobs)

    def _announce(self, jobs: list[ActiveJob]) -> None:
        for job in jobs:
            if self._active.get(job.job_id) is job:
                job.announce()

    def _ended(self, job: ActiveJob) -> None:
        if self._active.get(job.job_id) is job:
            del self._active[job.job_id]

    async def _run(self, task: Task, job: ActiveJob) -> None:
        """Frees its slot itself: a callback would cost another turn of the loop for each job."""
        try:
            await self._runner.run(task, job, self._ended)
        except Exception:
            log.exception("a handler's runner broke")
        finally:
            if job.runner is not None:
                self._slots.discard(job.runner)
            self._room.set()

    # --- leases --------------------------------------------------------------------------------------------

    async def _keep_leases(self) -> None:
        every = min(self._terms.lease_seconds / 3, HEARTBEAT_SECONDS)
        while True:
            await asyncio.sleep(every)
            grown = time.monotonic() - every
            for job in list(self._active.values()):
                if job.claimed <= grown:
                    job.heartbeat()

    # --- leaving -------------------------------------------------------------------------------------------

    async def _leave(self, claiming: "asyncio.Task[None]") -> None:
        """Finish what finishes in time, release the rest, say so to the server."""
        ends = self._loop.time() + self._terms.drain_seconds
        self._stopping.set()
        self._room.set()
        # Jobs that a claim under way brings now are released; cut off, they would wait out their lease.
        await asyncio.wait({claiming}, timeout=CLAIM_CUT_SECONDS)
        claiming.cancel()
        await self._handlers(max(0.0, ends - self._loop.time()), unless=self._hurry)
        for job in list(self._active.values()):
            job.stop(SHUTDOWN)
        await self._handlers(CLEANUP_SECONDS)
        for job in list(self._active.values()):
            # It does not listen. Whatever it still comes to, it is not for us to report.
            self._settler.put(Settlement(job, "release", {}))
            job.stop_reason = LEASE_LOST
        try:
            await asyncio.wait_for(self._settler.drained(), FLUSH_SECONDS)
        except TimeoutError:
            log.warning(
                "%d jobs could not be settled; the server takes them back when their leases end",
                len(self._settler),
            )

    async def _handlers(self, seconds: float, unless: asyncio.Event | None = None) -> None:
        """Until no job is active, the time is over, or somebody is in a hurry."""
        ends = self._loop.time() + seconds
        while self._active and (left := ends - self._loop.time()) > 0:
            waits: set[asyncio.Task[Any]] = {job.runner for job in self._active.values() if job.runner}
            hurry = asyncio.create_task(unless.wait()) if unless else None
            await asyncio.wait(
                waits | ({hurry} if hurry else set()), timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            if hurry:
                hurry.cancel()
                if unless and unless.is_set():
                    return
