"""How many connections a process has, and who goes when there are too many.

Nobody needs a key to connect, and whoever connects and says nothing holds a file descriptor until the
time-out: a stranger could take them all, and with them the server's own ways to its database and its targets.
So some files are never for callers, and when the others are taken, those go who have said nothing for the
longest time. Whoever comes to ask something has asked long before it is his turn.
"""

import resource
import time
from typing import Protocol

import structlog

from app.telemetry import CONNECTIONS_DROPPED

log = structlog.get_logger()

# For the database, targets, receivers and artifacts: of few files a quarter.
OUR_FILES = 1024
OUR_PART = 4
FEWEST = 8
# So many go at once, as a part of all: to look for them costs something.
AT_ONCE = 20
TELL_SECONDS = 60.0


def allowed(wanted: int) -> int:
    """So many connections, or as many as the operating system leaves for them."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(FEWEST, min(wanted, files - min(OUR_FILES, files // OUR_PART)))


class Droppable(Protocol):
    """A connection, as far as it takes to decide."""

    def drop_order(self) -> tuple[bool, float] | None:
        """The smallest goes first: strangers before those with a key, then by since when they are silent.
        None while something is being answered."""

    def hang_up(self) -> None: ...


class ConnectionLimit:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._told_at = -TELL_SECONDS

    def enforce(self, connections: set[Droppable]) -> None:
        """One more came, and is among them. It goes itself if all others are being answered."""
        if len(connections) <= self._limit:
            return
        silent = [(order, each) for each in connections if (order := each.drop_order()) is not None]
        silent.sort(key=lambda found: found[0])
        dropped = [each for _, each in silent[: max(1, self._limit // AT_ONCE)]]
        for each in dropped:
            each.hang_up()
        # At once, not when they are gone: else each one of a burst would find too many.
        connections.difference_update(dropped)
        CONNECTIONS_DROPPED.inc(len(dropped))
        self._tell(len(dropped))

    def _tell(self, dropped: int) -> None:
        now = time.monotonic()
        if now >= self._told_at + TELL_SECONDS:
            self._told_at = now
            log.warning("connections.full", limit=self._limit, dropped=dropped)
