"""What needs a person: each matter one sentence, with the page that deals with it."""

import time
from dataclasses import dataclass

from app.api.services import Services
from app.dashboard.words import counted
from app.jobs.states import State

KEPT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Matter:
    text: str
    address: str
    # What can be done there, in a word or two.
    action: str
    # Something is broken, rather than merely waiting.
    is_urgent: bool = False


class Attention:
    """One for each process, kept for a moment: every open page shows how many there are."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, list[Matter]]] = {}

    async def matters(self, services: Services, tenant: str) -> list[Matter]:
        """The gravest first."""
        now = time.monotonic()
        known = self._known.get(tenant)
        if known is None or now >= known[0]:
            self._known[tenant] = known = (now + KEPT_SECONDS, await _look(services))
        return known[1]


async def _look(services: Services) -> list[Matter]:
    counts = await services.queues.census.take()
    failed = sum(each.states[State.FAILED] for each in counts.values())
    if not failed:
        return []
    return [
        Matter(f"{counted(failed, 'dead letter')} to look at.", "/ui/dead-letters", "Look", is_urgent=True)
    ]


ATTENTION = Attention()
