"""How much of this process one receiver may use: a number of sends at once, and a circuit breaker.

Pure: time comes in as seconds of a monotonic clock, randomness as a factor in [0, 1). A receiver starts small
and earns its concurrency by answering, so that a host nobody knows cannot fill the process with waiting. One
that fails again and again is left alone; then one send at a time finds out whether it is back.
"""

from dataclasses import dataclass, field
from datetime import datetime

from app.jobs.retry import jitter
from app.store.low_water import SLACK, THE_BEGINNING

STARTING_ROOM = 4
# The share of failures among the latest sends, each counting a tenth. Fourteen in a row open the circuit; a
# receiver that fails every third time, or even every second, does not.
LATEST = 0.1
SHARE_TO_OPEN = 0.75
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
# A delivery that has been due for so long while the circuit is open counts as tried, so that a receiver which
# never comes back is given up on by the same ladder as any other.
OVERDUE_SECONDS = 60.0
OVERDUE_AT_ONCE = 100
# How long a low-water mark is trusted; see store/low_water.py.
MARK_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class Receiver:
    """One host and port, as this process knows it."""

    host: str
    most: int
    in_flight: int = 0
    room: int = field(init=False)
    # Answered at all since we know it, and not failing now.
    is_proven: bool = False
    failures: int = 0
    failing: float = 0.0
    last_error: str = ""
    pause_seconds: float = FIRST_PAUSE_SECONDS
    open_until: float | None = None
    opened_at: float = 0.0
    is_probing: bool = False
    used_at: float = 0.0
    _mark: datetime = THE_BEGINNING
    _mark_renewed: float = 0.0

    def __post_init__(self) -> None:
        self.room = min(STARTING_ROOM, self.most)

    @property
    def is_open(self) -> bool:
        return self.open_until is not None

    def free(self, now: float) -> int:
        """How many more sends may begin now. With the circuit open: none, then one that finds out."""
        if self.open_until is None:
            return max(0, self.room - self.in_flight)
        return 1 if now >= self.open_until and self.in_flight == 0 else 0

    def began(self, now: float) -> None:
        self.in_flight += 1
        self.used_at = now
        self.is_probing = self.is_open

    def ended(self) -> None:
        self.in_flight -= 1
        self.is_probing = False

    def answered(self) -> None:
        """It is there: whatever it said, it said something sensible in time."""
        self.failures = 0
        self.failing = 0.5 if self.is_open else self.failing * (1 - LATEST)
        self.is_proven = True
        self.open_until = None
        self.pause_seconds = FIRST_PAUSE_SECONDS
        self.room = min(self.most, self.room + 1)

    def failed(self, now: float, dice: float, error: str) -> None:
        """No answer, or one that says it cannot cope."""
        self.failures += 1
        self.failing = self.failing * (1 - LATEST) + LATEST
        self.last_error = error
        if self.open_until is None:
            self.room = max(min(STARTING_ROOM, self.most), self.room // 2)
            if self.failing >= SHARE_TO_OPEN:
                self.opened_at = now
                self._open(now, dice)
        elif self.is_probing:
            # What was still under way when the circuit opened changes nothing; this one was to find out.
            self.pause_seconds = min(LONGEST_PAUSE_SECONDS, self.pause_seconds * 2)
            self._open(now, dice)

    def _open(self, now: float, dice: float) -> None:
        self.open_until = now + self.pause_seconds * jitter(dice)
        self.is_proven = False
        self.room = min(STARTING_ROOM, self.most)

    def mark(self, now: float) -> datetime:
        """Where the scan for due deliveries begins; from the very beginning now and then."""
        if now - self._mark_renewed > MARK_SECONDS:
            self._mark_renewed = now
            self._mark = THE_BEGINNING
        return self._mark

    def learn_mark(self, first_due: datetime) -> None:
        self._mark = first_due - SLACK
