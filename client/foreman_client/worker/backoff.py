"""Growing, jittered pauses between tries against a server that is away."""

import random

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 5.0


class Backoff:
    def __init__(self, longest_seconds: float = LONGEST_SECONDS) -> None:
        self.failures = 0
        self._longest = longest_seconds

    def next(self, asked: float | None = None) -> float:
        """The next pause, no shorter than the server asked for, within reason."""
        ceiling = min(self._longest, FIRST_SECONDS * 2 ** min(self.failures, 10))
        self.failures += 1
        return max(min(asked or 0.0, 30.0), random.uniform(ceiling / 2, ceiling))

    def reset(self) -> None:
        self.failures = 0
