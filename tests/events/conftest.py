"""Servers shared by the tests of this folder; each test looks at jobs of its own."""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import TEMPLATE, Server, _create_database, _drop_database, free_port
from tests.sharing import FolderShare

QUICK = {"FOREMAN_KEEP_ALIVE_SECONDS": "0.3", "FOREMAN_SWEEP_SECONDS": "0.2"}


class Pair(NamedTuple):
    """Two replicas on one database."""

    a: Server
    b: Server


@contextmanager
def replicas(
    postgres: EmbeddedPostgres, folder: Path, *environments: dict[str, str]
) -> Iterator[list[Server]]:
    name = f"shared_{uuid.uuid4().hex[:12]}"
    asyncio.run(_create_database(postgres.dsn, name, TEMPLATE))
    with ExitStack() as stack:
        stack.callback(lambda: asyncio.run(_drop_database(postgres.dsn, name)))
        servers = []
        for number, environment in enumerate(environments):
            log = folder / f"replica-{number}.log"
            server = Server(postgres.dsn_for(name), free_port(), {**QUICK, **environment}, log_path=log)
            stack.callback(_end, server)
            servers.append(server.start())
        yield servers


def _end(server: Server) -> None:
    if server.process is not None and server.process.poll() is None:
        server.stop()


@pytest.fixture
def shared(
    share: FolderShare, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    """One server for all who need no more than that."""
    [server] = share.get("shared", lambda: replicas(postgres, tmp_path_factory.mktemp("shared"), {}))
    return server


@pytest.fixture
def pair(share: FolderShare, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A runs jobs, B only answers: whatever B tells came through the database."""
    folder, answers = tmp_path_factory.mktemp, {"FOREMAN_ROLE": "api"}
    return Pair(*share.get("pair", lambda: replicas(postgres, folder("pair"), {}, answers)))


@pytest.fixture
def deaf_pair(
    share: FolderShare, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    """The same without LISTEN."""
    folder, off = tmp_path_factory.mktemp, {"FOREMAN_LISTEN": "off"}
    answers = {**off, "FOREMAN_ROLE": "api"}
    return Pair(*share.get("deaf pair", lambda: replicas(postgres, folder("deaf"), off, answers)))
