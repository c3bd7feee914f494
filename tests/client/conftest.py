"""A shared server with quick leases, and workers that live as long as a test."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from app.embedded import EmbeddedPostgres
from foreman_client import AsyncForeman, Foreman, Worker
from tests.conftest import Server
from tests.serving import serving


@pytest.fixture(scope="module")
def shared_server(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("client")
    with serving(postgres, folder, FOREMAN_SWEEP_SECONDS="0.1") as server:
        yield server


@pytest.fixture
def foreman(shared_server: Server) -> Iterator[Foreman]:
    with Foreman(shared_server.url) as client:
        yield client


@pytest.fixture
async def aforeman(shared_server: Server) -> AsyncIterator[AsyncForeman]:
    async with AsyncForeman(shared_server.url) as client:
        yield client


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[None]:
    """The worker runs meanwhile, and has ended afterwards."""
    task = asyncio.create_task(worker.serve())
    try:
        yield
    finally:
        worker.stop()
        async with asyncio.timeout(15):
            await task
