"""Where measuring happens: one PostgreSQL for all, a fresh database for each turn, the sizes of things."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

from benchmarks import processes, procfs

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Scale:
    """How much is done; the quick scale only shows that everything still runs."""

    connections: int
    callers: int
    bulk_callers: int
    warmup: float
    seconds: float
    drain_jobs: int
    drain_seconds: float
    latency_rate: float
    busy_rate: float
    latency_seconds: float
    # How often one that the host disturbed may be taken at most (see harness.take_turn).
    turns: int


FULL = Scale(
    connections=64,
    callers=16,
    bulk_callers=4,
    warmup=0.7,
    seconds=3.0,
    drain_jobs=40_000,
    drain_seconds=5.0,
    latency_rate=50.0,
    busy_rate=800.0,
    latency_seconds=5.0,
    turns=4,
)
QUICK = Scale(
    connections=8,
    callers=4,
    bulk_callers=2,
    warmup=0.1,
    seconds=0.3,
    drain_jobs=200,
    # Nobody is judged by how far it came: this only ends what hangs.
    drain_seconds=300.0,
    latency_rate=50.0,
    busy_rate=200.0,
    latency_seconds=0.4,
    turns=1,
)


class ServerMemory:
    """The most memory that any of our servers had during a turn."""

    def __init__(self) -> None:
        self._peak = 0.0

    def note(self, pid: int) -> None:
        self._peak = max(self._peak, procfs.peak_megabytes(pid) or 0.0)

    def take(self) -> float | None:
        """What it was; the next turn starts anew."""
        peak, self._peak = self._peak, 0.0
        return peak or None


class RetakeBudget:
    """How long a whole run may go on taking turns again: on a host that is never quiet it must end, too."""

    def __init__(self, seconds: float = 120.0) -> None:
        self._left = seconds

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def spend(self, seconds: float) -> None:
        self._left -= seconds


@dataclass(frozen=True)
class Lab:
    """What a system is given for its turn. `admin_dsn` is any database of the one server, as a superuser."""

    admin_dsn: str
    scale: Scale
    log_dir: Path
    memory: ServerMemory = field(default_factory=ServerMemory)
    retakes: RetakeBudget = field(default_factory=RetakeBudget)

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
        """Run one verb of a measuring script of ours to its end."""
        return await self.run(processes.script_command(python, module, verb, arguments))

    async def run(self, command: list[str]) -> object:
        return await processes.run_script(command, cwd=ROOT)

    def service(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str] | None = None,
        *,
        answers: bool = False,
    ) -> processes.Service:
        """A process that runs until it is stopped; what it says goes to a file of that name."""
        return processes.Service(
            command,
            environment or {},
            cwd=ROOT,
            log_path=self.log_dir / f"{name}.log",
            answers=answers,
            before_end=self.memory.note if name.startswith("foreman") else None,
        )
