"""The claim of a queue with fair_by: round-robin over the values, within the best rank.

An index that has the value before the time makes it a matter of where to look: every value that has work gives its
oldest jobs. So it is fair however the jobs came in and however slowly they run, no job is moved about, and other queues
know nothing of it.

A process remembers the places (rank and value) it has claimed from, and where the work of each begins: a look there
steps over what was claimed before. Only in the gaps between them it searches for new ones. So a claim costs the same
however much of what ran before is still there, kept by a transaction held open elsewhere.
"""

import itertools
import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from app.store.job import BriefJob, ClaimedJob, LeasedJob
from app.store.live import HELD
from app.store.low_water import MARK_SECONDS, SLACK, THE_BEGINNING, trusted_seconds
from app.store.remembered import Remembered

# A claim looks at this many values at most, and shares out what is left in this many rounds.
MAX_VALUES = 500
MAX_ROUNDS = 6
# Below and above all ranks, as the index has them: the best first.
FIRST, LAST = -(1 << 16), 1 << 16

# (rank, value), the rank with its sign turned: in the order of the index.
Spot = tuple[int, str]

_CLAIMABLE = "ready_at IS NOT NULL AND fair_value IS NOT NULL"
_NEXT = f"""
            SELECT (- rank) AS turned, fair_value FROM queued
            WHERE queue = $1 AND lane = gap.lane AND {_CLAIMABLE}
              AND ((- rank), fair_value) > ({{after}}) AND ((- rank), fair_value) < (gap.to_rank, gap.to_value)
            ORDER BY queue, lane, (- rank), fair_value, ready_at, id LIMIT 1"""

# A loose index scan through each gap: one probe per place that has work and is not known yet.
NEW_SPOTS = f"""
SELECT gap.lane, spot.turned, spot.fair_value
FROM unnest($2::text[], $3::int[], $4::text[], $5::int[], $6::text[])
    AS gap (lane, from_rank, from_value, to_rank, to_value)
CROSS JOIN LATERAL (
    WITH RECURSIVE found AS (
        (SELECT first.*, 1 AS n FROM ({_NEXT.format(after="gap.from_rank, gap.from_value")}) AS first)
        UNION ALL
        SELECT following.*, found.n + 1 FROM found CROSS JOIN LATERAL ({_NEXT.format(after="found.turned, found.fair_value")}
        ) AS following
        WHERE found.n < $7::int
    )
    SELECT turned, fair_value FROM found
) AS spot
"""

_OF_SPOT = """q.queue = $1 AND q.lane = {spot}.lane AND q.ready_at IS NOT NULL
          AND (- q.rank) = {spot}.turned AND q.fair_value >= {spot}.fair_value AND q.fair_value <= {spot}.fair_value
          AND q.ready_at >= {spot}.mark"""

_ALIVE = f"""
WITH alive AS MATERIALIZED (
    SELECT spot.* FROM unnest($2::text[], $3::int[], $4::text[], $5::timestamptz[])
        WITH ORDINALITY AS spot (lane, turned, fair_value, mark, turn)
    CROSS JOIN LATERAL (
        SELECT 1 FROM queued q WHERE {_OF_SPOT.format(spot="spot")}
        ORDER BY q.fair_value, q.ready_at, q.id LIMIT 1
    ) AS work
)
"""
# Which is the best that has work, claimed by others in this moment or not.
BEST_RANK = _ALIVE + "SELECT min(turned) AS turned FROM alive"

# Each place in turn, as they are sent: beginning after the one that was served last. Those of the best rank that have
# work are served. The quota makes one round of what is asked for: with ten values and room for twenty, each gives two.
# A value is asked for as a range of one and stands first in the order, so that only the index that has it can give
# that order.
DUE = f"""{_ALIVE}
, turns AS MATERIALIZED (
    SELECT * FROM alive WHERE turned = (SELECT min(turned) FROM alive) ORDER BY turn LIMIT least($6, {MAX_VALUES})
)
, quota AS (
    SELECT greatest(1, ceil($6::float8 / greatest(count(*), 1)))::int AS jobs FROM turns
)
, due AS MATERIALIZED (
    SELECT found.id, found.logs_itself FROM turns CROSS JOIN quota CROSS JOIN LATERAL (
        SELECT q.id, held.logs_itself FROM queued q CROSS JOIN LATERAL ({HELD}
        ) AS held
        WHERE {_OF_SPOT.format(spot="turns")}
          AND (q.deadline IS NULL OR q.deadline > statement_timestamp())
        ORDER BY q.fair_value, q.ready_at, q.id LIMIT quota.jobs
    ) AS found
    WHERE NOT EXISTS (SELECT 1 FROM queues WHERE name = $1 AND paused_at IS NOT NULL)
    ORDER BY turns.turn
    LIMIT $6
)
"""


@dataclass(frozen=True, slots=True)
class Gap:
    """Between two known places of a lane, in the order of the index."""

    lane: str
    from_rank: int
    from_value: str
    to_rank: int
    to_value: str


@dataclass(frozen=True, slots=True)
class Place:
    """A known place, and from when on there may be work."""

    lane: str
    turned: int
    value: str
    mark: datetime


@dataclass(slots=True)
class _Lane:
    """What one process remembers of one lane."""

    served: str = ""
    # The last claim came back full: see low_water.py.
    backlog: bool = False
    marks: dict[Spot, datetime] = field(default_factory=dict)
    # When it last looked from the beginning, and how long that took.
    renewed: float = -math.inf
    seconds: float = 0.0


class Turns:
    """Whose turn it was last, and where work was, by queue and lane: in memory, hints that cost little when wrong."""

    def __init__(self) -> None:
        self._lanes: Remembered[tuple[str, str], _Lane] = Remembered()

    def gaps(self, queue: str, lanes: Sequence[str]) -> list[Gap]:
        """Where new places may be; with this a look begins."""
        found = []
        for lane in lanes:
            known = self._of(queue, lane)
            if time.monotonic() - known.renewed > trusted_seconds(known.seconds, MARK_SECONDS):
                known.renewed = time.monotonic()
                # Where not all are remembered, only those that have work are worth it.
                kept = known.marks if len(known.marks) < MAX_VALUES else ()
                known.marks = dict.fromkeys(kept, THE_BEGINNING)
            # One gap begins right behind the value that was served last: whose turn comes next is found first.
            behind = {(turned, known.served + "\x01") for turned, _ in known.marks}
            ends = [(FIRST, ""), *sorted(behind.union(known.marks)), (LAST, "")]
            found += [Gap(lane, *begin, *end) for begin, end in itertools.pairwise(ends)]
        return found

    def found(self, queue: str, spots: Sequence[tuple[str, Spot]]) -> None:
        """Places, each with its lane. Of too many, those of the best rank are kept whose turn comes soonest."""
        for lane, spot in spots:
            self._of(queue, lane).marks[spot] = THE_BEGINNING
        for lane in {lane for lane, _ in spots}:
            known = self._of(queue, lane)
            if len(known.marks) > MAX_VALUES:
                soonest = sorted(known.marks, key=lambda spot: (spot[0], spot[1] <= known.served, spot[1]))
                known.marks = {spot: known.marks[spot] for spot in soonest[:MAX_VALUES]}

    def places(self, queue: str, lanes: Sequence[str], beyond: int) -> list[Place]:
        """The known places with a rank beyond this one, in turn: those after the one that was served last come first."""
        places = []
        for lane in lanes:
            known = self._of(queue, lane)
            spots = sorted(known.marks, key=lambda spot: spot[1])
            first = bisect_right(spots, known.served, key=lambda spot: spot[1])
            for spot in spots[first:] + spots[:first]:
                if spot[0] > beyond:
                    mark = known.marks[spot]
                    exact = known.backlog or mark is THE_BEGINNING
                    places.append(Place(lane, *spot, mark if exact else mark - SLACK))
        return places

    def learn(
        self,
        queue: str,
        places: Sequence[Place],
        claimed: Sequence[ClaimedJob] | Sequence[LeasedJob] | Sequence[BriefJob],
    ) -> None:
        """From what was claimed of these places."""
        lowest: dict[tuple[str, Spot], datetime] = {}
        for job in claimed:
            spot = (job.lane, (-job.rank, job.fair_value or ""))
            lowest[spot] = min(job.ready_at, lowest.get(spot, job.ready_at))
        for place in places:
            spot = (place.lane, (place.turned, place.value))
            if spot in lowest:
                known = self._of(queue, place.lane)
                known.served = place.value
                known.marks[spot[1]] = lowest[spot]

    def took(self, queue: str, lanes: Sequence[str], seconds: float, *, full: bool) -> None:
        """How long a claim took, and whether there may be more: the longer, the rarer does one begin at the beginning."""
        for lane in lanes:
            known = self._of(queue, lane)
            known.backlog = full
            if time.monotonic() - known.renewed <= 2 * seconds:
                known.seconds = seconds

    def _of(self, queue: str, lane: str) -> _Lane:
        known = self._lanes.get((queue, lane))
        if known is None:
            known = _Lane()
            self._lanes.put((queue, lane), known)
        return known
