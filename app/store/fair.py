"""The claim of a queue with fair_by: round-robin over the values, within the best rank.

An index that has the value before the time makes it a matter of where to look: a loose scan finds the values
that have work, one probe each, and every value gives its oldest jobs. So it is fair however the jobs came in and
however slowly they run, no job is moved about, and other queues know nothing of it.
"""

from collections.abc import Sequence

from app.store.job import ClaimedJob, LeasedJob
from app.store.live import HELD
from app.store.remembered import Remembered

# A claim looks at this many values at most, and shares out what is left in this many rounds.
MAX_VALUES = 500
MAX_ROUNDS = 6
TOP = 1 << 15

_CLAIMABLE = "ready_at IS NOT NULL AND fair_value IS NOT NULL"

BEST_RANK = f"""
SELECT asked.lane, best.rank FROM unnest($2::text[]) AS asked (lane)
CROSS JOIN LATERAL (
    SELECT rank FROM queued WHERE queue = $1 AND lane = asked.lane AND {_CLAIMABLE} AND rank < $3::int
    ORDER BY rank DESC LIMIT 1
) AS best
"""


def _values(where: str, until: str = "") -> str:
    """A loose index scan over the values that have work in one lane."""
    return f"""(
        WITH RECURSIVE known AS (
            (SELECT fair_value, 1 AS n FROM queued
             WHERE queue = $1 AND lane = place.lane AND rank = $4 AND {_CLAIMABLE} AND fair_value {where}
             ORDER BY fair_value LIMIT 1)
            UNION ALL
            SELECT following.fair_value, known.n + 1 FROM known CROSS JOIN LATERAL (
                SELECT fair_value FROM queued
                WHERE queue = $1 AND lane = place.lane AND rank = $4 AND {_CLAIMABLE}
                  AND fair_value > known.fair_value
                ORDER BY fair_value LIMIT 1
            ) AS following
            WHERE known.n < $5::int {until}
        )
        SELECT fair_value FROM known
    )"""


# Each (lane, value) in turn, beginning after the one that was served last. The quota makes one round of what is
# asked for: with ten values and room for twenty, each gives two. A value is asked for as a range of one and stands
# first in the order, so that only the index that has it can give that order.
DUE = f"""
WITH turns AS MATERIALIZED (
    SELECT place.lane, value.fair_value, row_number() OVER () AS turn
    FROM unnest($2::text[], $3::text[]) AS place (lane, served)
    CROSS JOIN LATERAL (
        SELECT fair_value, 0 AS lap FROM {_values("> place.served")} AS later
        UNION ALL
        SELECT fair_value, 1 FROM {_values(">= ''", "AND known.fair_value < place.served")} AS again
        WHERE fair_value <= place.served
        ORDER BY lap, fair_value LIMIT $5
    ) AS value
)
, quota AS (
    SELECT greatest(1, ceil($6::float8 / greatest(count(*), 1)))::int AS jobs FROM turns
)
, due AS MATERIALIZED (
    SELECT found.id, found.logs_itself FROM turns CROSS JOIN quota CROSS JOIN LATERAL (
        SELECT q.id, held.logs_itself FROM queued q CROSS JOIN LATERAL ({HELD}
        ) AS held
        WHERE q.queue = $1 AND q.lane = turns.lane AND q.rank = $4 AND q.ready_at IS NOT NULL
          AND q.fair_value >= turns.fair_value AND q.fair_value <= turns.fair_value
          AND (q.deadline IS NULL OR q.deadline > statement_timestamp())
        ORDER BY q.fair_value, q.ready_at, q.id LIMIT quota.jobs
    ) AS found
    WHERE NOT EXISTS (SELECT 1 FROM queues WHERE name = $1 AND paused_at IS NOT NULL)
    ORDER BY turns.turn
    LIMIT $6
)
"""


class Turns:
    """Whose turn it was last, by queue and lane; in memory, since it only has to move on from claim to claim."""

    def __init__(self) -> None:
        self._served: Remembered[tuple[str, str], str] = Remembered()

    def served(self, queue: str, lanes: Sequence[str]) -> list[str]:
        return [self._served.get((queue, lane)) or "" for lane in lanes]

    def learn(self, queue: str, claimed: Sequence[ClaimedJob] | Sequence[LeasedJob]) -> None:
        for job in claimed:
            self._served.put((queue, job.lane), job.fair_value or "")
