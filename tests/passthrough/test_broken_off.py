"""A whole answer that has begun and then fails is broken off: no client takes an error for an answer."""

import asyncio
import itertools
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import httpx
import ollama
import openai
import pytest
from langchain_ollama import ChatOllama, OllamaEmbeddings
from openai.types.chat import ChatCompletionUserMessageParam

from app.embedded import EmbeddedPostgres
from tests.conftest import MakeServer, Server, wait_until
from tests.fakes import FakeOllama
from tests.fakes.config import Config
from tests.passthrough.conftest import job_of, jobs_of, started, target_of
from tests.patience import LONG_WAIT
from tests.serving import serving

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Hello, world"}]
SAID = "You said: Hello, world"
CHAT = {"model": "llama3.2", "messages": HELLO, "stream": False}
HANGS = [{"kind": "hang", "path": "/api/chat"}, {"kind": "hang", "path": "/api/embed"}]
FAILS = [{"kind": "error", "path": "/api/chat"}, {"kind": "error", "path": "/api/embed"}]
SIGNS = {"FOREMAN_PLAIN_KEEP_ALIVE_SECONDS": "0.2", "FOREMAN_KEEP_ALIVE_SECONDS": "0.1"}

# What is called with each answer as soon as its headers are there.
Hooks = dict[str, list[Callable[[httpx.Response], None]]]


@pytest.fixture(scope="module")
def early(
    postgres: EmbeddedPostgres, fake_process: FakeOllama, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A Foreman that gives the first sign of life soon."""
    settings = {"FOREMAN_OLLAMA_URL": fake_process.url, "FOREMAN_SWEEP_SECONDS": "0.1", **SIGNS}
    with serving(postgres, tmp_path_factory.mktemp("early"), **settings) as server:
        wait_until(lambda: target_of(server)["state"] == "awake")
        yield server


@pytest.fixture
def hanging(fake_process: FakeOllama, early: Server) -> FakeOllama:
    fake_process.control(**{**asdict(Config()), "faults": HANGS}, reset_stats=True)
    wait_until(lambda: target_of(early)["state"] == "awake")
    return fake_process


@pytest.fixture
def begun(hanging: FakeOllama) -> Iterator[list[httpx.Response]]:
    """The answers that began before they failed: with the first sign of life their target crashes, and when it
    is back it knows nothing but errors."""
    seen: list[httpx.Response] = []
    yield seen
    assert [answer.status_code for answer in seen] == [200]


@pytest.fixture
def hooks(hanging: FakeOllama, begun: list[httpx.Response]) -> Hooks:
    def has_begun(answer: httpx.Response) -> None:
        begun.append(answer)
        hanging.control(faults=FAILS)
        hanging.restart()

    return {"response": [has_begun]}


def the_job(server: Server, answer: httpx.Response) -> dict[str, Any]:
    return job_of(server, answer.headers["x-foreman-job-id"], LONG_WAIT)


def test_ollama_raises(early: Server, hooks: Hooks, begun: list[httpx.Response]) -> None:
    with ollama.Client(host=early.url, event_hooks=hooks) as client, pytest.raises(httpx.RemoteProtocolError):
        client.chat("llama3.2", HELLO)
    job = the_job(early, begun[0])
    assert (job["state"], job["error"]["code"]) == ("failed", "target_error")


def test_ollama_raises_for_embeddings(early: Server, hooks: Hooks, begun: list[httpx.Response]) -> None:
    with ollama.Client(host=early.url, event_hooks=hooks) as client, pytest.raises(httpx.RemoteProtocolError):
        client.embed("nomic-embed-text", "one")
    assert the_job(early, begun[0])["state"] == "failed"


@pytest.fixture
def spoken(early: Server, hooks: Hooks) -> Iterator[openai.OpenAI]:
    with (
        openai.DefaultHttpxClient(event_hooks=hooks) as line,
        openai.OpenAI(base_url=f"{early.url}/v1", api_key="none", max_retries=0, http_client=line) as made,
    ):
        yield made


def test_openai_raises(early: Server, spoken: openai.OpenAI, begun: list[httpx.Response]) -> None:
    with pytest.raises(openai.APIConnectionError):
        spoken.chat.completions.create(model="llama3.2", messages=HELLO)
    assert the_job(early, begun[0])["state"] == "failed"


def test_openai_raises_for_embeddings(
    early: Server, spoken: openai.OpenAI, begun: list[httpx.Response]
) -> None:
    with pytest.raises(openai.APIConnectionError):
        spoken.embeddings.create(model="nomic-embed-text", input="one")
    assert the_job(early, begun[0])["state"] == "failed"


def test_langchain_raises(early: Server, hooks: Hooks) -> None:
    """It streams whatever it is asked; only embeddings are whole answers."""
    model = OllamaEmbeddings(
        model="nomic-embed-text", base_url=early.url, sync_client_kwargs={"event_hooks": hooks}
    )
    with pytest.raises(httpx.RemoteProtocolError):
        model.embed_query("one")
    close(model)


def test_langchain_is_told_by_the_last_frame_of_its_stream(early: Server, hanging: FakeOllama) -> None:
    model = ChatOllama(model="llama3.2", base_url=early.url)
    hanging.control(faults=FAILS)
    with pytest.raises(ollama.ResponseError, match="llama runner process has terminated"):
        model.invoke("Hello, world")
    close(model)


def close(model: ChatOllama | OllamaEmbeddings) -> None:
    """Nothing that langchain offers does it."""
    assert model._client is not None
    assert model._async_client is not None
    model._client.close()  # type: ignore[no-untyped-call]  # the library says no types
    asyncio.run(model._async_client.close())  # type: ignore[no-untyped-call]  # the library says no types


def test_what_was_sent_is_spaces_and_no_last_chunk(
    early: Server, hooks: Hooks, begun: list[httpx.Response]
) -> None:
    heard = b""
    with (
        httpx.Client(base_url=early.url, event_hooks=hooks, timeout=60) as caller,
        caller.stream("POST", "/v1/chat/completions", json=CHAT) as answer,
        pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"),
    ):
        for piece in answer.iter_raw():
            heard += piece
    assert heard.strip(b" ") == b""
    assert begun[0].headers["content-type"] == "application/json"
    # An answer that was broken off is nothing that the server has to complain of.
    assert "Traceback" not in early.log()
    assert "ASGI" not in early.log()


def test_a_cancelled_call_is_broken_off(early: Server, hanging: FakeOllama) -> None:
    with (
        httpx.Client(base_url=early.url, timeout=60) as caller,
        caller.stream("POST", "/api/chat", json=CHAT) as answer,
    ):
        job_id = answer.headers["x-foreman-job-id"]
        assert httpx.post(f"{early.url}/jobs/{job_id}/cancel").is_success
        with pytest.raises(httpx.RemoteProtocolError):
            answer.read()
    assert job_of(early, job_id, LONG_WAIT)["state"] == "cancelled"


def test_a_server_that_closes_breaks_off_what_it_cannot_answer(
    make_server: MakeServer, hanging: FakeOllama
) -> None:
    server = started(make_server, hanging, FOREMAN_SHUTDOWN_GRACE_SECONDS="0.1", **SIGNS)
    with (
        httpx.Client(base_url=server.url, timeout=60) as caller,
        caller.stream("POST", "/api/chat", json=CHAT) as answer,
    ):
        assert answer.status_code == 200
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.RemoteProtocolError):
            answer.read()
    assert server.stop() == 0


@pytest.mark.parametrize("tokens", [False, True])
def test_an_answer_that_comes_late_is_whole(early: Server, hanging: FakeOllama, tokens: bool) -> None:
    """Whether its target says nothing meanwhile, or a word now and then: nobody hears those."""
    hanging.control(faults=[], **({"token_seconds": 0.3} if tokens else {"prefill_seconds": 1.0}))
    with (
        httpx.Client(base_url=early.url, timeout=60) as caller,
        caller.stream("POST", "/api/chat", json=CHAT) as answer,
    ):
        body = answer.read()
    assert body.startswith(b"  "), "more than one sign of life"
    assert answer.json()["message"]["content"] == SAID
    with ollama.Client(host=early.url) as client:
        assert client.chat("llama3.2", HELLO).message.content == SAID
    with openai.OpenAI(base_url=f"{early.url}/v1", api_key="none") as spoken:
        said = spoken.chat.completions.create(model="llama3.2", messages=HELLO)
        assert said.choices[0].message.content == SAID


def test_a_deadline_that_passes_tells_the_last_error(early: Server, hanging: FakeOllama) -> None:
    hanging.control(faults=FAILS)
    headers = {"x-foreman-deadline-seconds": "3", "x-foreman-max-attempts": "9"}
    body = {**CHAT, "stream": True}
    with httpx.Client(base_url=early.url, headers=headers, timeout=60) as caller:
        frames = caller.post("/api/chat", json=body).text.splitlines()
    assert frames[-1] == (
        '{"error":"the job\'s deadline has passed; '
        'last error: llama runner process has terminated: exit status 2"}'
    )
    assert jobs_of(early)[0]["state"] == "expired"


def test_with_0_there_is_never_a_sign_of_life(make_server: MakeServer, hanging: FakeOllama) -> None:
    """So an error has its own status, however late it comes."""
    server = started(make_server, hanging, **{**SIGNS, "FOREMAN_PLAIN_KEEP_ALIVE_SECONDS": "0"})
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(httpx.post, f"{server.url}/api/chat", json=CHAT, timeout=60)
        hanging.wait_for(lambda stats: stats["running"] == 1)
        [job] = jobs_of(server)
        # Who follows it by a stream hears that nothing happens, and again.
        with httpx.stream("GET", f"{server.url}/jobs/{job['job_id']}/stream", timeout=60) as stream:
            assert len([*itertools.islice(stream.iter_lines(), 5)]) == 5
        assert httpx.post(f"{server.url}/jobs/{job['job_id']}/cancel").is_success
        answer = waiting.result(60)
    assert (answer.status_code, answer.json()) == (500, {"error": "the job was cancelled"})
