"""Who is about: the workers that were seen, for operators only."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated

import msgspec
import orjson
from msgspec import Meta

from app.jobs.shapes import Count, JobId, Moment
from app.store.database import Database
from app.store.rows import as_rows, columns

# Of the jobs that a worker has, so many are named.
MOST_JOBS = 5


@dataclass(slots=True)
class WorkerReport:
    tenant: str
    name: str
    queues: Sequence[str]
    kinds: Sequence[str]
    concurrency: int
    version: str | None = None


# As one document, because arrays of arrays must all have one length. In order of their names, so that two replicas
# never wait for each other; and a row that another replica wrote just now is left as it is.
SEEN = """
INSERT INTO workers AS w (tenant, name, queues, kinds, concurrency, version)
SELECT tenant, name, queues, kinds, concurrency, version
FROM json_to_recordset($1::json)
    AS seen (tenant text, name text, queues text[], kinds text[], concurrency int, version text)
ORDER BY tenant COLLATE "C", name COLLATE "C"
ON CONFLICT (tenant, name) DO UPDATE SET
    queues = excluded.queues, kinds = excluded.kinds, concurrency = excluded.concurrency,
    version = coalesce(excluded.version, w.version), last_seen_at = now()
WHERE w.last_seen_at < now() - $2 * interval '1 second'
   OR (w.queues, w.kinds, w.concurrency) IS DISTINCT FROM (excluded.queues, excluded.kinds, excluded.concurrency)
"""


async def seen(database: Database, present: Sequence[WorkerReport], unless_within_seconds: float) -> None:
    """Write down who was seen, unless nothing changed and somebody wrote it within that time."""
    document = orjson.dumps([asdict(each) for each in present]).decode()
    await database.execute(SEEN, document, unless_within_seconds)


FORGET = "DELETE FROM workers WHERE last_seen_at < now() - interval '1 day'"


class Worker(msgspec.Struct):
    """A worker that was seen within a day."""

    name: str
    queues: list[str]
    kinds: list[str]
    concurrency: Count
    version: str | None
    started_at: Moment
    last_seen_at: Moment
    # How many jobs it has at the moment.
    running: Count
    job_ids: Annotated[
        list[JobId],
        Meta(description=f"Some of those jobs, {MOST_JOBS} at most: what it has had for longest."),
    ]


# Counted once for all of them.
LIST = f"""
WITH busy AS MATERIALIZED (
    SELECT j.worker, count(*) AS jobs, (array_agg(r.id ORDER BY j.started_at, r.id))[1:{MOST_JOBS}] AS ids
    FROM running r CROSS JOIN LATERAL (
        SELECT worker, started_at FROM jobs
        WHERE id = r.id AND tenant = $1 AND state IN ('loading', 'working') LIMIT 1
    ) AS j GROUP BY j.worker
)
SELECT {columns(Worker, "w", running="coalesce(busy.jobs, 0)", job_ids="coalesce(busy.ids, ARRAY[]::text[])")}
FROM workers w LEFT JOIN busy ON busy.worker = w.name WHERE w.tenant = $1 ORDER BY w.last_seen_at DESC LIMIT 1000
"""


async def list_workers(database: Database, tenant: str) -> list[Worker]:
    await database.execute(FORGET)
    return as_rows(Worker, await database.of(tenant).fetch(LIST, tenant))


@dataclass(frozen=True, slots=True)
class Asked:
    """That somebody of a tenant asks for these kinds (none named: all) in these queues."""

    tenant: str
    queues: frozenset[str]
    kinds: frozenset[str]
    last_at: datetime
    # A moment ago, or it has its hands full: a worker that runs a job for an hour asks for no other meanwhile.
    lately: bool


ASKED = """
SELECT tenant, queues, kinds, max(last_seen_at) AS last_at, bool_or(
    last_seen_at > now() - $1 * interval '1 second' OR name = ANY (busy.workers)
) AS lately
FROM workers CROSS JOIN (
    SELECT ARRAY(SELECT DISTINCT worker FROM running LIMIT 10000) AS workers
) AS busy
GROUP BY tenant, queues, kinds ORDER BY max(last_seen_at) DESC LIMIT 1000
"""


async def asked_lately(database: Database, seconds: float) -> list[Asked]:
    return [
        Asked(row["tenant"], frozenset(row["queues"]), frozenset(row["kinds"]), row["last_at"], row["lately"])
        for row in await database.fetch(ASKED, seconds)
    ]
