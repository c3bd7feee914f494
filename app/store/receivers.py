"""Receivers of webhooks, as operators see them: what waits for each, what went wrong, and sending again what was given up.

What is pending is found by receiver, and counted no further than anybody wants to know. What was given up is found in the
order of its jobs, among that of all receivers: so who sends it again goes through that in small steps.
"""

import time
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from app.store.changes import Changes
from app.store.database import Database
from app.store.effects import span
from app.store.rows import as_rows, columns, first_and_last, looked_up

# "10,000 or more" is all that anybody wants to know.
MOST_COUNTED = 10_000
# At each end of what is pending: what is due for longest, and what has been put off for longest.
LOOKED = 500

Troubled = Literal["given_up", "refused"]
# Deliveries that one statement looks at and, of those, sends again; and for how long a request goes on.
STEP_LOOKED = 1_000
COUNT_LOOKED = 20_000
STEP = 100
WALK_SECONDS = 2.0


class PendingOf(msgspec.Struct, frozen=True):
    """What waits for a receiver; all but the number and the next try of those that were looked at."""

    host: str
    pending: int = 0
    next_try_at: datetime | None = None
    oldest_pending_at: datetime | None = None
    # Tried before.
    failing: int = 0
    last_status: int | None = None
    last_error: str | None = None


_SEEN = "job_id, seq, tries, created_at, next_try_at, last_status, last_error"
_LAST = "(array_agg({} ORDER BY seen.next_try_at DESC) FILTER (WHERE seen.tries > 0))[1]"
_WAITING = columns(
    PendingOf,
    host="wanted.host",
    pending="counted.pending",
    next_try_at="min(seen.next_try_at)",
    oldest_pending_at="min(seen.created_at)",
    failing="count(*) FILTER (WHERE seen.tries > 0)",
    last_status=_LAST.format("seen.last_status"),
    last_error=_LAST.format("seen.last_error"),
)
PENDING = f"""
SELECT {_WAITING}
FROM unnest($1::text[]) AS wanted (host)
CROSS JOIN LATERAL (
    SELECT count(*) AS pending FROM (SELECT FROM outbox WHERE host = wanted.host LIMIT {MOST_COUNTED}) AS those
) AS counted
CROSS JOIN LATERAL (
    (SELECT {_SEEN} FROM outbox WHERE host = wanted.host ORDER BY next_try_at LIMIT {LOOKED})
    UNION
    (SELECT {_SEEN} FROM outbox WHERE host = wanted.host ORDER BY next_try_at DESC LIMIT {LOOKED})
) AS seen
GROUP BY wanted.host, counted.pending
"""


async def pending_of(database: Database, hosts: Collection[str]) -> dict[str, PendingOf]:
    """By host and port; those that nothing waits for are missing."""
    found = as_rows(PendingOf, await database.fetch(PENDING, list(hosts)))
    return {each.host: each for each in found}


# -- sending again -----------------------------------------------------------------------------------------------

Place = tuple[str, int]
THE_BEGINNING: Place = ("", 0)

# The first condition names the partial index, the second tells which days need not be opened.
TROUBLED = """
SELECT seen.job_id, seen.seq, job.mine IS NOT NULL AS wanted FROM (
    SELECT job_id, seq, host, state FROM deliveries
    WHERE state IN ('given_up', 'refused') AND job_id >= $1 AND (job_id, seq) > ($1, $2::int)
    ORDER BY job_id, seq LIMIT $3
) AS seen
LEFT JOIN LATERAL (
    SELECT true AS mine FROM jobs WHERE id = seen.job_id AND tenant = $4 LIMIT 1
) AS job ON seen.host = $5 AND seen.state = $6
ORDER BY seen.job_id, seen.seq
"""
# given_up, refused → pending, and their tries start over; see outbox.REDELIVER.
AGAIN = f"""
WITH held AS MATERIALIZED (
    SELECT wanted.job_id, wanted.seq FROM unnest($1::text[], $2::int[]) AS wanted (job_id, seq)
    CROSS JOIN LATERAL (SELECT FROM jobs WHERE id = wanted.job_id AND tenant = $3 LIMIT 1 FOR KEY SHARE) AS job
)
, over AS (
    DELETE FROM deliveries AS d USING held
    WHERE {looked_up("(d.job_id, d.seq)", "(held.job_id, held.seq)")} AND {span("d.job_id", "$5", "$6")} AND d.state = $4
    RETURNING d.job_id, d.seq, d.type, d.host, d.created_at, d.last_status, d.last_error
)
INSERT INTO outbox AS d (job_id, seq, type, host, created_at, last_status, last_error)
SELECT * FROM over RETURNING d.host
"""


class Walk(msgspec.Struct, frozen=True):
    """How far a walk through what was given up got, and what it met; at its end it has no place to go on from."""

    matched: int
    redelivered: int
    place: Place | None


async def redeliver(
    database: Database,
    tenant: str,
    host: str,
    state: Troubled,
    after: Place = THE_BEGINNING,
    *,
    dry_run: bool = False,
) -> Changes[Walk]:
    """Make those of a receiver due now, from the oldest job on, for as long as a request may take. What is given up once
    more meanwhile is not met again."""
    ends = time.monotonic() + WALK_SECONDS
    matched = moved = 0
    hosts: set[str] = set()
    place: Place | None = after
    while place is not None and time.monotonic() < ends:
        looked = COUNT_LOOKED if dry_run else STEP_LOOKED
        found = await database.fetch_in_order(TROUBLED, *place, looked, tenant, host, state)
        wanted = [(row["job_id"], row["seq"]) for row in found if row["wanted"]]
        place = (found[-1]["job_id"], found[-1]["seq"]) if len(found) == looked else None
        if not dry_run:
            if len(wanted) > STEP:
                wanted = wanted[:STEP]
                place = wanted[-1]
            again = await _again(database, tenant, state, wanted)
            moved += len(again)
            hosts.update(again)
        matched += len(wanted)
    return Changes([Walk(matched, moved, place)], receivers=hosts)


async def _again(database: Database, tenant: str, state: str, wanted: Sequence[Place]) -> list[str]:
    if not wanted:
        return []
    ids = [job_id for job_id, _ in wanted]
    seqs = [seq for _, seq in wanted]
    rows = await database.fetch(AGAIN, ids, seqs, tenant, state, *first_and_last(ids))
    return [row["host"] for row in rows]
