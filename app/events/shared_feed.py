"""The events of all jobs, for operators who watch all of them.

Readers at the same place share one query and its answer, so that a room full of dashboards costs as much as
one. Hints make it quick; without them it is read every poll interval.
"""

import asyncio
from collections import OrderedDict

from app.loops.alarm import Alarm
from app.store.announcements import Installment, Place, horizon, read_on
from app.store.database import Database

KEPT_INSTALLMENTS = 8
# A hint may come a moment before its event is certain, so the first looks follow closely.
FIRST_LOOK_SECONDS = 0.02


class SharedFeed:
    def __init__(self, database: Database, poll_seconds: float) -> None:
        self._database = database
        self.poll_seconds = poll_seconds
        self._installments: OrderedDict[Place, asyncio.Task[Installment]] = OrderedDict()

    async def newest(self) -> Place:
        """Where somebody begins who wants to see what happens from now on."""
        return await horizon(self._database)

    async def after(self, place: Place) -> Installment:
        """What came after that place. Raises Unavailable when the database is away."""
        task = self._installments.get(place)
        if task is None:
            task = self._installments[place] = asyncio.ensure_future(read_on(self._database, place))
            while len(self._installments) > KEPT_INSTALLMENTS:
                self._installments.popitem(last=False)
        try:
            # Shielded: a reader who leaves takes nothing away from the others.
            found = await asyncio.shield(task)
        except Exception:
            self._forget(place, task)
            raise
        if not found.events:
            # Not the last word on what comes after that place.
            self._forget(place, task)
        return found

    def _forget(self, place: Place, task: "asyncio.Task[Installment]") -> None:
        if self._installments.get(place) is task:
            del self._installments[place]


class SharedFeedReader:
    """One reader's way through the shared feed."""

    def __init__(self, shared_feed: SharedFeed, place: Place) -> None:
        self._shared_feed = shared_feed
        self.place = place
        self.alarm = Alarm()
        self._misses = 0

    async def next(self, timeout: float) -> Installment | None:
        """The following installment; None, after a rest that the alarm cuts short, when there is none."""
        found = await self._shared_feed.after(self.place)
        self.place = found.next_place
        if found.events:
            self._misses = 0
            return found
        rest = min(self._shared_feed.poll_seconds, FIRST_LOOK_SECONDS * 2**self._misses, timeout)
        if await self.alarm.wait(rest):
            self._misses = 0
        else:
            self._misses += 1
        return None
