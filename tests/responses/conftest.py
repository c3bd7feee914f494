"""A fake Ollama and a Foreman in front of it for each module, and the `openai` client that speaks to it."""

from collections.abc import Iterator

import openai
import pytest

from tests.conftest import Server
from tests.passthrough.conftest import fake, fake_process, foreman, foreman_process

__all__ = ["fake", "fake_process", "foreman", "foreman_process"]


def client_of(server: Server, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def client(foreman: Server) -> Iterator[openai.OpenAI]:
    with client_of(foreman) as made:
        yield made
