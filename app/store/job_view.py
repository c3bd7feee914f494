"""One job as the page about it shows it: what may be large is cut here, so that it never travels.

A page that is open asks several times a second. So each of these statements looks at a bounded number of rows,
however long the log has become; whoever wants all of it reads the log itself (events.py).
"""

from dataclasses import dataclass
from datetime import datetime

import msgspec

from app.store.database import Database
from app.store.effects import span
from app.store.events import Event
from app.store.history import of_row
from app.store.job import JobSummary
from app.store.rows import as_row, as_rows, columns


class ViewedJob(JobSummary, gc=False):
    """Everything of a job but what is large: of that the size, and as much as was asked for."""

    cancel_requested_at: datetime | None
    cancel_reason: str | None
    webhook_url: str | None
    has_dependents: bool
    # What payload and result of an LLM job are written in.
    dialect: str
    payload: str
    payload_bytes: int
    result: str | None
    result_bytes: int | None
    # A JSON array, without what they contain.
    stored_artifacts: str | None


# A text whole if it has no more bytes than that, otherwise its beginning; nothing of it where nothing is wanted. How many
# it has is known without fetching what lies in TOAST.
_CUT = (
    "CASE WHEN {1}::int = 0 THEN left(j.{0}, 0) WHEN octet_length(j.{0}) <= {1} THEN j.{0}"
    " ELSE left(j.{0}, $5::int) END"
)
_ARTIFACTS = """(
    SELECT json_agg(json_build_object('name', name, 'content_type', content_type, 'size', size) ORDER BY name)
    FROM artifacts WHERE job_id = j.id
)"""
GET = f"""
SELECT {
    columns(
        ViewedJob,
        "j",
        payload=_CUT.format("payload", "$3"),
        payload_bytes="octet_length(j.payload)",
        result=_CUT.format("result", "$4"),
        result_bytes="octet_length(j.result)",
        stored_artifacts=_ARTIFACTS,
    )
}
FROM jobs j WHERE j.id = $1 AND j.tenant = $2
"""


async def get(
    database: Database, job_id: str, tenant: str, *, payload: int, result: int, head: int
) -> ViewedJob | None:
    """The job, with payload and result if they have no more bytes than these (0: none of it); of larger ones the first
    `head` characters."""
    row = await database.of(tenant).fetchrow(GET, job_id, tenant, payload, result, head)
    return as_row(ViewedJob, row)


# How many of the last rows of a log are looked at; a long one may have nothing in them but what callers posted.
MAX_LOOKED = 2000
# Data beyond this is left out: one error may have sixty thousand letters.
MAX_DATA_BYTES = 8192
_EVENT = columns(Event, data=f"CASE WHEN octet_length(data) <= {MAX_DATA_BYTES} THEN data END")
# Lines of the job's own history only as far back as the log was looked at: otherwise a claim would be shown
# without what became of it.
TRANSITIONS = f"""
WITH latest AS MATERIALIZED (
    SELECT {columns(Event)} FROM events
    WHERE job_id = $1 AND {span("job_id", "$1", "$1")} ORDER BY seq DESC LIMIT {MAX_LOOKED}
)
, seen AS (
    SELECT {columns(Event, "own")} FROM jobs j CROSS JOIN LATERAL {of_row("j")} AS own
    WHERE j.id = $1 AND own.seq >= coalesce((SELECT min(seq) FROM latest HAVING count(*) = {MAX_LOOKED}), 0)
    UNION ALL
    SELECT {columns(Event)} FROM latest
)
(SELECT {_EVENT} FROM seen WHERE type = state ORDER BY seq DESC LIMIT $2)
UNION ALL
(SELECT {_EVENT} FROM seen WHERE type <> state ORDER BY seq DESC LIMIT $3)
ORDER BY seq
"""


async def transitions(database: Database, job_id: str, states: int, others: int) -> list[Event]:
    """The last events of a job in order: as many that changed its state, and as many of others but chatter. Asked for
    a job that was found to be the caller's."""
    return as_rows(Event, await database.fetch(TRANSITIONS, job_id, states, others))


class LoggedEvent(Event, gc=False):
    """An event with no more than the beginning of its data, and how many bytes that has."""

    data_bytes: int | None


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a job's log, and the seq behind which to go on; None at its end."""

    events: list[LoggedEvent]
    go_on: int | None


# What a table says of one event.
DATA_HEAD = 2000
_LOGGED = columns(LoggedEvent, data=f"left(data, {DATA_HEAD})", data_bytes="octet_length(data)")


def _piece(beyond: str, order: str, furthest: str) -> str:
    """Each of the three logs walked from the cursor, no further than a bounded number of rows; then what is to be
    seen of them. Before each event stands how far was looked, if that is not to the end."""

    def walk(source: str, more: str = "") -> str:
        return (
            f"(SELECT {columns(Event)} FROM {source} WHERE seq {beyond} $2 {more}"
            f" ORDER BY seq {order} LIMIT {MAX_LOOKED})"
        )

    own = walk(f"(SELECT own.* FROM j CROSS JOIN LATERAL {of_row('j')} AS own) AS own")
    logged = walk("events", f"AND job_id = $1 AND {span('job_id', '$1', '$1')}")
    within = "SELECT created_at - interval '1 hour' FROM j", "SELECT updated_at + interval '1 hour' FROM j"
    said = walk("chatter", f"AND job_id = $1 AND at BETWEEN ({within[0]}) AND ({within[1]})")
    return f"""
WITH j AS (SELECT * FROM jobs WHERE id = $1)
, looked_at AS MATERIALIZED (
    {own} UNION ALL {logged} UNION ALL {said} ORDER BY seq {order} LIMIT {MAX_LOOKED}
)
SELECT reached.seq AS looked_to, {columns(LoggedEvent, "e")}
FROM (SELECT CASE WHEN count(*) = {MAX_LOOKED} THEN {furthest}(seq) END AS seq FROM looked_at) AS reached
LEFT JOIN LATERAL (
    SELECT {_LOGGED} FROM looked_at WHERE $3 OR type <> 'output' ORDER BY seq {order} LIMIT $4
) AS e ON true
ORDER BY e.seq {order}
"""


NEWEST_FIRST = _piece("<", "DESC", "min")
OLDEST_FIRST = _piece(">", "ASC", "max")


async def piece_of_log(
    database: Database, job_id: str, cursor: int, limit: int, *, newest_first: bool, with_output: bool
) -> Piece:
    """Events behind the cursor, in either direction. Without output a piece may be short, even empty, and not be the
    last. Asked for a job that was found to be the caller's."""
    statement = NEWEST_FIRST if newest_first else OLDEST_FIRST
    rows = await database.fetch(statement, job_id, cursor, with_output, limit + 1)
    events = [LoggedEvent(*row[1:]) for row in rows if row["seq"] is not None]
    if len(events) > limit:
        return Piece(events[:limit], events[limit - 1].seq)
    return Piece(events, rows[0]["looked_to"])


class OutputRow(msgspec.Struct, gc=False):
    """What a run said between two beats. `data` is JSON text."""

    seq: int
    data: str


# Back from the newest, until there is enough. A row is a tenth of a second, so few of them are.
OUTPUT = """
SELECT seq, data FROM (
    SELECT c.seq, c.data, sum(octet_length(c.data)) OVER (ORDER BY c.seq DESC) - octet_length(c.data) AS newer
    FROM jobs j CROSS JOIN LATERAL (
        SELECT seq, data FROM chatter
        WHERE job_id = j.id AND seq > $2 AND type = 'output'
          AND at BETWEEN j.created_at - interval '1 hour' AND j.updated_at + interval '1 hour'
        ORDER BY seq DESC LIMIT $4
    ) AS c
    WHERE j.id = $1 AND c.data IS NOT NULL
) AS said
WHERE newer < $3 ORDER BY seq
"""


async def last_output(
    database: Database, job_id: str, run: int, max_bytes: int, max_rows: int = MAX_LOOKED
) -> list[OutputRow]:
    """What a run said last, in order; a run is known by the seq of its claim."""
    return as_rows(OutputRow, await database.fetch(OUTPUT, job_id, run, max_bytes, max_rows))
