"""Calls without a stream to a target that speaks the caller's dialect: asked and answered as a whole."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import Server, wait_until
from tests.fakes import FakeOllama
from tests.passthrough.conftest import job_of, jobs_of
from tests.passthrough.test_disconnects import HELLO, RawCaller
from tests.serving import serving

ASK = {"model": "llama3.2:latest", "messages": HELLO}


@pytest.fixture(scope="module")
def openai_foreman(
    postgres: EmbeddedPostgres, fake_process: FakeOllama, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """In front of the fake's other surface; its patience with silence is short."""
    folder = tmp_path_factory.mktemp("whole")
    targets = folder / "targets.toml"
    targets.write_text(f'[targets.other]\nurl = "{fake_process.url}"\ndialect = "openai"\nslots = 4\n')
    patience = {"FOREMAN_TARGET_TIMEOUT_SECONDS": "0.3", "FOREMAN_TARGET_ANSWER_SECONDS": "5"}
    with serving(postgres, folder, FOREMAN_TARGETS=str(targets), **patience) as server:
        wait_until(lambda: "llama3.2" in httpx.get(f"{server.url}/v1/models").text)
        yield server


def ask(server: Server, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json={**ASK, **fields}, timeout=60)


def test_the_answer_is_the_targets_and_may_take_longer_than_a_silence(
    openai_foreman: Server, fake: FakeOllama
) -> None:
    fake.control(token_seconds=0.05, reply_tokens=20)
    direct = httpx.post(f"{fake.url}/v1/chat/completions", json=ASK, timeout=60).json()
    answer = ask(openai_foreman)
    assert answer.status_code == 200
    ours = answer.json()
    assert ours["id"] == f"chatcmpl-{answer.headers['x-foreman-job-id']}"
    assert {**ours, "id": 0, "created": 0} == {**direct, "id": 0, "created": 0}
    job = job_of(openai_foreman, answer.headers["x-foreman-job-id"])
    assert job["usage"]["completion_tokens"] == direct["usage"]["completion_tokens"] == 20


def test_one_that_hangs_is_given_up_in_the_end(openai_foreman: Server, fake: FakeOllama) -> None:
    fake.control(token_seconds=10.0, reply_tokens=20)
    answer = ask(openai_foreman)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "target_timeout")
    fake.wait_for(lambda stats: stats["running"] == 0)


def test_a_caller_who_hangs_up_ends_the_targets_work(openai_foreman: Server, fake: FakeOllama) -> None:
    fake.control(token_seconds=0.1, reply_tokens=40)
    caller = RawCaller(openai_foreman, "/v1/chat/completions", ASK)
    fake.wait_for(lambda stats: stats["running"] == 1)
    [job] = jobs_of(openai_foreman, state="working")
    caller.kill()
    fake.wait_for(lambda stats: stats["aborted"] == 1 and stats["running"] == 0)
    wait_until(lambda: job_of(openai_foreman, job["job_id"])["state"] == "cancelled")


def test_whoever_attaches_to_a_whole_call_gets_its_answer(openai_foreman: Server, fake: FakeOllama) -> None:
    answer = ask(openai_foreman)
    place = f"{openai_foreman.url}/jobs/{answer.headers['x-foreman-job-id']}/stream"
    frames = [httpx.Response(200, content=line).json() for line in httpx.get(place).text.splitlines()]
    said = "".join([frame["message"]["content"] for frame in frames])
    assert said == answer.json()["choices"][0]["message"]["content"]
    assert frames[-1]["done"] is True
