"""A batch of thousands outlives a server that is killed: no line is lost, none is answered twice, and each model is
loaded once."""

import json
from functools import partial

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.batches.conftest import CHAT, client_of, line, lines_of, settled
from tests.conftest import Server, wait_until
from tests.fakes import FakeOllama
from tests.processes import kill_at_once
from tests.serving import serving

MODELS = ("llama3.2", "qwen3:8b", "gemma3")
LINES = 2000


def test_two_thousand_lines_over_three_models_and_two_kills(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with FakeOllama(models=[{"name": model} for model in MODELS], reply="yes") as fake:
        settings = {
            "FOREMAN_OLLAMA_URL": fake.url,
            "FOREMAN_OLLAMA_SLOTS": "1",
            "FOREMAN_LEASE_SECONDS": "2",
            "FOREMAN_SWEEP_SECONDS": "0.2",
            # All lines wait for longer than that, and still each model is loaded once.
            "FOREMAN_AFFINITY_PATIENCE_SECONDS": "0.2",
        }
        with serving(postgres, tmp_path_factory.mktemp("killed"), **settings) as server:
            run(server, fake)


def run(server: Server, fake: FakeOllama) -> None:
    names = [f"line {n}" for n in range(LINES)]
    lines = [json.dumps(line(name, model=MODELS[n % 3])) for n, name in enumerate(names)]
    with client_of(server) as client:
        file = client.files.create(file=("lines.jsonl", "\n".join(lines).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        for done in (0, LINES // 2):
            # Once while the lines are still coming in, or have just done so; once in the middle of them.
            wait_until(partial(has_completed, server, batch.id, done), 60, every=0.2)
            kill_at_once(server.pid)
            server.start()
        ended = settled(client, batch)
        found = lines_of(client, ended.output_file_id)
        assert ended.error_file_id is None
        assert ended.request_counts is not None
        assert ended.request_counts.completed == LINES
    assert sorted(found) == sorted(names)
    for n, name in enumerate(names):
        assert found[name]["response"]["body"]["model"] == MODELS[n % 3]
    job_id = batch.id.removeprefix("batch_")
    family = httpx.get(f"{server.url}/jobs/{job_id}/family").json()
    assert family["children"]["total"] == LINES
    stats = fake.stats()
    assert stats["loads"] <= len(MODELS)
    # Nothing was run once more but what a kill cut off: one that ran, and one that was being settled.
    assert stats["started"] <= LINES + len(MODELS) + 2 * 2


def has_completed(server: Server, batch_id: str, more_than: int) -> bool:
    counts = httpx.get(f"{server.url}/v1/batches/{batch_id}").json()["request_counts"]
    return bool(counts["completed"] > more_than)
