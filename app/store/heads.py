"""What there is to claim: the next job of every lane, without reading the others."""

import itertools
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.jobs.lanes import ALL_LANES
from app.store.database import Database
from app.store.low_water import LowWater
from app.store.tables.live import IN_LANES


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
HEADS = f"""
WITH RECURSIVE heads AS (
    (SELECT queue, lane, rank, ready_at, id FROM queued
     WHERE {IN_LANES} AND (queue, lane) > ($1::text, $2::text)
     ORDER BY queue, lane, rank DESC, ready_at, id LIMIT 1)
    UNION ALL
    SELECT following.* FROM heads CROSS JOIN LATERAL (
        SELECT queue, lane, rank, ready_at, id FROM queued
        WHERE {IN_LANES} AND (queue, lane) > (heads.queue, heads.lane)
        ORDER BY queue, lane, rank DESC, ready_at, id LIMIT 1
    ) AS following
)
SELECT page.*, date_part('epoch', now() - page.ready_at) AS waited_seconds, queues.paused_at IS NOT NULL AS paused
FROM (SELECT * FROM heads LIMIT $3) AS page LEFT JOIN queues ON queues.name = page.queue
ORDER BY page.queue, page.lane
"""
PAGE = 5000
# A page that takes long (a transaction held open elsewhere keeps what was claimed before) is followed by a rest, as part
# of that time: whoever walks here only makes sure that no hint was lost. Not a long one, though: a database that hung makes
# a page slow, too, and hints are lost just then.
CHEAP_SECONDS = 0.05
REST_SHARE = 20
LONGEST_REST_SECONDS = 30.0


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
            self._rests_until = time.monotonic() + min(REST_SHARE * took, LONGEST_REST_SECONDS)
        self._after = (rows[-1]["queue"], rows[-1]["lane"]) if len(rows) == self._page else ("", "")
        return [_head(row) for row in rows if not row["paused"]]


# The same within these queues only. Lanes that are known are looked at from their marks on, range of ranks by range, best
# first; others are searched for in the gaps between them, by a loose scan (see fair.py, which does the same).
_NEXT = f"""
            SELECT lane, rank, ready_at, id FROM queued
            WHERE queue = gap.queue AND {IN_LANES} AND lane > {{after}} AND lane < gap.to_lane
            ORDER BY queue, lane, rank DESC, ready_at, id LIMIT 1"""
HEADS_OF = f"""
WITH spans AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::smallint[], $4::smallint[], $5::timestamptz[])
        WITH ORDINALITY AS span (queue, lane, low, high, mark, position)
)
, found AS (
    (SELECT DISTINCT ON (span.queue, span.lane) span.queue, span.lane, head.rank, head.ready_at, head.id
     FROM spans AS span CROSS JOIN LATERAL (
        SELECT rank, ready_at, id FROM queued
        WHERE queue = span.queue AND lane = span.lane AND {IN_LANES}
          AND rank BETWEEN span.low AND span.high AND ready_at >= span.mark
        ORDER BY rank DESC, ready_at, id LIMIT 1
     ) AS head
     ORDER BY span.queue, span.lane, span.position)
    UNION ALL
    SELECT gap.queue, head.lane, head.rank, head.ready_at, head.id
    FROM unnest($6::text[], $7::text[], $8::text[]) AS gap (queue, from_lane, to_lane) CROSS JOIN LATERAL (
        WITH RECURSIVE heads AS (
            (SELECT first.* FROM ({_NEXT.format(after="gap.from_lane")}) AS first)
            UNION ALL
            SELECT following.* FROM heads CROSS JOIN LATERAL ({_NEXT.format(after="heads.lane")}
            ) AS following
        )
        SELECT * FROM heads
    ) AS head
)
SELECT found.*, date_part('epoch', now() - found.ready_at) AS waited_seconds FROM found
WHERE NOT EXISTS (SELECT 1 FROM queues WHERE name = found.queue AND paused_at IS NOT NULL)
"""
# A look at more known lanes than this costs more than to search for them all.
MAX_KNOWN = 500


async def heads_of(
    database: Database,
    queues: Collection[str],
    low_water: LowWater | None = None,
    within: tuple[str, str] = ALL_LANES,
) -> list[Head]:
    """The head of every lane that has claimable work in these queues, unless they are paused; of those between two."""
    first, last = within
    marks = LowWater() if low_water is None else low_water
    spans: list[tuple[object, ...]] = []
    gaps: list[tuple[str, str, str]] = []
    for queue, known in marks.lanes(queues).items():
        lanes = [lane for lane in known if first < lane < last] if len(known) <= MAX_KNOWN else []
        for lane in lanes:
            ranges = marks.ranges(queue, [lane])
            spans += [(queue, lane, each.low, each.high, each.mark) for each in ranges]
        gaps += [(queue, *ends) for ends in itertools.pairwise([first, *lanes, last])]
    rows = await database.fetch(
        HEADS_OF,
        *([each[n] for each in spans] for n in range(5)),
        *([each[n] for each in gaps] for n in range(3)),
    )
    return [_head(row) for row in rows]


def _head(row: Any) -> Head:
    return Head(row["queue"], row["lane"], row["rank"], row["ready_at"], row["waited_seconds"], row["id"])
