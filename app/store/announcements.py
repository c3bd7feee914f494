"""The feed over all jobs: which events were written, in the order in which that became certain.

Ids from a sequence commit out of order, so "everything after my cursor" would lose events. Every statement
announces its events in one row that carries its transaction's number. A row is read once no older transaction
is still running: from then on nothing can appear before it, and a cursor (transaction, position) is exact.

Transactions of ours are short. A stranger's long one on the same server would hold the feed back, so what is
older than HELD_BACK_SECONDS is read in any case.
"""

from dataclasses import dataclass

from app.store.database import Database
from app.store.events import Event
from app.store.history import of_row
from app.store.rows import columns

HELD_BACK_SECONDS = 60
KEPT_DAYS = 2
# Larger data is left out of the feed; the job's own log has it.
MAX_DATA_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Everything before that transaction, and that many of its events."""

    xid: int
    position: int = 0


class FeedEvent(Event, gc=False):
    """An event of any job, and where in the feed it stands."""

    job_id: str
    tenant: str
    queue: str
    xid: int
    position: int
    data_is_cut: bool


@dataclass(frozen=True, slots=True)
class Installment:
    """What came after a place, and the place to go on from."""

    events: list[FeedEvent]
    next_place: Place


_HORIZON = f"""
SELECT greatest(oldest.xid, 1 + (
    SELECT max(a.xid) FROM announcements a
    WHERE a.xid >= oldest.xid AND a.at < now() - interval '{HELD_BACK_SECONDS} seconds'
)) AS xid
FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xid) AS oldest
"""


async def horizon(database: Database) -> Place:
    """The place from which on everything is new."""
    return Place(await database.fetchval(_HORIZON))


_COLUMNS = columns(
    FeedEvent,
    "e",
    seq="w.seq",
    data="CASE WHEN NOT e.data_is_cut THEN e.data END",
    job_id="w.job_id",
    tenant="j.tenant",
    queue="j.queue",
    xid="w.xid",
    position="w.position",
)
# Positions count what was announced, not what is still there: a deleted job shifts nobody's cursor. An
# event of the log is found by its key; chatter also by its day.
INSTALLMENT = f"""
WITH horizon AS MATERIALIZED ({_HORIZON})
, announced AS (
    SELECT *, sum(cardinality(seqs) * events) OVER (ORDER BY xid, id) - cardinality(seqs) * events AS before
    FROM (
        SELECT xid, id, job_ids, seqs, events FROM announcements
        WHERE xid >= $1::bigint AND xid < (SELECT xid FROM horizon)
          AND at > now() - interval '{KEPT_DAYS} days'
        ORDER BY xid, id LIMIT $3::bigint
    ) AS due
)
, written AS (
    SELECT xid, row_number() OVER (PARTITION BY xid ORDER BY id, nth, step) AS position, job_id, last - events + step AS seq
    FROM announced CROSS JOIN unnest(job_ids, seqs) WITH ORDINALITY AS moved (job_id, last, nth)
    CROSS JOIN generate_series(1, events) AS step
    WHERE before < $2::bigint + $4::bigint
)
SELECT horizon.xid AS horizon, {_COLUMNS}
FROM horizon
LEFT JOIN written w ON w.xid > $1::bigint OR w.position > $2::bigint
LEFT JOIN LATERAL (SELECT * FROM jobs WHERE id = w.job_id LIMIT 1) AS j ON true
LEFT JOIN LATERAL (
    SELECT *, coalesce(octet_length(data) > {MAX_DATA_BYTES}, false) AS data_is_cut
    FROM (
        SELECT type, state, reason, data, at FROM events WHERE job_id = w.job_id AND seq = w.seq
        UNION ALL
        SELECT type, state, reason, data, at FROM {of_row("j")} AS own WHERE seq = w.seq
        UNION ALL
        SELECT type, state, reason, data, at FROM chatter
        WHERE job_id = w.job_id AND seq = w.seq
          AND at BETWEEN j.created_at - interval '1 hour' AND j.updated_at + interval '1 hour'
    ) AS found
) AS e ON true
ORDER BY w.xid, w.position
"""


async def read_on(
    database: Database, place: Place, *, statements: int = 200, events: int = 1000
) -> Installment:
    """What was announced after that place: at most so many statements, and little more than so many events."""
    rows = await database.fetch(INSTALLMENT, place.xid, place.position, statements, events)
    if rows[0]["xid"] is None:
        # Also the way back for a cursor from before a failover or restore, where numbers went further.
        return Installment([], Place(rows[0]["horizon"]))
    last = rows[-1]
    # What is gone with its job, or its day, left its place only.
    found = [FeedEvent(*row[1:]) for row in rows if row["type"] is not None]
    return Installment(found, Place(last["xid"], last["position"]))
