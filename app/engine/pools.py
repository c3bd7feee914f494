"""Pools: how many jobs of which lanes may run at once, and who runs them."""

from collections.abc import Callable, Iterable

from app.executors.protocol import Executor
from app.jobs.lanes import parse_llm_lane


class Pool:
    """Slots for the lanes it accepts. One executor serves it."""

    def __init__(
        self,
        name: str,
        executor: Executor,
        slots: int,
        accepts: Callable[[str], bool],
        *,
        live: bool = False,
    ) -> None:
        self.name = name
        # Somebody may be waiting on the line: the feed is open from the claim on, not from the first word.
        self.live = live
        self.on_settled: Callable[[], None] = lambda: None
        self.executor = executor
        self.slots = slots
        self.accepts = accepts
        # Queues that may have work for it, and in which lanes.
        self.known: dict[str, set[str]] = {}
        # Claimed and not yet executed to the end.
        self.running = 0
        # Executed, and waiting for their settlement to be committed.
        self.settling = 0

    @property
    def free(self) -> int:
        """A finished run makes room at once, so that claims overlap with settlements; but never endlessly."""
        return max(0, min(self.slots - self.running, 2 * self.slots - self.running - self.settling))

    def lanes(self, known: Iterable[str]) -> list[str]:
        """Those that it runs as things are now: `echo` steps back when there are targets."""
        return [lane for lane in known if self.accepts(lane)]


def is_llm_lane(lane: str) -> bool:
    return parse_llm_lane(lane) is not None
