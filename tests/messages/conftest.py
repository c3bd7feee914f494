"""A Foreman before a fake Ollama and a real llama.cpp, for all tests of this folder: each looks at its own jobs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import anthropic
import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import Server, wait_until
from tests.fakes import FakeOllama
from tests.fakes.config import Config
from tests.fakes.openai_llama import LlamaServer
from tests.serving import serving
from tests.sharing import FolderShare


@pytest.fixture
def fake(share: FolderShare) -> FakeOllama:
    fake = share.get("fake", FakeOllama)
    fake.control(**asdict(Config()), reset_stats=True)
    return fake


@pytest.fixture
def llama(share: FolderShare) -> LlamaServer:
    return share.get("llama", LlamaServer)


@pytest.fixture
def foreman(
    share: FolderShare,
    postgres: EmbeddedPostgres,
    fake: FakeOllama,
    llama: LlamaServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Server:
    @contextmanager
    def before_both() -> Iterator[Server]:
        settings = {
            "FOREMAN_OLLAMA_URL": fake.url,
            "FOREMAN_AUTH": "on",
            "FOREMAN_KEEP_ALIVE_SECONDS": "0.3",
            "FOREMAN_SWEEP_SECONDS": "0.2",
            "FOREMAN_SHUTDOWN_GRACE_SECONDS": "1",
        }
        with serving(postgres, tmp_path_factory.mktemp("messages"), **settings) as server:
            with server.client() as admin:
                admin.put("/targets/llama", json={"url": llama.url, "dialect": "openai"}).raise_for_status()
                wait_until(
                    lambda: all(each["state"] == "awake" for each in admin.get("/targets").json()["targets"])
                )
            yield server

    return share.get("foreman", before_both)


@pytest.fixture
def client(foreman: Server) -> Iterator[anthropic.Anthropic]:
    """Its key goes where the client puts it: into `x-api-key`."""
    with anthropic.Anthropic(base_url=foreman.url, api_key=foreman.admin_key, max_retries=0) as made:
        yield made


@pytest.fixture
def caller(foreman: Server) -> Iterator[httpx.Client]:
    with foreman.client() as made:
        yield made
