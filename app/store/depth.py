"""max_depth: how many jobs may wait in a queue, over the whole fleet.

Far from its depth a queue is not counted for each submission: a process reserves a share of the room and accepts
within it, until it is used up or somebody else who comes near the depth revokes it. What is decided under a
reservation shares the queue's advisory lock, so that whoever counts, alone with it, sees all of that.
"""

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.jobs.submission import NewJob
from app.store.database import Runner
from app.store.locks import lock_number
from app.store.queues import QueueBook
from app.store.tables.live import IN_LANES

# The share of the room that is reserved, and how much room there must be at least.
RESERVED_SHARE = 16
RESERVED_FROM = 2000


@dataclass(slots=True)
class Reservation:
    """What is left of the room that this process has reserved in a queue, and under which depth."""

    token: str
    jobs: int
    max_depth: int


@dataclass(slots=True)
class Demand:
    """How many jobs are wanted in queues with a depth; for those of `spent` room is reserved, by that token."""

    wanted: Mapping[str, int]
    spent: dict[str, str] = field(default_factory=dict)
    # What this demand reserves beside; None where it may not, because its transaction is not ours to end.
    reserved: dict[str, Reservation] | None = None

    @property
    def counted(self) -> dict[str, int]:
        return {queue: number for queue, number in self.wanted.items() if queue not in self.spent}

    def locks(self) -> dict[int, bool]:
        """Numbers of advisory locks, and whether one has to be alone with it."""
        return {lock_number("depth", queue): queue not in self.spent for queue in self.wanted}


class RevokedError(Exception):
    """Somebody else needed the room that was reserved in these queues: they have to be counted."""

    def __init__(self, queues: set[str]) -> None:
        super().__init__(queues)
        self.queues = queues


class Depths:
    """The room of queues with a depth, as far as this process has reserved it."""

    def __init__(self, book: QueueBook) -> None:
        self._book = book
        self._reservations: dict[str, Reservation] = {}

    def demand(self, jobs: Sequence[NewJob], *, reserve: bool) -> Demand:
        """What these jobs need; what is reserved is spent from here on."""
        wanted = Counter(job.queue for job in jobs if self._max_depth(job.queue) is not None)
        demand = Demand(wanted, reserved={} if reserve else None)
        if reserve:
            for queue, number in wanted.items():
                held = self._reservations.get(queue)
                if held and held.jobs >= number and held.max_depth == self._max_depth(queue):
                    held.jobs -= number
                    demand.spent[queue] = held.token
        return demand

    def forget(self, queues: set[str]) -> None:
        for queue in queues:
            self._reservations.pop(queue, None)

    def committed(self, demand: Demand) -> None:
        self._reservations |= demand.reserved or {}

    def _max_depth(self, queue: str) -> int | None:
        rules = self._book.rules(queue)
        return None if rules is None else rules.settings.max_depth

    async def room(self, connection: Runner, demand: Demand) -> dict[str, int]:
        """The room of each queue that is counted, no part of which is anybody else's any more where it is little.

        Under the locks of the demand. Raises RevokedError when one of its reservations is no more.
        """
        if demand.spent:
            await _check(connection, demand.spent)
        room: dict[str, int] = {}
        for queue, number in demand.counted.items():
            limit = self._max_depth(queue) or 0
            room[queue] = limit - await depth(connection, queue, limit)
            if limit >= RESERVED_FROM:
                await self._share(connection, demand, queue, room[queue] - number)
        return room

    async def _share(self, connection: Runner, demand: Demand, queue: str, left: int) -> None:
        mine = self._reservations.get(queue) if demand.reserved is not None else None
        free = left - await _reserved_by_others(connection, queue, mine.token if mine else "")
        if free < 0:
            await connection.execute(REVOKE, queue)
        elif free >= RESERVED_FROM and demand.reserved is not None:
            reserved = Reservation(
                secrets.token_urlsafe(12), free // RESERVED_SHARE, self._max_depth(queue) or 0
            )
            demand.reserved[queue] = reserved
            await connection.execute(RESERVE, queue, reserved.token, reserved.jobs)


# A statement, and so a snapshot, of its own: taken after the lock.
STILL_RESERVED = """
SELECT spent.queue FROM unnest($1::text[], $2::text[]) AS spent (queue, token)
JOIN depth_reservations AS r ON r.queue = spent.queue AND r.token = spent.token
"""


async def _check(connection: Runner, spent: Mapping[str, str]) -> None:
    kept = await connection.fetch(STILL_RESERVED, list(spent), list(spent.values()))
    revoked = spent.keys() - {row["queue"] for row in kept}
    if revoked:
        raise RevokedError(set(revoked))


# One's own is over with the next count; one of a process that has died, after a minute.
RESERVED = """
WITH over AS (
    DELETE FROM depth_reservations
    WHERE queue = $1 AND (token = $2 OR reserved_at < now() - interval '1 minute') RETURNING token
)
SELECT coalesce(sum(jobs), 0)::bigint AS jobs FROM depth_reservations
WHERE queue = $1 AND token NOT IN (SELECT token FROM over)
"""
RESERVE = "INSERT INTO depth_reservations (queue, token, jobs) VALUES ($1, $2, $3)"
REVOKE = "DELETE FROM depth_reservations WHERE queue = $1"


async def _reserved_by_others(connection: Runner, queue: str, own: str) -> int:
    """How much room others have reserved; one's own reservation ends here."""
    rows = await connection.fetch(RESERVED, queue, own)
    return int(rows[0]["jobs"])


# Waiting jobs by each of the three reasons, each from its own index.
DEPTH = f"""
SELECT count(*) FROM (
    (SELECT 1 FROM queued WHERE queue = $1 AND {IN_LANES} LIMIT $2)
    UNION ALL
    (SELECT 1 FROM queued WHERE queue = $1 AND gate IS NOT NULL LIMIT $2)
    UNION ALL
    (SELECT 1 FROM queued WHERE queue = $1 AND ready_at IS NULL AND gate IS NULL LIMIT $2)
) AS waiting
"""


async def depth(connection: Runner, queue: str, limit: int) -> int:
    """How many jobs wait in a queue; exact up to `limit`."""
    rows = await connection.fetch(DEPTH, queue, limit)
    return int(rows[0]["count"])
