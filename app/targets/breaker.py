"""A circuit breaker: a target that keeps failing gets a pause, then one job to show that it is well."""

FAILURES = 5
FIRST_PAUSE_SECONDS = 5.0
MAX_PAUSE_SECONDS = 120.0


class Breaker:
    """Closed: all may pass. Open: none may. Half open: one may. The clock is the caller's."""

    def __init__(self) -> None:
        self._failures = 0
        self._opened = 0
        self._until = 0.0
        self._trying = False

    def failed(self, now: float) -> None:
        self._failures += 1
        self._trying = False
        if self._failures >= FAILURES:
            pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self._opened, 10))
            self._opened += 1
            self._until = now + pause

    def succeeded(self) -> None:
        self._failures = self._opened = 0
        self._until = 0.0
        self._trying = False

    def undecided(self) -> None:
        """The one that was let through ended without saying anything about the target."""
        self._trying = False

    @property
    def is_closed(self) -> bool:
        return self._failures < FAILURES

    def room(self, now: float) -> int | None:
        """How many more may pass now; None: as many as like."""
        if self.is_closed:
            return None
        return 0 if now < self._until or self._trying else 1

    def passes(self) -> None:
        """One was let through."""
        if not self.is_closed:
            self._trying = True

    def seconds_left(self, now: float) -> float:
        return 0.0 if self.is_closed else max(0.0, self._until - now)
