"""The other queues that are measured beside Foreman: what each needs, and how its progress is seen."""

from dataclasses import dataclass
from typing import Protocol

from benchmarks.lab import Lab
from benchmarks.node_packages import NodePackages
from benchmarks.venvs import PythonPackages


class Packages(Protocol):
    """Where a peer is installed, and how its script is called."""

    def is_ready(self) -> bool: ...
    def make_ready(self) -> None: ...
    def command(self, verb: str, arguments: dict[str, object]) -> list[str]: ...
    def version(self) -> str: ...


@dataclass(frozen=True)
class Peer:
    """`progress` asks its tables for (finished, first claim, last completion); without it, its worker tells.

    What is there is measured at the settings that served it best here: see docs/benchmarks.md.
    """

    name: str
    packages: Packages
    progress: str | None = None
    # Enough to keep it busy while it is watched: filling more takes longer than draining them would.
    most_jobs: int = 1_000_000
    has_bulk: bool = True
    # Whether 800 jobs a second are within its reach here; else only a growing backlog would be measured.
    is_swift: bool = True

    async def ask(self, lab: Lab, verb: str, **arguments: object) -> object:
        """Run one verb of its script to its end."""
        return await lab.run(self.packages.command(verb, arguments))

    async def installed(self, lab: Lab) -> str:
        """A fresh database with its tables."""
        dsn = await lab.fresh_database(self.name)
        await self.ask(lab, "install", dsn=dsn)
        return dsn


PGQUEUER = Peer(
    "pgqueuer",
    PythonPackages("pgqueuer"),
    progress="""
SELECT count(*) FILTER (WHERE status = 'successful'),
       min(created) FILTER (WHERE status = 'picked'),
       max(created) FILTER (WHERE status = 'successful')
FROM pgqueuer_log
""",
)
PROCRASTINATE = Peer(
    "procrastinate",
    PythonPackages("procrastinate"),
    progress="""
SELECT count(*) FILTER (WHERE type = 'succeeded'),
       min(at) FILTER (WHERE type = 'started'),
       max(at) FILTER (WHERE type = 'succeeded')
FROM procrastinate_events
""",
    most_jobs=10_000,
    is_swift=False,
)
OBAN = Peer(
    "oban",
    PythonPackages("oban", oldest_python=(3, 12)),
    progress="""
SELECT count(*) FILTER (WHERE state = 'completed'), min(attempted_at), max(completed_at)
FROM oban_jobs
""",
    most_jobs=15_000,
)
SAQ = Peer(
    "saq",
    PythonPackages("saq"),
    # The row has no columns for it: a job's own times, in milliseconds, stand in what it is stored as.
    progress="""
SELECT count(*),
       to_timestamp(min((job ->> 'started')::float8) / 1000),
       to_timestamp(max((job ->> 'completed')::float8) / 1000)
FROM (SELECT convert_from(job, 'UTF8')::json AS job FROM saq_jobs WHERE status = 'complete') AS finished
""",
    most_jobs=6_000,
    has_bulk=False,
    is_swift=False,
)
# It deletes what is done, so only its worker can tell.
GRAPHILE_WORKER = Peer("graphile-worker", NodePackages("graphile-worker", "graphile_worker"))
PG_BOSS = Peer(
    "pg-boss",
    NodePackages("pg-boss", "pg_boss"),
    progress="""
SELECT count(*) FILTER (WHERE state = 'completed'), min(started_on), max(completed_on)
FROM pgboss.job WHERE name = 'bench'
""",
)
QUEUES = (PGQUEUER, PROCRASTINATE, OBAN, SAQ, GRAPHILE_WORKER, PG_BOSS)
# Not a queue: only the benchmark of synchronous calls measures it.
LITELLM_PACKAGES = PythonPackages("litellm")
LITELLM = Peer("litellm", LITELLM_PACKAGES)
EVERYONE = (*QUEUES, LITELLM)
