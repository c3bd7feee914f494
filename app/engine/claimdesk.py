"""The claim desk: where workers over HTTP ask for jobs.

Claims for the same queue and lanes that come in together are one statement (natural batching), and its
jobs are dealt out in the order of asking. A claimer that goes away empty-handed may wait: it is woken
when work is announced, and looks again by itself in case the announcement was lost.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence

import asyncpg

from app.events.hub import Hub
from app.loops.batcher import Batcher
from app.store.claims import ROOM, Claims, Seat, heads
from app.store.database import Database
from app.telemetry import CLAIMED

MAX_SEATS = 1000
# Lanes that nobody has asked for in a while are forgotten with their batcher.
MAX_COUNTERS = 1000

Place = tuple[str, tuple[str, ...]]


class ClaimDesk:
    def __init__(
        self, database: Database, hub: Hub, claims: Claims, poll_seconds: float, lease_seconds: float
    ) -> None:
        self._database = database
        self._hub = hub
        self._poll_seconds = poll_seconds
        self._claims = claims
        self._lease_seconds = lease_seconds
        self._counters: dict[Place, Batcher[Seat, list[asyncpg.Record]]] = {}
        self._waiting: dict[tuple[str, str], set[asyncio.Event]] = {}
        hub.on_work(self._work_ready)

    async def claim(
        self, queues: Sequence[str], lanes: Sequence[str], seat: Seat, wait_seconds: float
    ) -> list[asyncpg.Record]:
        """Up to `seat.limit` jobs; waits for the first one if there is none."""
        ends = time.monotonic() + wait_seconds
        woken = asyncio.Event()
        places = [(queue, lane) for queue in queues for lane in lanes]
        for place in places:
            self._waiting.setdefault(place, set()).add(woken)
        try:
            while True:
                # Cleared before the look: what is announced from here on is not missed.
                woken.clear()
                claimed = await self._look(queues, lanes, seat)
                left = ends - time.monotonic()
                if claimed or left <= 0 or self._hub.closing:
                    return claimed
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), min(left, self._rest(queues)))
        finally:
            for place in places:
                events = self._waiting[place]
                events.discard(woken)
                if not events:
                    del self._waiting[place]

    def _rest(self, queues: Sequence[str]) -> float:
        """Until the next look, when nobody says that there is something."""
        closed = [self._claims.closed_seconds(queue) for queue in queues]
        return min([self._poll_seconds, *(seconds for seconds in closed if seconds is not None)])

    async def any_lanes(self, queues: Sequence[str]) -> list[str]:
        """The lanes that have work in these queues now."""
        return sorted({head.lane for head in await heads(self._database) if head.queue in queues})

    async def _look(self, queues: Sequence[str], lanes: Sequence[str], seat: Seat) -> list[asyncpg.Record]:
        claimed: list[asyncpg.Record] = []
        for queue in queues:
            room = seat.limit - len(claimed)
            if room > 0:
                lease_seconds = seat.lease_seconds or self._claims.lease_seconds(queue, self._lease_seconds)
                claimed += await self._counter(queue, tuple(lanes)).put(
                    Seat(seat.worker, room, lease_seconds)
                )
        return claimed

    def _counter(self, queue: str, lanes: tuple[str, ...]) -> Batcher[Seat, list[asyncpg.Record]]:
        counter = self._counters.get((queue, lanes))
        if counter is None:
            if len(self._counters) >= MAX_COUNTERS:
                self._counters.pop(next(iter(self._counters)))

            async def flush(seats: Sequence[Seat]) -> Sequence[list[asyncpg.Record] | Exception]:
                return await self._claim(queue, lanes, seats)

            counter = Batcher(flush, max_weight=MAX_SEATS, weight=lambda seat: seat.limit)
            self._counters[queue, lanes] = counter
        return counter

    async def _claim(
        self, queue: str, lanes: Sequence[str], seats: Sequence[Seat]
    ) -> list[list[asyncpg.Record] | Exception]:
        claimed = await self._claims.claim(queue, lanes, seats, whole=True)
        CLAIMED.inc(len(claimed))
        if claimed:
            self._hub.jobs_changed([record["id"] for record in claimed])
            self._hub.webhooks_written(
                [(record["id"], record["webhook_url"]) for record in claimed if record["webhook_url"]]
            )
        # The statement seated its rows in an order of its own; the worker's name on each tells whose it is.
        by_worker: dict[tuple[str, float], list[asyncpg.Record]] = {}
        for record in claimed:
            by_worker.setdefault((record["worker"], record["lease_seconds"]), []).append(record)
        dealt: list[list[asyncpg.Record] | Exception] = []
        for seat in seats:
            pile = by_worker.get((seat.worker, seat.lease_seconds), [])
            dealt.append(pile[: seat.limit])
            del pile[: seat.limit]
        return dealt

    def _work_ready(self, queue: str, lane: str) -> None:
        if lane == ROOM:
            self._claims.place_freed(queue)
            for (waited_for, _), events in self._waiting.items():
                if waited_for == queue:
                    for event in events:
                        event.set()
            return
        if self._claims.closed_seconds(queue) is not None:
            # New work in a queue that is held back: nobody has to be woken for that.
            return
        for event in self._waiting.get((queue, lane), ()):
            event.set()
