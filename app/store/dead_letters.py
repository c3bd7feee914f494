"""Dead letters by what they died of: failed jobs that share the code of their error, their kind and their queue."""

from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from app.jobs.ids import id_floor
from app.jobs.states import State
from app.store.database import Database
from app.store.read import FIRST, LAST, Filter, conditions, look_through_state

# How many of the newest dead letters are looked at, and how many groups are told: the largest.
MAX_LOOKED = 10_000
MAX_GROUPS = 100


class Group(msgspec.Struct, gc=False):
    code: str | None
    kind: str
    queue: str
    jobs: int
    first_at: datetime
    last_at: datetime
    newest_id: str


@dataclass(slots=True)
class Groups:
    """The largest first; `found` is how many there are of them all."""

    groups: list[Group]
    found: int
    looked: int
    # The id before which nobody has looked yet; None at the end.
    next_before: str | None


_GROUPS = """
WITH seen AS MATERIALIZED (
    SELECT look_id AS id, kind, queue, completed_at, error::json ->> 'code' AS code, {matching} AS matches FROM {seen}
)
, letters AS (
    SELECT code, kind, queue, count(*) AS jobs, min(completed_at) AS first_at, max(completed_at) AS last_at,
           (array_agg(id ORDER BY completed_at DESC, id DESC))[1] AS newest_id
    FROM seen WHERE matches GROUP BY code, kind, queue
)
, bound AS (
    SELECT count(*) AS looked, min(id) AS looked_to, (SELECT count(*) FROM letters) AS found FROM seen
)
SELECT bound.*, largest.* FROM bound LEFT JOIN (
    SELECT * FROM letters ORDER BY jobs DESC, last_at DESC, code, kind, queue LIMIT {groups}
) AS largest ON true
"""


def groups_statement(wanted: Filter, tenant: str, looked: int) -> tuple[str, list[object]]:
    """Along the index of those that failed, newest first; values travel as parameters only."""
    highest = min(
        each for each in (wanted.before, wanted.until and id_floor(wanted.until), LAST) if each is not None
    )
    lowest = FIRST if wanted.since is None else id_floor(wanted.since)
    arguments: list[object] = [tenant, lowest, highest]
    rest = replace(wanted, states=[State.FAILED], since=None, until=None, before=None)
    matching = " AND ".join(["job.tenant = $1", *(f"job.{each}" for each in conditions(rest, arguments))])
    seen = look_through_state(State.FAILED).seen("DESC", looked)
    return _GROUPS.format(matching=matching, seen=seen, groups=MAX_GROUPS), arguments


async def groups(database: Database, wanted: Filter, tenant: str, looked: int = MAX_LOOKED) -> Groups:
    """Of the newest dead letters, whoever else has some among them."""
    statement, arguments = groups_statement(wanted, tenant, looked)
    rows = await database.fetch_in_order(statement, *arguments)
    told = [Group(*tuple(row)[3:]) for row in rows if row["newest_id"] is not None]
    bound = rows[0]
    further = bound["looked_to"] if bound["looked"] == looked else None
    return Groups(told, bound["found"], bound["looked"], further)
