"""Whether other processes may be listening: while none is, no hint has to cross.

Whoever begins to listen asks who else does, and says every few seconds that it is there. So a process that
hears itself, and has heard nobody else for a while, is alone. It may be wrong for a moment (a machine or
a connection that hangs): then a hint is missed, and the other's polling finds what it was about.
"""

import math
import time
from collections.abc import Callable

# How often each process says that it is there, and after how long without a word the others are gone.
GREET_SECONDS = 5.0
GONE_SECONDS = 3 * GREET_SECONDS
# Those who are there answer at once.
ANSWERED_SECONDS = 2.0


class Neighbours:
    """What this process knows of the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When the others were asked, and when this process last heard its own words: behind a PgBouncer it
        # may listen and hear nothing at all, and then cannot know.
        self._asked = math.inf
        self._heard_itself = -math.inf
        self._heard_others = -math.inf

    def heard_itself(self) -> None:
        """First the question to the others; then that it is there."""
        self._heard_itself = self._clock()
        self._asked = min(self._asked, self._heard_itself)

    def heard(self) -> None:
        """One of the others said something."""
        self._heard_others = self._clock()

    def lost(self) -> None:
        """Nothing is heard any more."""
        self._asked, self._heard_itself = math.inf, -math.inf

    @property
    def may_listen(self) -> bool:
        now = self._clock()
        hears = now - self._heard_itself < GONE_SECONDS
        is_alone = now - self._heard_others >= GONE_SECONDS and now - self._asked >= ANSWERED_SECONDS
        return not (hears and is_alone)
