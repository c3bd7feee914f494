"""An answer that comes as a whole, and fails after its first sign of life: no client takes that for an answer."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import Server
from tests.fakes import FakeOllama
from tests.node.clients import NodeClients, NodeError
from tests.passthrough.conftest import target_of
from tests.patience import wait_until
from tests.serving import serving

HELLO = [{"role": "user", "content": "Hello, world"}]
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "ollama": ("chat", {"model": "llama3.2", "messages": HELLO}),
    "openai": ("chat.completions.create", {"model": "llama3.2", "messages": HELLO}),
    "anthropic": ("messages.create", {"model": "llama3.2", "messages": HELLO, "max_tokens": 9}),
}
# The server gives a sign of life every tenth of a second: then there were many.
SIGNS_OF_LIFE_SECONDS = 2.0


@pytest.fixture(scope="module")
def early(
    node: NodeClients, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A Foreman that gives the first sign of life soon, before a target that never answers."""
    with FakeOllama(faults=[{"kind": "hang", "path": "/api/chat"}]) as fake:
        settings = {
            "FOREMAN_OLLAMA_URL": fake.url,
            "FOREMAN_PLAIN_KEEP_ALIVE_SECONDS": "0.1",
            "FOREMAN_KEEP_ALIVE_SECONDS": "0.1",
        }
        with serving(postgres, tmp_path_factory.mktemp("early"), **settings) as server:
            wait_until(lambda: target_of(server)["state"] == "awake")
            yield server


@pytest.mark.parametrize("client", CALLS)
def test_the_client_raises(node: NodeClients, early: Server, client: str) -> None:
    method, asked = CALLS[client]
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(node.one, client, early.url, method, asked)
        job_id = wait_until(lambda: call.done() or waited_for(early))
        assert isinstance(job_id, str), call.result()
        httpx.post(f"{early.url}/jobs/{job_id}/cancel").raise_for_status()
        with pytest.raises(NodeError) as raised:
            call.result()
    # It was cut off, not answered with an error.
    assert raised.value.status is None


def waited_for(server: Server) -> str | None:
    """The job of a caller who has been waiting for a while."""
    running = httpx.get(f"{server.url}/jobs", params={"state": ["loading", "working"]}).json()["jobs"]
    for job in running:
        waited = datetime.now(UTC) - datetime.fromisoformat(job["created_at"])
        if waited.total_seconds() > SIGNS_OF_LIFE_SECONDS:
            return str(job["job_id"])
    return None
