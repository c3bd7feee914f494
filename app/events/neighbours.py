"""Whether other processes may be listening: while none is, no hint has to cross.

Whoever begins to listen asks who else does, and says every few seconds that it is there. So a process that
has heard nobody for a while is alone. It may be wrong for a moment (a stalled machine, a connection that
hangs): then a hint is missed, and the other's polling finds what it was about.
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
        # When the others were asked; None while this process does not listen, and so cannot know.
        self._asked: float | None = None
        self._heard = -math.inf

    def asked(self) -> None:
        self._asked = self._clock()

    def heard(self) -> None:
        """One of them said something."""
        self._heard = self._clock()

    def lost(self) -> None:
        """Nothing is heard any more."""
        self._asked = None

    @property
    def may_listen(self) -> bool:
        if self._asked is None:
            return True
        now = self._clock()
        return now - self._heard < GONE_SECONDS or now - self._asked < ANSWERED_SECONDS
