"""How a wait or a run of a job went, read from its log when it has ended: what traces are made of."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from app.store.changes import Seq
from app.store.database import Runner
from app.store.effects import span
from app.store.history import of_row
from app.store.rows import as_rows, columns, first_and_last


class Step(NamedTuple):
    """A transition as the log has it: `at` in microseconds since 1970, `data` JSON text."""

    seq: int
    state: str
    verb: str
    at: int
    data: str | None


class EndedAttempt(msgspec.Struct, gc=False):
    """A job, and the transitions up to the one that ended its wait or its run. `usage` is JSON text."""

    id: str
    # Of the transition that was asked for.
    ended_by: int
    tenant: str
    queue: str
    kind: str
    model: str | None
    runs_on: str | None
    traceparent: str | None
    tracestate: str | None
    ready_at: datetime | None
    usage: str | None
    # A JSON array, newest first.
    steps: str

    def transitions(self) -> list[Step]:
        return _STEPS.decode(self.steps)


_STEPS = msgspec.json.Decoder(list[Step])
# Ended, started, claimed, queued.
_MOST = 4

# Each is looked up by its id: see settle.py.
ENDED_ATTEMPTS = f"""
SELECT {columns(EndedAttempt, id="j.id", ended_by="asked.seq", steps="log.steps")}
FROM unnest($1::text[], $2::int[]) AS asked (job_id, seq)
CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = asked.job_id LIMIT 1) AS j
CROSS JOIN LATERAL (
    SELECT json_agg(json_build_array(
        seq, state, reason, (extract(epoch FROM at) * 1000000)::bigint, data
    ) ORDER BY seq DESC)::text AS steps
    FROM (
        SELECT * FROM (
            SELECT own.seq, own.state, own.reason, own.at, own.data FROM {of_row("j")} AS own WHERE own.seq <= asked.seq
            UNION ALL
            (SELECT e.seq, e.state, e.reason, e.at, e.data FROM events e
             WHERE e.job_id = asked.job_id AND {span("e.job_id", "$3", "$4")} AND e.seq <= asked.seq AND e.type = e.state
             ORDER BY e.seq DESC LIMIT {_MOST})
        ) AS known
        ORDER BY seq DESC LIMIT {_MOST}
    ) AS last
) AS log
WHERE j.traceparent IS NOT NULL AND log.steps IS NOT NULL
"""


async def ended_attempts(database: Runner, ended: Sequence[Seq]) -> list[EndedAttempt]:
    """Of jobs that are still there, by the events that ended their waits or runs."""
    ids = [job_id for job_id, _ in ended]
    found = await database.fetch(ENDED_ATTEMPTS, ids, [seq for _, seq in ended], *first_and_last(ids))
    return as_rows(EndedAttempt, found)
