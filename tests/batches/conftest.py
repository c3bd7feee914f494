"""A fake Ollama with one slot, a Foreman in front of it, and OpenAI's own client: one of each for the folder."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai.types import Batch

from app.embedded import EmbeddedPostgres
from tests.conftest import Server, wait_until
from tests.fakes import FakeOllama
from tests.fakes.config import Config
from tests.serving import serving
from tests.sharing import FolderShare

CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
MODEL = "llama3.2"


@pytest.fixture
def fake(share: FolderShare) -> FakeOllama:
    running = share.get("batches-fake", FakeOllama)
    resident = [each["model"] for each in running.stats()["resident"]]
    running.control(**asdict(Config()), unload=resident, reset_stats=True)
    return running


@pytest.fixture
def foreman(
    share: FolderShare,
    postgres: EmbeddedPostgres,
    fake: FakeOllama,
    tmp_path_factory: pytest.TempPathFactory,
) -> Server:
    def make() -> AbstractContextManager[Server]:
        folder: Path = tmp_path_factory.mktemp("batches")
        settings = {
            "FOREMAN_OLLAMA_URL": fake.url,
            "FOREMAN_OLLAMA_SLOTS": "1",
            "FOREMAN_SWEEP_SECONDS": "0.2",
        }
        return serving(postgres, folder, FOREMAN_MAX_FILE_BYTES="100000", **settings)

    return share.get("batches-foreman", make)


@pytest.fixture
def client(foreman: Server) -> Iterator[openai.OpenAI]:
    with client_of(foreman) as made:
        yield made


def client_of(server: Server, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def line(custom_id: str, text: str = "hello", model: str = MODEL, **changes: Any) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **changes}


def as_file(*lines: Any) -> tuple[str, bytes]:
    """Lines as they are, or as JSON."""
    written = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    return "lines.jsonl", "\n".join(written).encode() + b"\n"


def begun(
    client: openai.OpenAI, *lines: Any, window: str = "24h", endpoint: str = CHAT, **more: Any
) -> Batch:
    file = client.files.create(file=as_file(*lines), purpose="batch")
    return client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window=window,  # type: ignore[arg-type]
        **more,
    )


def settled(client: openai.OpenAI, batch: Batch, *statuses: str) -> Batch:
    """The batch, once it has one of these statuses."""
    expected = statuses or ("completed",)
    found = wait_until(lambda: _if(client.batches.retrieve(batch.id), expected), 30)
    assert found is not None
    return found


def _if(batch: Batch, expected: tuple[str, ...]) -> Batch | None:
    ended = {"completed", "failed", "expired", "cancelled"}
    assert batch.status in expected or batch.status not in ended, batch
    return batch if batch.status in expected else None


def lines_of(client: openai.OpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """What a file of results says, by custom_id; each stands there once."""
    if file_id is None:
        return {}
    written = [json.loads(each) for each in client.files.content(file_id).text.splitlines()]
    found = {each["custom_id"]: each for each in written}
    assert len(found) == len(written)
    return found
