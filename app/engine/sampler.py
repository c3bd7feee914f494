"""The sampler: writes down what this process sees, for the charts and tables of operators.

What is counted for Prometheus is the truth; every few seconds what has been added to it since goes into the
database, where the processes of a fleet add up. One of them at a time also writes down how the queues are,
and removes what is old.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter as Counted

from app.errors import Unavailable
from app.jobs.ids import new_id
from app.jobs.states import State, Verb
from app.loops.loop import Loop
from app.store import daily_counts, samples
from app.store.census import Census, QueueCount
from app.store.daily_counts import SWAP_AVOIDED, SWAPPED, DailyTally
from app.store.database import Database
from app.store.samples import FINEST, Depth, Figures
from app.telemetry import (
    ENDED,
    ENQUEUED,
    JOB_RUN,
    JOB_WAIT,
    SWAPS,
    SWAPS_AVOIDED,
    TOKENS,
    counted,
    counted_by_bucket,
)

# How long the last words may take when the server stops.
FLUSH_SECONDS = 3.0
PRUNE_SECONDS = 60.0
PRUNE_BATCHES = 10
# At one bucket's beginning and end a slow moment would put two rounds into one and none into the next.
EARLIEST, LATEST = 0.2, 0.8
# Given back before it came to anything: it is run again, and has taken no time yet.
NOT_RUN = frozenset({Verb.DEFER, Verb.RELEASE})
# Counted on their own; a job that is dismissed had ended before.
ELSEWHERE = frozenset({State.DONE, State.FAILED, State.DISMISSED})


class Sampler(Loop):
    def __init__(self, database: Database, census: Census, tally: DailyTally) -> None:
        self._database = database
        self._census = census
        self._tally = tally
        # A process that starts anew is another: what the last one wrote stays as it is.
        self._process = new_id()
        self._phase = random.uniform(EARLIEST, LATEST) * FINEST
        self._seen = Figures()
        self._swaps: Counted[tuple[str, str]] = Counted()
        self._unwritten = Figures()
        self._pruned_at = 0.0
        super().__init__("sampler", self._run_once, interval=FINEST)

    async def start(self) -> None:
        self._seen, self._swaps = figures(), swaps()
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        if self._task is None:
            return
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._flush()

    async def _run_once(self) -> float | None:
        await self._flush()
        last, began = await samples.last_look(self._database), time.monotonic()
        await self._look_at_queues(last.seconds)
        await self._prune()
        # In step with the buckets, in a place of its own.
        now = last.now + time.monotonic() - began
        return (self._phase - now) % FINEST or FINEST

    async def _flush(self) -> None:
        """What a database that is away does not take stays unwritten, and goes along the next time."""
        seen, swapped = figures(), swaps()
        self._unwritten += seen - self._seen
        for (target, what), number in (swapped - self._swaps).items():
            self._tally.count("target", target, what, number)
        self._seen, self._swaps = seen, swapped
        if self._unwritten:
            await samples.add_sample(self._database, self._process, self._unwritten)
            self._unwritten = Figures()
        await self._tally.flush(self._database)

    async def _look_at_queues(self, seconds: float) -> None:
        """Unless somebody of the fleet has done so, that many seconds ago."""
        if seconds < FINEST or not self._census.may_look(seconds):
            await self._census.keep_warm()
            return
        counts = await self._census.take()
        depths = {queue: _depth(count) for queue, count in counts.items()}
        await samples.add_queues(self._database, depths)

    async def _prune(self) -> None:
        if time.monotonic() - self._pruned_at < PRUNE_SECONDS:
            return
        self._pruned_at = time.monotonic()
        for _ in range(PRUNE_BATCHES):
            more = [await prune(self._database) for prune in (samples.prune, daily_counts.prune)]
            if not any(more):
                break


def _depth(count: QueueCount) -> Depth:
    return Depth(count.states[State.QUEUED], count.running)


def figures() -> Figures:
    """All that this process has counted since it began, over all queues, kinds and models."""
    ended, tokens = counted(ENDED, "state"), counted(TOKENS, "of")
    return Figures(
        enqueued=counted(ENQUEUED).total(),
        done=ended[State.DONE],
        failed=ended[State.FAILED],
        ended=sum(number for state, number in ended.items() if state not in ELSEWHERE),
        prompt_tokens=tokens["prompt"],
        completion_tokens=tokens["completion"],
        wait=counted_by_bucket(JOB_WAIT),
        run=counted_by_bucket(JOB_RUN, "verb", NOT_RUN),
    )


def swaps() -> Counted[tuple[str, str]]:
    """Models that were swapped, and swaps that were avoided, by target."""
    made, avoided = counted(SWAPS, "target"), counted(SWAPS_AVOIDED, "target")
    return Counted(
        {(name, SWAPPED): number for name, number in made.items()}
        | {(name, SWAP_AVOIDED): number for name, number in avoided.items()}
    )
