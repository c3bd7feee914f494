"""One PostgreSQL per test process, one database per test, real servers on real sockets."""

import asyncio
import functools
import http.client
import os
import re
import signal
import socket
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import httpx._transports.default as httpx_transport
import hypothesis
import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG, create_ssl_context

from app.embedded import EmbeddedPostgres
from app.store import database as database_module
from app.store.database import Database
from app.store.migrate import migrate
from tests import forkserver, patience
from tests.processes import children_of
from tests.sharing import FolderShare, folder_share
from tests.signals import let_children_hear

let_children_hear()
# An example that a stalled machine took long for is no counterexample, nor is a slow draw a fault of the strategy.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")
# Each `httpx.get` reads the list of certificate authorities anew, 30 ms for a call to loopback without TLS.
vars(httpx_transport)["create_ssl_context"] = functools.cache(create_ssl_context)
# What is given when a call names no time-out: five seconds is a measurement, and this one ends what hangs.
for each in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, each, 60.0)

# Where most tests know it from.
wait_until = patience.wait_until
ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = "template_foreman"


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left_behind() -> Iterator[None]:
    """The first to be set up, and so the last to be torn down: whoever started a process has ended it by now."""
    yield
    left = forkserver.close()
    for pid, command in children_of(os.getpid()).items():
        # multiprocessing ends its own tracker itself.
        if b"resource_tracker" not in command:
            left.append(f"{pid} {command.replace(bytes(1), b' ').decode()}")
            os.kill(pid, signal.SIGKILL)
    assert not left, f"tests have left processes behind: {left}"


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), durable=False) as server:
        run(_create_database(server.dsn, TEMPLATE))
        run(migrate(server.dsn_for(TEMPLATE)))
        yield server


@pytest.fixture(scope="session")
def share(postgres: EmbeddedPostgres) -> Iterator[FolderShare]:
    """What the tests of a folder share."""
    yield folder_share
    folder_share.close()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path.parent != item.path.parent:
        folder_share.close()


def run(work: Coroutine[Any, Any, Any]) -> None:
    """In a thread of its own: while a browser is driven (tests/browser), this one has a loop that runs already."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, work).result()


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
    run(_create_database(postgres.dsn, name, TEMPLATE))
    yield postgres.dsn_for(name)
    run(_drop_database(postgres.dsn, name))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    with pytest.MonkeyPatch.context() as patch:
        # A test that holds a transaction open keeps it, however long the machine stalls meanwhile.
        patch.setitem(database_module.SESSION, "idle_in_transaction_session_timeout", "15min")
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
    process: forkserver.Process | None = None
    log_path: Path = Path("/dev/null")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def launch(self) -> "Server":
        """Started, and not waited for."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREMAN_")}
        environment |= {
            "FOREMAN_DATABASE_URL": self.database_url,
            # What needs keys says so.
            "FOREMAN_AUTH": "off",
            "FOREMAN_PORT": str(self.port),
            **self.environment,
        }
        with self.log_path.open("ab") as log:
            self.process = forkserver.started("app", ["serve"], environment, log)
        return self

    def start(self, seconds: float = 30) -> "Server":
        self.launch()
        try:
            wait_until(self._answers, seconds, lambda: f"the server did not come up:\n{self.log()}")
        except BaseException:
            self.kill()
            raise
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.log()}"
        # Not by httpx, whose `get` spends more on certificates than a server that starts can spare.
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @property
    def admin_key(self) -> str:
        """The first key, as it was printed. Of a server that needs keys: make_server(FOREMAN_AUTH="on")."""
        printed = re.search(r"FOREMAN_API_KEY=(fmn_\w{36})\n", self.log())
        assert printed is not None, self.log()
        return printed[1]

    def client(self, key: str | None = None) -> httpx.Client:
        """Whoever has this key; the first one if none is named."""
        bearer = {"Authorization": f"Bearer {self.admin_key if key is None else key}"}
        return httpx.Client(base_url=self.url, headers=bearer if key != "" else {}, timeout=60)

    def key(self, tenant: str = "default", *scopes: str, **more: Any) -> str:
        """A new key, by the first one."""
        return self.key_by(self.admin_key, tenant, *scopes, **more)

    def key_by(self, admin_key: str, tenant: str, *scopes: str, **more: Any) -> str:
        body = {"name": "test", "tenant": tenant, **({"scopes": scopes} if scopes else {}), **more}
        with self.client(admin_key) as admin:
            made = admin.post("/keys", json=body)
        assert made.status_code == 201, made.text
        return str(made.json()["key"])

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 120) -> int:
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
        return int(self.process.returncode)

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
