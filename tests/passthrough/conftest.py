"""A fake Ollama and a Foreman in front of it: one pair for each module of tests, as new for each test."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import TEMPLATE, Server, free_port, wait_until
from tests.fakes import FakeOllama
from tests.fakes.config import Config
from tests.fakes.inventory import full_name
from tests.live_tables import FOLLOW


@pytest.fixture(scope="module")
def fake_process() -> Iterator[FakeOllama]:
    with FakeOllama() as running:
        yield running


@pytest.fixture(scope="module")
def foreman_process(
    postgres: EmbeddedPostgres, fake_process: FakeOllama, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    asyncio.run(_execute(postgres.dsn, f'CREATE DATABASE "{name}" TEMPLATE "{TEMPLATE}"'))
    log_path: Path = tmp_path_factory.mktemp("foreman") / "server.log"
    settings = {
        "FOREMAN_OLLAMA_URL": fake_process.url,
        "FOREMAN_KEEP_ALIVE_SECONDS": "0.3",
        "FOREMAN_SECRET_KEY": "a passphrase for the tests",
    }
    server = Server(postgres.dsn_for(name), free_port(), settings, log_path=log_path).start()
    yield server
    server.kill()
    asyncio.run(_execute(postgres.dsn, f'DROP DATABASE "{name}" WITH (FORCE)'))


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture
def fake(fake_process: FakeOllama) -> FakeOllama:
    resident = [each["model"] for each in fake_process.stats()["resident"]]
    fake_process.control(**asdict(Config()), unload=resident, reset_stats=True)
    return fake_process


@pytest.fixture
def foreman(fake: FakeOllama, foreman_process: Server) -> Server:
    """Without a job, and awake; what a test before took from the target's models is known to be there again."""
    asyncio.run(
        _execute(foreman_process.database_url, "DELETE FROM jobs", FOLLOW, "DELETE FROM idempotency_keys")
    )

    def is_as_ever() -> bool:
        target = target_of(foreman_process)
        missing = {full_name(model["name"]) for model in Config().models} - set(target["models"])
        for model in missing:
            # Asked for what it does not know, it looks again.
            httpx.post(f"{foreman_process.url}/api/show", json={"model": model})
        return target["state"] == "awake" and not missing

    wait_until(is_as_ever)
    return foreman_process


def started(make_server: Callable[..., Server], fake: FakeOllama, **settings: str) -> Server:
    """A Foreman of the test's own that knows its target."""
    server = make_server(FOREMAN_OLLAMA_URL=fake.url, **settings)
    wait_until(lambda: target_of(server)["state"] == "awake")
    return server


def target_of(server: Server, name: str = "default") -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/targets/{name}").json()
    return found


def jobs_of(server: Server, **filters: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{server.url}/jobs", params={"limit": 200, **filters}).json()[
        "jobs"
    ]
    return found


def job_of(server: Server, job_id: str, wait: float = 0) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/jobs/{job_id}", params={"wait": wait}, timeout=60).json()
    return found
