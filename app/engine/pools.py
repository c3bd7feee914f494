"""Pools: how many jobs of which lanes may run at once, and who runs them."""

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field

from app.executors.protocol import Executor, InstantExecutor
from app.jobs.lanes import parse_llm_lane
from app.store.changes import Changes
from app.store.job import ClaimedJob
from app.targets.target import Target


@dataclass(frozen=True, slots=True)
class Asked:
    """A claim that is under way: in which lanes, for how many."""

    lanes: Collection[str]
    limit: int
    answer: Awaitable[Changes[ClaimedJob]]


@dataclass(slots=True, eq=False)
class Pool:
    """Slots for the lanes it accepts. One executor serves it."""

    name: str
    executor: Executor | InstantExecutor
    slots: int
    accepts: Callable[[str], bool]
    # Somebody may be waiting on the line: the feed is open from the claim on, not from the first word.
    live: bool = False
    on_settled: Callable[[], None] = lambda: None
    # Queues that may have work for it, and in which lanes.
    known: dict[str, set[str]] = field(default_factory=dict)
    # Claims that are under way while what was claimed before is executed, by queue.
    ahead: dict[str, Asked] = field(default_factory=dict)
    # Claimed and not yet executed to the end.
    running: int = 0
    # Executed, and waiting for their settlement to be committed.
    settling: int = 0
    # On their way into the database, to be run as soon as they are there.
    arriving: int = 0

    @property
    def used(self) -> int:
        """Slots that nobody else may have."""
        return self.running + self.settling + self.arriving

    @property
    def free(self) -> int:
        """A finished run makes room at once, so that claims overlap with settlements; but never endlessly."""
        taken = self.running + sum(asked.limit for asked in self.ahead.values())
        return max(0, min(self.slots - taken, 2 * self.slots - taken - self.settling))

    def lanes(self, known: Iterable[str]) -> list[str]:
        """Those that it runs as things are now: `echo` steps back when there are targets."""
        return [lane for lane in known if self.accepts(lane)]


@dataclass(slots=True, eq=False)
class Seat:
    """A slot of a target, kept for a job that is on its way in."""

    target: Target
    pool: Pool
    kept: bool = True

    def leave(self) -> None:
        """It is there, or will not come."""
        if self.kept:
            self.kept = False
            self.pool.arriving -= 1


def is_llm_lane(lane: str) -> bool:
    return parse_llm_lane(lane) is not None
