"""Where the scan of a claim begins: dead index entries that a transaction held open elsewhere keeps are stepped over."""

import math
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from app.store.job import BriefJob, ClaimedJob, LeasedJob
from app.store.remembered import Remembered

LOWEST, HIGHEST = -32768, 32767
# Postgres takes it for the beginning of time; asyncpg encodes datetime.min as -infinity.
THE_BEGINNING = datetime.min  # noqa: DTZ901 - stands for -infinity, which has no time zone
# Commits do not come in the order of their now(): a job may appear a little behind the mark. While claims
# come back full there is a backlog, and what appeared behind the mark may wait for its end; stepping back
# over what was claimed seconds ago would then cost more than the claim.
SLACK = timedelta(seconds=2)
# How long a mark is trusted before the scan starts from the beginning again; and for so many times as long as that scan
# took, so that where it has to wade through much it is a small share of all. But not for longer than this: it may have
# taken long for another reason, such as a database that hung, and then commits were late as well.
MARK_SECONDS = 5.0
RESCAN_SHARE = 300
LONGEST_TRUST_SECONDS = 60.0


def trusted_seconds(took: float, at_least: float = 0.0) -> float:
    """For how long looks may begin at what one from the beginning has found, which took so long."""
    return max(at_least, min(RESCAN_SHARE * took, LONGEST_TRUST_SECONDS))


class TimeMark:
    """Before which moment there is nothing to do, as one process knows it: a hint, for a look in the order of time.

    What appears before it all the same is found by the next look from the beginning; `slack` is how much later a commit
    may come than the moment that it carries.
    """

    def __init__(self, slack: timedelta, at_least: float = 0.0) -> None:
        self._slack = slack
        self._at_least = at_least
        self._at = THE_BEGINNING
        self._trusted_until = 0.0

    def current(self) -> datetime:
        return self._at if time.monotonic() < self._trusted_until else THE_BEGINNING

    def learn(self, mark: datetime, all_done: datetime, seconds: float) -> None:
        """From this mark on nothing is left to do before that moment; and how long the look took."""
        self._at = all_done - self._slack
        if mark is THE_BEGINNING:
            self._trusted_until = time.monotonic() + trusted_seconds(seconds, self._at_least)


@dataclass(slots=True)
class _Marks:
    """What one process remembers of one lane: the ranks it has seen and where each one's work begins."""

    by_rank: dict[int, datetime] = field(default_factory=dict)
    # When the scan last began at the beginning, and how long it took.
    renewed: float = -math.inf
    seconds: float | None = 0.0
    backlog: bool = False

    def mark(self, rank: int) -> datetime:
        at = self.by_rank.get(rank, THE_BEGINNING)
        return at if self.backlog or at is THE_BEGINNING else at - SLACK


@dataclass(frozen=True, slots=True)
class RankRange:
    lane: str
    low: int
    high: int
    mark: datetime


class LowWater:
    """Low-water marks per (queue, lane, rank), in memory: a hint that costs nothing when it is wrong."""

    def __init__(self) -> None:
        self._marks: Remembered[tuple[str, str], _Marks] = Remembered()

    def ranges(self, queue: str, lanes: Sequence[str]) -> list[RankRange]:
        """Every rank is in exactly one range, best first, so priority holds across the lanes."""
        marks = {lane: self._current(queue, lane) for lane in lanes}
        ranks = sorted({rank for each in marks.values() for rank in each.by_rank}, reverse=True)
        ranges: list[RankRange] = []
        above = HIGHEST
        for rank in ranks:
            if rank < above:
                ranges += [RankRange(lane, rank + 1, above, THE_BEGINNING) for lane in lanes]
            ranges += [RankRange(lane, rank, rank, marks[lane].mark(rank)) for lane in lanes]
            above = rank - 1
        return [*ranges, *(RankRange(lane, LOWEST, above, THE_BEGINNING) for lane in lanes)]

    def lanes(self, queues: Collection[str]) -> dict[str, list[str]]:
        """The lanes of these queues of which something is known, in order."""
        known: dict[str, list[str]] = {queue: [] for queue in queues}
        for queue, lane in self._marks:
            if queue in known:
                known[queue].append(lane)
        return {queue: sorted(lanes) for queue, lanes in known.items()}

    def learn(
        self,
        queue: str,
        claimed: Iterable[ClaimedJob | LeasedJob | BriefJob],
        lanes: Sequence[str] = (),
        *,
        full: bool = False,
        seconds: float = 0.0,
    ) -> None:
        """From what was claimed of these lanes, whether there may be more, and how long it took."""
        for lane in lanes:
            marks = self._of(queue, lane)
            marks.backlog = full
            if marks.seconds is None:
                marks.seconds = seconds
        lowest: dict[tuple[str, int], datetime] = {}
        for job in claimed:
            at = lowest.get((job.lane, job.rank))
            if at is None or job.ready_at < at:
                lowest[job.lane, job.rank] = job.ready_at
        for (lane, rank), at in lowest.items():
            self._of(queue, lane).by_rank[rank] = at

    def _current(self, queue: str, lane: str) -> _Marks:
        marks = self._of(queue, lane)
        now = time.monotonic()
        if now - marks.renewed > trusted_seconds(marks.seconds or 0, MARK_SECONDS):
            marks.renewed, marks.seconds = now, None
            marks.by_rank = dict.fromkeys(marks.by_rank, THE_BEGINNING)
        return marks

    def _of(self, queue: str, lane: str) -> _Marks:
        marks = self._marks.get((queue, lane))
        if marks is None:
            marks = _Marks()
            self._marks.put((queue, lane), marks)
        return marks
