"""Pools: how many jobs of which lanes may run at once, and who runs them."""

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field

from app.executors.protocol import Executor, InstantExecutor
from app.jobs.lanes import parse_llm_lane
from app.store.changes import Changes
from app.store.job import ClaimedJob


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

    @property
    def free(self) -> int:
        """A finished run makes room at once, so that claims overlap with settlements; but never endlessly."""
        taken = self.running + sum(asked.limit for asked in self.ahead.values())
        return max(0, min(self.slots - taken, 2 * self.slots - taken - self.settling))

    def lanes(self, known: Iterable[str]) -> list[str]:
        """Those that it runs as things are now: `echo` steps back when there are targets."""
        return [lane for lane in known if self.accepts(lane)]


def is_llm_lane(lane: str) -> bool:
    return parse_llm_lane(lane) is not None
