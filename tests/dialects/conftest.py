"""One fake Ollama for each module of tests, as new for each test; a llama.cpp server where asked for."""

from collections.abc import Iterator
from dataclasses import asdict

import pytest

from tests.fakes import FakeOllama
from tests.fakes.config import Config
from tests.fakes.openai_llama import LlamaServer


@pytest.fixture(scope="module")
def fake_process() -> Iterator[FakeOllama]:
    with FakeOllama() as fake:
        yield fake


@pytest.fixture
def fake(fake_process: FakeOllama) -> FakeOllama:
    resident = [each["model"] for each in fake_process.stats()["resident"]]
    fake_process.control(**asdict(Config()), unload=resident, reset_stats=True)
    return fake_process


@pytest.fixture(scope="module")
def llama() -> Iterator[LlamaServer]:
    with LlamaServer() as server:
        yield server
