"""Clients from npm, and a Foreman with a fake Ollama for them. Without node or npm these tests are skipped, also
where the clients cannot be fetched; in CI, what node is there for must not fail to be fetched."""

import os
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import Server
from tests.fakes import FakeOllama
from tests.fakes.config import Config
from tests.node.clients import NodeClients, NotInstalled, found, install
from tests.passthrough.conftest import target_of
from tests.patience import wait_until
from tests.serving import serving
from tests.sharing import FolderShare


@pytest.fixture(scope="session")
def node() -> NodeClients:
    programs = [found(name) for name in ("node", "npm")]
    if not all(programs):
        pytest.skip("there is no node with npm for the clients from npm")
    executable, npm = map(str, programs)
    try:
        return install(npm, executable)
    except NotInstalled as problem:
        said = f"the clients from npm are not there: {problem}"
        if os.environ.get("CI"):
            pytest.fail(said)
        pytest.skip(said)


@pytest.fixture
def fake(share: FolderShare) -> Iterator[FakeOllama]:
    running = share.get("ollama", FakeOllama)
    yield running
    running.control(**asdict(Config()))


@pytest.fixture
def foreman(
    node: NodeClients,
    share: FolderShare,
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
    fake: FakeOllama,
) -> Server:
    """One for all of them; where nobody can call it, it is not even started."""
    settings = {"FOREMAN_OLLAMA_URL": fake.url}
    server = share.get("foreman", lambda: serving(postgres, tmp_path_factory.mktemp("node"), **settings))
    wait_until(lambda: target_of(server)["state"] == "awake")
    return server
