"""What there is to claim: the next job of every lane, without reading the others."""

import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.store.database import Database


@dataclass(frozen=True, slots=True)
class Head:
    """The next job of one lane: what a scheduler needs to choose between lanes."""

    queue: str
    lane: str
    rank: int
    ready_at: datetime
    waited_seconds: float
    # Tells first from second where both became ready in one commit.
    id: str = ""


# A loose index scan: one probe per (queue, lane) that has work, however much work that is. With a page at a time
# it costs the same however many there are.
HEADS = """
WITH RECURSIVE heads AS (
    (SELECT queue, lane, rank, ready_at, id FROM queued
     WHERE ready_at IS NOT NULL AND (queue, lane) > ($1::text, $2::text)
     ORDER BY queue, lane, rank DESC, ready_at, id LIMIT 1)
    UNION ALL
    SELECT following.* FROM heads CROSS JOIN LATERAL (
        SELECT queue, lane, rank, ready_at, id FROM queued
        WHERE ready_at IS NOT NULL AND (queue, lane) > (heads.queue, heads.lane)
        ORDER BY queue, lane, rank DESC, ready_at, id LIMIT 1
    ) AS following
)
SELECT page.*, date_part('epoch', now() - page.ready_at) AS waited_seconds, queues.paused_at IS NOT NULL AS paused
FROM (SELECT * FROM heads LIMIT $3) AS page LEFT JOIN queues ON queues.name = page.queue
ORDER BY page.queue, page.lane
"""
PAGE = 5000
# A page that takes long (a transaction held open elsewhere keeps what was claimed before) is followed by a rest, as part
# of that time: whoever walks here only makes sure that no hint was lost.
CHEAP_SECONDS = 0.05
REST_SHARE = 20


class HeadsWalk:
    """Goes over the heads of all lanes that have claimable work, a page at each call, round and round."""

    def __init__(self, database: Database, page: int = PAGE) -> None:
        self._database = database
        self._page = page
        self._after = ("", "")
        self._rests_until = 0.0

    async def next_page(self) -> list[Head]:
        """The next so many; those of paused queues are left out. None while it rests."""
        began = time.monotonic()
        if began < self._rests_until:
            return []
        rows = await self._database.fetch(HEADS, *self._after, self._page)
        took = time.monotonic() - began
        if took > CHEAP_SECONDS:
            self._rests_until = time.monotonic() + REST_SHARE * took
        self._after = (rows[-1]["queue"], rows[-1]["lane"]) if len(rows) == self._page else ("", "")
        return [_head(row) for row in rows if not row["paused"]]


# The same within these queues only.
HEADS_OF = """
SELECT asked.queue, head.lane, head.rank, head.ready_at, head.id,
       date_part('epoch', now() - head.ready_at) AS waited_seconds
FROM unnest($1::text[]) AS asked (queue) CROSS JOIN LATERAL (
    WITH RECURSIVE heads AS (
        (SELECT lane, rank, ready_at, id FROM queued
         WHERE queue = asked.queue AND ready_at IS NOT NULL AND lane > ''
         ORDER BY queue, lane, rank DESC, ready_at, id LIMIT 1)
        UNION ALL
        SELECT following.* FROM heads CROSS JOIN LATERAL (
            SELECT lane, rank, ready_at, id FROM queued
            WHERE queue = asked.queue AND ready_at IS NOT NULL AND lane > heads.lane
            ORDER BY queue, lane, rank DESC, ready_at, id LIMIT 1
        ) AS following
    )
    SELECT * FROM heads
) AS head
WHERE NOT EXISTS (SELECT 1 FROM queues WHERE name = asked.queue AND paused_at IS NOT NULL)
"""


async def heads_of(database: Database, queues: Collection[str]) -> list[Head]:
    """The head of every lane that has claimable work in these queues, unless they are paused."""
    return [_head(row) for row in await database.fetch(HEADS_OF, list(queues))]


def _head(row: Any) -> Head:
    return Head(row["queue"], row["lane"], row["rank"], row["ready_at"], row["waited_seconds"], row["id"])
