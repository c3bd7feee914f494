"""The relatives of a job: what it belongs to and what belongs to it, what it waits for and what waits for it.

Counted no further than anybody wants to know, and named no further than a picture can show.
"""

from collections.abc import Sequence

import msgspec
import orjson

from app.dialects.shapes import as_dict, as_list
from app.store.database import Database
from app.store.effects import span
from app.store.history import of_row
from app.store.rows import as_row, as_rows, columns

MAX_COUNTED = 10_000


class Member(msgspec.Struct, gc=False):
    id: str
    parent_id: str | None


MEMBER = f"SELECT {columns(Member)} FROM jobs WHERE id = $1 AND tenant = $2"


async def get(database: Database, job_id: str, tenant: str) -> Member | None:
    return as_row(Member, await database.of(tenant).fetchrow(MEMBER, job_id, tenant))


class Relative(msgspec.Struct, gc=False):
    """As much of another job as is told of it."""

    id: str
    kind: str
    model: str | None
    state: str


class Relatives(msgspec.Struct):
    """Some of them by name, and how many are in which state."""

    jobs: list[Relative]
    states: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.states.values())


# What needs a look first: failed, then running, then waiting.
_FIRST = (
    "array_position(ARRAY['failed', 'working', 'loading', 'queued', 'expired', 'stale', 'cancelled'], state)"
)
CHILDREN = f"""
WITH kin AS MATERIALIZED (
    SELECT {columns(Relative)} FROM jobs WHERE parent_id = $1 AND tenant = $2 LIMIT {MAX_COUNTED}
)
SELECT counted.states, {columns(Relative, "kin")}
FROM (
    SELECT coalesce(json_object_agg(state, jobs), '{{}}')::text AS states
    FROM (SELECT state, count(*) AS jobs FROM kin GROUP BY state) AS each
) AS counted
LEFT JOIN LATERAL (SELECT * FROM kin ORDER BY {_FIRST} NULLS LAST, id LIMIT $3) AS kin ON true
"""


async def children(database: Database, job_id: str, tenant: str, limit: int) -> Relatives:
    """Counted up to MAX_COUNTED."""
    rows = await database.of(tenant).fetch(CHILDREN, job_id, tenant, limit)
    return Relatives(
        [Relative(*row[1:]) for row in rows if row["id"] is not None], orjson.loads(rows[0]["states"])
    )


# Not in the order of their ids: for that the primary key would be walked.
DEPENDENTS = f"SELECT job_id FROM dependencies WHERE depends_on = $1 ORDER BY depends_on LIMIT {MAX_COUNTED}"


async def dependents(database: Database, job_id: str) -> list[str]:
    """Who still waits for it; up to MAX_COUNTED."""
    return sorted(row["job_id"] for row in await database.fetch(DEPENDENTS, job_id))


# It is the first event's, which lies in the job's own row or, if that takes none, in the log.
DEPENDS_ON = f"""
(SELECT own.data FROM jobs j CROSS JOIN LATERAL {of_row("j")} AS own WHERE j.id = $1 AND own.seq = 1)
UNION ALL
(SELECT data FROM events WHERE job_id = $1 AND {span("job_id", "$1", "$1")} AND seq = 1)
LIMIT 1
"""


async def depends_on(database: Database, job_id: str) -> list[str]:
    """What it had to wait for when it came in, whether that has ended or not."""
    said = await database.fetchval(DEPENDS_ON, job_id)
    return [
        each
        for each in as_list(as_dict(orjson.loads(said or "{}")).get("depends_on"))
        if isinstance(each, str)
    ]


NAMED = f"SELECT {columns(Relative)} FROM jobs WHERE id = ANY ($1::text[]) AND tenant = $2"


async def named(database: Database, job_ids: Sequence[str], tenant: str) -> list[Relative]:
    """Those of these jobs that there are, and that are this tenant's."""
    if not job_ids:
        return []
    return as_rows(Relative, await database.of(tenant).fetch(NAMED, list(job_ids), tenant))
