"""One PostgreSQL per test process, one database per test, real servers on real sockets."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import httpx
import pytest

from app.store.database import Database
from app.store.embedded import EmbeddedPostgres
from app.store.migrate import migrate
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = "template_foreman"


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), durable=False) as server:
        asyncio.run(_create_database(server.dsn, TEMPLATE))
        asyncio.run(migrate(server.dsn_for(TEMPLATE)))
        yield server


async def _create_database(admin: str, name: str, template: str | None = None) -> None:
    connection = await asyncpg.connect(admin)
    try:
        await connection.execute(
            f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{template}"' if template else "")
        )
    finally:
        await connection.close()


async def _drop_database(admin: str, name: str) -> None:
    connection = await asyncpg.connect(admin)
    try:
        await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    finally:
        await connection.close()


@pytest.fixture
def database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A migrated database of this test's own."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    asyncio.run(_create_database(postgres.dsn, name, TEMPLATE))
    yield postgres.dsn_for(name)
    asyncio.run(_drop_database(postgres.dsn, name))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    await database.open()
    yield database
    await database.close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Server:
    """A real `foreman serve` in a process of its own."""

    database_url: str
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    log_path: Path = Path("/dev/null")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, seconds: float = 30) -> "Server":
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREMAN_")}
        environment |= {
            "FOREMAN_DATABASE_URL": self.database_url,
            "FOREMAN_PORT": str(self.port),
            **self.environment,
        }
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app", "serve"], cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        wait_until(self._answers, seconds, lambda: f"the server did not come up:\n{self.log()}")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.log()}"
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200
        return False

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 30) -> int:
        """SIGTERM, and its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        return self.process.returncode

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""


MakeServer = Callable[..., Server]


@pytest.fixture
def make_server(database_url: str, tmp_path: Path) -> Iterator[MakeServer]:
    """Start servers on this test's database: make_server(FOREMAN_LEASE_SECONDS="1", …)."""
    servers: list[Server] = []

    def make(**environment: str) -> Server:
        server = Server(
            database_url, free_port(), environment, log_path=tmp_path / f"server-{len(servers)}.log"
        )
        servers.append(server)
        return server.start()

    yield make
    for server in servers:
        if server.process is not None and server.process.poll() is None:
            server.kill()


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    return make_server()


def wait_until(
    condition: Callable[[], object], seconds: float = 10, explain: Callable[[], str] | None = None
) -> None:
    """Wait on a condition, with a deadline: as long as a quiet machine may need, times what a busy one may."""
    ends = time.monotonic() + seconds * PATIENCE
    while not condition():
        if time.monotonic() > ends:
            raise AssertionError(explain() if explain else f"not within {seconds} s: {condition}")
        time.sleep(0.02)
