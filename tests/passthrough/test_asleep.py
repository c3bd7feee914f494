"""A target that comes and goes: nobody's job fails for it, and nobody's connection is left in the dark."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import ollama
import openai
from openai.types.chat import ChatCompletionUserMessageParam

from tests.conftest import Server, wait_until
from tests.fakes import FakeOllama
from tests.passthrough.conftest import job_of, jobs_of, started, target_of
from tests.patience import PATIENCE

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Hello, world"}]
SAID = "You said: Hello, world"


def submit(server: Server, **more: object) -> str:
    body = {"model": "llama3.2", "messages": HELLO, **more}
    return str(httpx.post(f"{server.url}/jobs", json=body).json()["job_id"])


def test_sync_calls_and_jobs_wait_for_a_sleeping_target_and_finish_when_it_is_back(
    foreman: Server, fake: FakeOllama
) -> None:
    fake.stop()
    with ThreadPoolExecutor(4) as callers:
        jobs = [submit(foreman) for _ in range(20)]
        client = ollama.Client(host=foreman.url, timeout=60)
        spoken = openai.OpenAI(base_url=f"{foreman.url}/v1", api_key="none", max_retries=0)
        frames: list[ollama.ChatResponse] = []

        def stream() -> str:
            frames.extend(client.chat("llama3.2", HELLO, stream=True))
            return "".join(frame.message.content or "" for frame in frames)

        waiting: list[Future[str | None]] = [
            callers.submit(stream),
            callers.submit(lambda: client.chat("llama3.2", HELLO).message.content),
            callers.submit(
                lambda: "".join(
                    chunk.choices[0].delta.content or ""
                    for chunk in spoken.chat.completions.create(model="llama3.2", messages=HELLO, stream=True)
                )
            ),
            callers.submit(
                lambda: (
                    spoken.chat.completions.create(model="llama3.2", messages=HELLO)
                    .choices[0]
                    .message.content
                )
            ),
        ]
        try:
            wait_until(lambda: [job["reason"] for job in jobs_of(foreman)] == ["target_asleep"] * 24, 20)
            known = jobs_of(foreman)
            assert {job["state"] for job in known} == {"queued"}
            assert {job["attempt"] for job in known} == {0}
            # No moment is known at which they will run; the reason says what they wait for.
            assert {job["run_at"] for job in known} == {None}
            assert job_of(foreman, jobs[0])["run_at"] is None
            # The stream is kept alive by frames that the client takes.
            wait_until(lambda: len(frames) >= 2, 10)
            assert not any(frame.message.content or frame.done for frame in frames)
            assert target_of(foreman)["state"] == "asleep"
            assert "llama3.2:latest" in target_of(foreman)["models"]
        finally:
            fake.start()
        back = time.monotonic()
        assert [each.result(60) for each in waiting] == [SAID] * 4
        assert [job_of(foreman, job_id, 30)["state"] for job_id in jobs] == ["done"] * 20
        took = time.monotonic() - back
        client._client.close()
        spoken.close()
    # Five seconds on a quiet machine; each by its own back-off would take longer than any machine's noise.
    assert took < 5 * PATIENCE, took
    assert {job["attempt"] for job in jobs_of(foreman)} == {1}


def test_the_last_known_inventory_is_shown_while_the_target_sleeps(
    foreman: Server, fake: FakeOllama, make_server: Callable[..., Server]
) -> None:
    with ollama.Client(host=foreman.url) as client:
        known = client.list()
        shown = client.show("llama3.2")
        fake.stop()
        try:
            submit(foreman)
            wait_until(lambda: target_of(foreman)["state"] == "asleep")
            assert client.list() == known
            assert client.show("llama3.2") == shown
            # A model that nobody has may be the sleeping target's: it is waited for, not refused.
            with httpx.stream(
                "POST", f"{foreman.url}/api/generate", json={"model": "who", "prompt": "x"}
            ) as waiting:
                assert waiting.status_code == 200
                assert '"response":""' in next(waiting.iter_lines())
        finally:
            fake.start()


def test_a_model_that_nobody_has_fails_for_good_once_every_target_answered(foreman: Server) -> None:
    job = job_of(foreman, submit(foreman, model="nobody"), 20)
    assert (job["state"], job["error"]["code"], job["attempt"]) == ("failed", "model_not_found", 1)


def test_a_job_pinned_to_a_target_that_does_not_exist_fails(foreman: Server) -> None:
    job = job_of(foreman, submit(foreman, target="elsewhere"), 20)
    assert (job["state"], job["error"]["code"]) == ("failed", "model_not_found")


def test_a_target_that_vanishes_in_mid_answer_costs_an_attempt_and_no_more(
    make_server: Callable[..., Server], fake: FakeOllama
) -> None:
    server = started(make_server, fake)
    fake.control(token_seconds=0.05, reply_tokens=200)
    job_id = submit(server, backoff_seconds=0.1)
    # Something of the answer stands in the log: queued, loading, working, output.
    wait_until(lambda: job_of(server, job_id)["seq"] >= 4)
    fake.stop()
    wait_until(lambda: job_of(server, job_id)["state"] == "queued", 10)
    fake._knobs |= {"token_seconds": 0.0}
    fake.start()
    job = job_of(server, job_id, 30)
    assert (job["state"], job["attempt"]) == ("done", 2)


def test_a_restarted_server_still_knows_what_the_sleeping_target_has(
    make_server: Callable[..., Server], fake: FakeOllama
) -> None:
    server = started(make_server, fake)
    server.stop()
    fake.stop()
    server.start()
    try:
        with ollama.Client(host=server.url) as client:
            assert "llama3.2:latest" in {model.model for model in client.list().models}
    finally:
        fake.start()


def test_a_silent_target_is_taken_for_asleep(make_server: Callable[..., Server], fake: FakeOllama) -> None:
    server = started(make_server, fake, FOREMAN_INVENTORY_SECONDS="0.2")
    fake.pause()
    try:
        wait_until(lambda: target_of(server)["state"] == "asleep", 15)
    finally:
        fake.resume()
    wait_until(lambda: target_of(server)["state"] == "awake", 15)
