"""How many jobs a claim asks for beyond the free slots.

Handlers that end without ever waiting do not overlap, so for them the number of slots says nothing, and one
claim per ten jobs would cost more than the jobs. While there is a backlog of such jobs, claims reach further
and further, and the next one is under way while the jobs of the last one begin. The moment one of them does
wait, what does not fit into the slots goes straight back to the queue (no attempt is spent), and it takes a
while until claims reach out again.
"""

from typing import Final

FARTHEST: Final = 500
# Full rounds in which every handler ended at once, before the first step further.
ROUNDS_TO_TRUST: Final = 3
ROUNDS_TO_FORGIVE: Final = 30


class Reach:
    def __init__(self) -> None:
        self._quick_rounds = 0

    def beyond(self, free: int) -> int:
        steps = self._quick_rounds - ROUNDS_TO_TRUST
        return 0 if steps < 0 else min(FARTHEST, free << min(steps, 10))

    @property
    def ahead(self) -> bool:
        """Whether the next claim may be under way while the jobs of this one begin."""
        return self._quick_rounds >= ROUNDS_TO_TRUST

    def learn(self, *, full: bool, all_ended: bool, gave_back: bool) -> None:
        """After a round: was the claim filled, have all its jobs ended, did some not fit?"""
        if gave_back:
            self._quick_rounds = -ROUNDS_TO_FORGIVE
        elif full and all_ended:
            self._quick_rounds += 1
        else:
            self._quick_rounds = min(self._quick_rounds, 0)
