"""Reading jobs: one by id, many by filter, and the small look-ups that waiting needs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import orjson

from app.jobs.ids import id_floor
from app.jobs.states import RUNNING, State
from app.jobs.tenants import DEFAULT_TENANT
from app.store.database import Database
from app.store.job import Job, JobSummary
from app.store.rows import as_row, as_rows, columns
from app.store.tables.job import OF_OTHER_TENANTS
from app.store.tables.live import IN_LANES

_ARTIFACTS = """(
    SELECT json_agg(
        json_build_object('name', name, 'content_type', content_type, 'size', size,
                          'inline', CASE WHEN total <= 1048576 THEN content END)
        ORDER BY name
    )
    FROM (
        SELECT *, sum(octet_length(content)) OVER (ORDER BY name) AS total FROM artifacts WHERE job_id = j.id
    ) AS a
)"""
GET = f"""
SELECT {columns(Job, "j", stored_artifacts=_ARTIFACTS)}
FROM jobs j WHERE j.id = $1 AND j.tenant = $2
"""


async def get_job(database: Database, job_id: str, tenant: str) -> Job | None:
    return as_row(Job, await database.of(tenant).fetchrow(GET, job_id, tenant))


# Counted no further than an answer needs: "10,000 or more" is all that anybody wants to know.
POSITION_LIMIT = 10_000
# Those of a better rank, and those of the same that came before, each along its own part of the index: in one condition
# all that comes behind would be read, too, to be left out.
POSITION = f"""
SELECT count(*) FROM (
    (SELECT 1 FROM queued WHERE queue = $1 AND lane = $2 AND {IN_LANES} AND rank > $3 LIMIT {POSITION_LIMIT})
    UNION ALL
    (SELECT 1 FROM queued WHERE queue = $1 AND lane = $2 AND {IN_LANES} AND rank = $3 AND (ready_at, id) < ($4, $5)
     LIMIT {POSITION_LIMIT})
    LIMIT {POSITION_LIMIT}
) AS ahead
"""


async def queue_position(database: Database, job: JobSummary) -> int | None:
    """How many jobs go first (1 is next); None while it is not claimable at all."""
    if job.state != "queued" or job.ready_at is None:
        return None
    ahead = await database.fetchval(POSITION, job.queue, job.lane, job.rank, job.ready_at, job.id)
    return int(ahead) + 1


SUMMARIES = (
    f"SELECT {columns(JobSummary)} FROM jobs WHERE id = ANY ($1::text[]) AND tenant = $2 ORDER BY id DESC"
)


async def get_summaries(database: Database, job_ids: Sequence[str], tenant: str) -> list[JobSummary]:
    """Those of the jobs that are the tenant's, newest first."""
    return as_rows(JobSummary, await database.of(tenant).fetch(SUMMARIES, list(job_ids), tenant))


# Looked for among the newest of all tenants, and not much further than they are counted.
COUNT_FAILED = """
SELECT count(*) FROM (
    SELECT 1 FROM (
        SELECT id FROM endings WHERE state = 'failed' AND state IS NOT NULL ORDER BY state DESC, id DESC LIMIT $2 * 10
    ) AS newest CROSS JOIN LATERAL (
        SELECT 1 FROM jobs WHERE id = newest.id AND tenant = $1 LIMIT 1
    ) AS own LIMIT $2
) AS found
"""


async def count_failed(database: Database, tenant: str, most: int) -> int:
    """How many dead letters a tenant has; no further than so many."""
    return int(await database.fetchval(COUNT_FAILED, tenant, most))


@dataclass(slots=True)
class Filter:
    """Which jobs; every part is optional."""

    states: Sequence[str] = ()
    queue: str | None = None
    kind: str | None = None
    model: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    # The code of the last error.
    error: str | None = None
    # Who runs it, or ran it last.
    worker: str | None = None
    # How the id begins.
    id_prefix: str | None = None
    before: str | None = None


_LISTED = columns(JobSummary)
# How many jobs one statement looks at along one way, how long a request goes on looking, and how many may share a
# piece of metadata to be looked up by it.
MAX_LOOKED = 20_000
LOOK_SECONDS = 1.0
MAX_SHARED = 2_000
# Below and above every id.
FIRST, LAST = "", "~"


def conditions(wanted: Filter, arguments: list[object]) -> list[str]:
    """The conditions of a filter, each with its own parameter; what they compare with is appended to the arguments.

    A condition that is not asked for is not there.
    """
    given: list[tuple[str, object]] = [
        ("state = ANY (${}::text[])", list(wanted.states) or None),
        ("queue = ${}", wanted.queue),
        ("kind = ${}", wanted.kind),
        ("model = ${}", wanted.model),
        ("id >= ${}", wanted.since and id_floor(wanted.since)),
        ("id < ${}", wanted.until and id_floor(wanted.until)),
        ("metadata @> ${}::jsonb", orjson.dumps(wanted.metadata).decode() if wanted.metadata else None),
        ("error::json ->> 'code' = ${}", wanted.error),
        ("worker = ${}", wanted.worker),
        ("id >= ${}", wanted.id_prefix),
        ("id < ${}", wanted.id_prefix and wanted.id_prefix + LAST),
        ("id < ${}", wanted.before),
    ]
    found = []
    for condition, value in given:
        if value is not None:
            arguments.append(value)
            found.append(condition.format(len(arguments)))
    return found


@dataclass(frozen=True, slots=True)
class Look:
    """A way through jobs in the order of their ids, along the one index that has them so: nothing is passed over
    on it but what the rest of the filter leaves out, so that looking at so many is reading so many."""

    columns: tuple[str, ...]
    # Compared as rows, so that nothing but that index has the order; `{id}` is the id to begin or end with.
    values: str
    # Of which the condition of a partial index follows: that is more than the planner sees in a comparison of rows.
    words: str = "true"
    # Where that index is: of the jobs themselves, or of a small table that has only some of them.
    table: str = "jobs"

    def span(self, direction: str) -> str:
        """From $2 to $3; that of the two belongs to it which is the last on the way."""
        columns = ", ".join(self.columns)
        above, below = (">", "<=") if direction == "ASC" else (">=", "<")
        return (
            f"{self.words} AND ({columns}) {above} ({self.values.format(id='$2')})"
            f" AND ({columns}) {below} ({self.values.format(id='$3')})"
        )

    def order(self, direction: str, prefix: str = "") -> str:
        return ", ".join(f"{prefix}{column} {direction}" for column in self.columns)

    def seen(self, direction: str, looked: int) -> str:
        """The next so many jobs, as they stand in FROM; in the order of `look_…`."""
        kept = ", ".join(f"{column} AS look_{column}" for column in self.columns)
        whole = ", *" if self.table == "jobs" else ""
        along = (
            f"(SELECT {kept}{whole} FROM {self.table} WHERE {self.span(direction)}"
            f" ORDER BY {self.order(direction)} LIMIT {looked}) AS seen"
        )
        return (
            along
            if whole
            else f"{along} CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = look_id LIMIT 1) AS job"
        )


def look_through_state(state: State) -> Look:
    """All but those that are done stand in a small table; those that run are told apart by their own rows."""
    if state is State.QUEUED:
        return Look(("id",), "{id}", table="queued")
    if state in RUNNING:
        return Look(("id",), "{id}", table="running")
    return Look(("state", "id"), f"'{state}', {{id}}", f"state >= '{state}'", table="endings")


def ways(wanted: Filter, arguments: list[object]) -> list[list[Look]]:
    """The ways that lead to all jobs of a filter, each made of one or more looks.

    The arguments are those of the filter's conditions, with the tenant as the first.
    """
    found = []
    if wanted.states and State.DONE not in wanted.states:
        looks = dict.fromkeys(look_through_state(State(state)) for state in sorted(wanted.states))
        found.append(list(looks))
    if wanted.queue is not None:
        queue = 1 + arguments.index(wanted.queue)
        found.append([Look(("queue", "id"), f"${queue}, {{id}}", f"queue >= ${queue}")])
    if wanted.model is not None:
        model = 1 + arguments.index(wanted.model)
        found.append([Look(("tenant", "model", "id"), f"$1, ${model}, {{id}}", "model IS NOT NULL")])
    if arguments[0] != DEFAULT_TENANT:
        found.append([Look(("tenant", "id"), "$1, {id}", OF_OTHER_TENANTS)])
    return found or [[Look(("id",), "{id}")]]


# What is found by one look, and how far it went: `looked_to` is NULL when it came to the end or found enough. The
# LIMITs make it lazy: nothing is read beyond the page, nor is the last job looked for unless that is needed.
_LOOK = """
(WITH found AS MATERIALIZED (
    SELECT {columns} FROM {seen} WHERE {matching} ORDER BY {seen_order} LIMIT {limit}
)
SELECT bound.looked_to, found.* FROM (
    SELECT CASE WHEN (SELECT count(*) FROM found) < {limit} THEN (
        SELECT id FROM {table} WHERE {span} ORDER BY {order} OFFSET {looked} - 1 LIMIT 1
    ) END AS looked_to
) AS bound LEFT JOIN found ON true)
"""


def look_statement(
    looks: Sequence[Look], direction: str, matching: str, *, limit: int, looked: int, columns: str = "id"
) -> str:
    """All the looks of a way, in one statement and so at one moment; values travel as parameters only."""
    parts = {"columns": columns, "matching": matching, "limit": limit, "looked": looked}
    return " UNION ALL ".join(
        _LOOK.format(
            table=look.table,
            span=look.span(direction),
            order=look.order(direction),
            seen=look.seen(direction, looked),
            seen_order=look.order(direction, "look_"),
            **parts,
        )
        for look in looks
    )


def list_statements(
    wanted: Filter, tenant: str, limit: int, looked: int = MAX_LOOKED
) -> list[tuple[str, list[object]]]:
    """The statement of each way, newest first, and its parameters."""
    prefix = wanted.id_prefix or FIRST
    highest = min(
        each
        for each in (wanted.before, wanted.until and id_floor(wanted.until), prefix + LAST)
        if each is not None
    )
    lowest = max(prefix, FIRST if wanted.since is None else id_floor(wanted.since))
    arguments: list[object] = [tenant, lowest, highest]
    rest = conditions(replace(wanted, since=None, until=None, before=None, id_prefix=None), arguments)
    matching = " AND ".join(["tenant = $1", *rest])
    return [
        (look_statement(looks, "DESC", matching, limit=limit, looked=looked, columns=_LISTED), arguments)
        for looks in ways(wanted, arguments)
    ]


@dataclass(slots=True)
class Page:
    """Jobs, newest first, and the id before which the next page begins; None on the last.

    It may have fewer jobs than asked for, even none, and not be the last: then no more were looked at for now.
    """

    jobs: list[JobSummary]
    next_before: str | None


async def list_jobs(
    database: Database,
    wanted: Filter,
    tenant: str,
    limit: int,
    *,
    looked: int = MAX_LOOKED,
    seconds: float = LOOK_SECONDS,
) -> Page:
    """Newest first. Goes on until the page is full, the jobs are at their end or the time is over."""
    ends = time.monotonic() + seconds
    page = await _look(database, wanted, tenant, limit, looked)
    while len(page.jobs) < limit and page.next_before is not None and time.monotonic() < ends:
        further = replace(wanted, before=page.next_before)
        rest = await _look(database, further, tenant, limit - len(page.jobs), looked)
        page = Page(page.jobs + rest.jobs, rest.next_before)
    if database.fences:
        page.jobs = await _behind_the_fence(database, tenant, page.jobs)
    return page


VISIBLE = "SELECT id FROM jobs WHERE id = ANY ($1::text[])"


async def _behind_the_fence(database: Database, tenant: str, jobs: Sequence[JobSummary]) -> list[JobSummary]:
    """Those that the tenant sees, which should be all. Not how they are looked for: among other tenants' jobs a look
    that saw its own alone would not know how far it has come."""
    seen = {row["id"] for row in await database.of(tenant).fetch(VISIBLE, [job.id for job in jobs])}
    return [job for job in jobs if job.id in seen]


async def _look(database: Database, wanted: Filter, tenant: str, limit: int, looked: int) -> Page:
    """The first way that comes to its end, or fills the page, has the answer; else the one that led furthest."""
    pages = []
    for statement, arguments in list_statements(wanted, tenant, limit + 1, looked):
        rows = await database.fetch_in_order(statement, *arguments)
        page = _page(rows, limit)
        if len(page.jobs) == limit or page.next_before is None:
            return page
        pages.append(page)
    if wanted.metadata:
        shared = await _list_by_metadata(database, wanted, tenant, limit)
        if shared is not None:
            return shared
    return min(pages, key=lambda page: page.next_before or FIRST)


def _page(rows: Sequence[Any], limit: int) -> Page:
    """Put together what several looks found, as far as all of them have looked. Before each job stands how far."""
    looked_to = max((row["looked_to"] for row in rows if row["looked_to"] is not None), default=None)
    found = {row["id"]: row for row in rows if row["id"] is not None and row["id"] >= (looked_to or FIRST)}
    jobs = [JobSummary(*found[job_id][1:]) for job_id in sorted(found, reverse=True)]
    return Page(jobs[:limit], jobs[limit - 1].id if len(jobs) > limit else looked_to)


# Not in any order; all there are, or too many. The fence keeps the planner from hoping to meet that many on the way
# through the whole table.
SHARING = f"""
SELECT id FROM (SELECT id FROM jobs WHERE metadata IS NOT NULL AND metadata @> $1::jsonb OFFSET 0) AS sharing
LIMIT {MAX_SHARED}
"""


async def _list_by_metadata(database: Database, wanted: Filter, tenant: str, limit: int) -> Page | None:
    """A page of jobs that few share their metadata with, wherever they lie; None if they are many."""
    sharing = await database.fetch_inverted(SHARING, orjson.dumps(wanted.metadata).decode())
    if len(sharing) == MAX_SHARED:
        return None
    arguments: list[object] = [tenant, [row["id"] for row in sharing]]
    matching = " AND ".join(["tenant = $1", "id = ANY ($2::text[])", *conditions(wanted, arguments)])
    rows = await database.fetch(
        f"SELECT NULL AS looked_to, {_LISTED} FROM (SELECT * FROM jobs WHERE id = ANY ($2::text[]) OFFSET 0) AS jobs"
        f" WHERE {matching} ORDER BY id DESC LIMIT {limit + 1}",
        *arguments,
    )
    return _page(rows, limit)


# A job that is gone has moved past everything: who waits for it is to find out.
MOVED_PAST = """
SELECT w.id FROM unnest($1::text[], $2::int[]) AS w (id, seen)
LEFT JOIN LATERAL (SELECT seq FROM jobs WHERE id = w.id LIMIT 1) AS j ON true
WHERE j.seq IS NULL OR j.seq > w.seen
"""


async def moved_past(database: Database, seen: Mapping[str, int]) -> list[str]:
    """Those of the watched jobs whose log is longer than what was seen of it."""
    return [row["id"] for row in await database.fetch(MOVED_PAST, list(seen), list(seen.values()))]


KNOW_QUEUES = "INSERT INTO queues (name) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING"


async def know_queues(database: Database, names: Sequence[str]) -> None:
    """Remember that these queues exist, so that operators find them."""
    await database.execute(KNOW_QUEUES, sorted(names))
