"""Where measuring happens: one PostgreSQL for all, a fresh database for each turn, the sizes of things."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

from benchmarks import processes

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Scale:
    """How much is done; the quick scale only shows that everything still runs."""

    connections: int
    callers: int
    warmup: float
    seconds: float
    drain_jobs: int
    drain_seconds: float
    latency_rate: float
    latency_seconds: float
    # How often one that the host disturbed may be taken at most (see harness.take_turn).
    turns: int


FULL = Scale(
    connections=64,
    callers=16,
    warmup=1.0,
    seconds=4.0,
    drain_jobs=20_000,
    drain_seconds=10.0,
    latency_rate=50.0,
    latency_seconds=10.0,
    turns=4,
)
QUICK = Scale(
    connections=8,
    callers=4,
    warmup=0.1,
    seconds=0.3,
    drain_jobs=200,
    # Nobody is judged by how far it came: this only ends what hangs.
    drain_seconds=300.0,
    latency_rate=50.0,
    latency_seconds=0.4,
    turns=1,
)


@dataclass(frozen=True)
class Lab:
    """What a system is given for its turn. `admin_dsn` is any database of the one server, as a superuser."""

    admin_dsn: str
    scale: Scale
    log_dir: Path

    def dsn_for(self, database: str) -> str:
        return urlunsplit(urlsplit(self.admin_dsn)._replace(path="/" + quote(database, safe="")))

    async def fresh_database(self, system: str) -> str:
        """The system's own database, empty, so that no turn inherits the bloat of an earlier one."""
        name = f"bench_{system}"
        connection = await asyncpg.connect(self.admin_dsn)
        try:
            await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            await connection.execute(f'CREATE DATABASE "{name}"')
        finally:
            await connection.close()
        return self.dsn_for(name)

    async def settle_down(self, dsn: str) -> None:
        """Before the clock starts: statistics for the planner, and no checkpoint left over from others."""
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute("VACUUM ANALYZE")
            await connection.execute("CHECKPOINT")
        finally:
            await connection.close()

    async def measure(self, python: Path, module: str, verb: str, **arguments: object) -> object:
        """Run one verb of a measuring script to its end."""
        return await processes.run_script(python, module, verb, arguments, cwd=ROOT)

    def service(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str] | None = None,
        *,
        answers: bool = False,
    ) -> processes.Service:
        """A process that runs until it is stopped; what it says goes to a file of that name."""
        log_path = self.log_dir / f"{name}.log"
        return processes.Service(command, environment or {}, cwd=ROOT, log_path=log_path, answers=answers)
