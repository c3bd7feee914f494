"""Events sent to a running job, received one by one and by type."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from foreman_client.client import HOLD_SECONDS, AsyncForeman
from foreman_client.events import BUILT_IN_TYPES, Event

ANY: Final[tuple[str, ...]] = ()


class Mailbox:
    """Reads the job's log with a watermark per filter: what one filter passes over is left for another.

    The server does the filtering: a job that reports a lot of progress does not wake its own reader.
    """

    def __init__(self, client: AsyncForeman, job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._after: dict[tuple[str, ...], int] = {}
        self._fetched: dict[tuple[str, ...], deque[Event]] = {}
        self._taken: set[int] = set()

    async def receive(self, types: Sequence[str] | None, timeout: float | None) -> Event | None:
        wanted = tuple(sorted(set(types))) if types else ANY
        fetched = self._fetched.setdefault(wanted, deque())
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            while fetched:
                event = fetched.popleft()
                if event.seq not in self._taken:
                    self._taken.add(event.seq)
                    return event
            left = HOLD_SECONDS if ends is None else ends - time.monotonic()
            events, watermark = await self._client.read_events(
                self._job_id,
                after=self._after.get(wanted, 0),
                types=wanted or None,
                hold_seconds=max(0.0, min(left, HOLD_SECONDS)),
            )
            self._after[wanted] = watermark
            fetched.extend(event for event in events if wanted or event.type not in BUILT_IN_TYPES)
            if not fetched and ends is not None and time.monotonic() >= ends:
                return None
