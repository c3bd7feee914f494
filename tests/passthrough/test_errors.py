"""How a target's errors come to a caller who waits: at once, and as they were said."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import httpx
import ollama
import openai
import orjson
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from app.executors.llm import MAX_ERROR_BYTES, MAX_MESSAGE
from tests.conftest import MakeServer, Server, wait_until
from tests.fakes import FakeOllama
from tests.fakes.config import Config
from tests.fakes.openai_llama import MODEL, LlamaServer
from tests.passthrough.conftest import job_of, jobs_of, target_of

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Hello, world"}]
SAID = "You said: Hello, world"
BROKE = "llama runner process has terminated: exit status 2"
BUSY: dict[str, Any] = {"kind": "error", "status": 503, "message": "server busy, please try again"}
# A whole picture of one point.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOKEN = "a-token-that-nobody-may-see"
EMBEDS: dict[str, Any] = {"name": "embedding-twin", "capabilities": ["embedding"]}

CHAT = {"model": "llama3.2", "messages": HELLO, "stream": False}
# A call for a whole answer: where, what, and where the target is asked then.
WHOLE: list[tuple[str, dict[str, Any], str]] = [
    ("/api/chat", CHAT, "/api/chat"),
    ("/api/generate", {"model": "llama3.2", "prompt": "Hello", "stream": False}, "/api/generate"),
    ("/api/embed", {"model": "nomic-embed-text", "input": "one"}, "/api/embed"),
    ("/v1/chat/completions", CHAT, "/api/chat"),
    ("/v1/completions", {"model": "llama3.2", "prompt": "Hello"}, "/api/generate"),
    ("/v1/embeddings", {"model": "nomic-embed-text", "input": "one"}, "/api/embed"),
]


@pytest.fixture
def client(foreman: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=foreman.url) as made:
        yield made


@pytest.fixture
def spoken(foreman: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{foreman.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def twin_process(foreman_process: Server) -> Iterator[FakeOllama]:
    with FakeOllama(models=["twin", EMBEDS]) as running:
        body = {"url": running.url, "dialect": "openai", "slots": 4, "token": TOKEN}
        assert httpx.put(f"{foreman_process.url}/targets/twin", json=body).is_success
        wait_until(lambda: target_of(foreman_process, "twin")["state"] == "awake")
        yield running
        httpx.delete(f"{foreman_process.url}/targets/twin")


@pytest.fixture
def twin(twin_process: FakeOllama) -> FakeOllama:
    """Another target, with models of its own, that is asked in OpenAI's dialect."""
    twin_process.control(**{**asdict(Config()), "models": ["twin", EMBEDS]}, reset_stats=True)
    return twin_process


def asked(fake: FakeOllama) -> int:
    """How often it was asked something, loading aside."""
    return len(fake.log("chat", "generate", "embed"))


def the_job(server: Server) -> dict[str, Any]:
    [job] = jobs_of(server)
    return job_of(server, job["job_id"])


def post(server: Server, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{server.url}{path}", json=body, headers=named, timeout=60)


# -- what the target said ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 500, 599])
@pytest.mark.parametrize(("path", "body", "there"), WHOLE)
def test_an_error_comes_at_once_with_the_targets_status_and_words(
    foreman: Server, fake: FakeOllama, path: str, body: dict[str, Any], there: str, status: int
) -> None:
    fake.control(faults=[{"kind": "error", "path": there, "status": status, "message": "no such trick"}])
    answer = post(foreman, path, body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["message"] if path.startswith("/v1") else error) == "no such trick"
    assert asked(fake) == 1
    job = the_job(foreman)
    assert (job["state"], job["reason"], job["attempt"], job["deferrals"]) == ("failed", "fail", 1, 0)
    assert answer.headers["x-foreman-job-id"] == job["job_id"]


def test_ollama_raises_what_the_target_said(client: ollama.Client, fake: FakeOllama) -> None:
    fake.control(faults=[{"kind": "error", "path": path} for path in ("/api/chat", "/api/embed")])
    for stream in (False, True):
        with pytest.raises(ollama.ResponseError) as refused:
            [*client.chat("llama3.2", HELLO, stream=stream)]
        assert (refused.value.status_code, refused.value.error) == (500, BROKE)
    with pytest.raises(ollama.ResponseError) as refused:
        client.embed("nomic-embed-text", "one")
    assert (refused.value.status_code, refused.value.error) == (500, BROKE)
    assert asked(fake) == 3


def test_openai_raises_what_a_target_of_its_own_dialect_said_with_every_field(
    spoken: openai.OpenAI, twin: FakeOllama
) -> None:
    fields = {"type": "exceed_context_size_error", "code": 400, "n_ctx": 4096, "n_prompt_tokens": 9000}
    there = ["/v1/chat/completions", "/v1/embeddings"]
    twin.control(faults=[{"kind": "error", "path": each, "status": 400, "fields": fields} for each in there])
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            [*spoken.chat.completions.create(model="twin", messages=HELLO, stream=stream)]
        assert refused.value.body == {"message": BROKE, "param": None, **fields}
    with pytest.raises(openai.BadRequestError) as refused:
        spoken.embeddings.create(model="embedding-twin", input="one")
    assert refused.value.body == {"message": BROKE, "param": None, **fields}


def test_what_another_dialect_says_comes_in_the_words_of_the_callers(
    client: ollama.Client, spoken: openai.OpenAI, fake: FakeOllama, twin: FakeOllama
) -> None:
    twin.control(faults=[{"kind": "error", "path": "/v1/chat/completions", "status": 500}])
    fake.control(faults=[{"kind": "error", "path": "/api/chat", "status": 500}])
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat("twin", HELLO)
    assert (refused.value.status_code, refused.value.error) == (500, BROKE)
    with pytest.raises(openai.InternalServerError) as failed:
        spoken.chat.completions.create(model="llama3.2", messages=HELLO)
    error = {"message": BROKE, "type": "api_error", "param": None, "code": "target_error"}
    assert failed.value.body == error


def test_a_real_llama_cpp_refuses_in_its_own_words_and_fields(make_server: MakeServer) -> None:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [picture]}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 20_000}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}),
        ("/v1/chat/completions", {"messages": HELLO, "response_format": {"type": "never heard of"}}),
        ("/v1/embeddings", {"input": "word " * 20_000}),
        ("/v1/embeddings", {"input": []}),
    ]
    with LlamaServer() as llama:
        server = make_server()
        httpx.put(f"{server.url}/targets/llama", json={"url": f"{llama.url}/v1", "dialect": "openai"})
        wait_until(lambda: target_of(server, "llama")["state"] == "awake", 20)
        for number, (path, asks) in enumerate(bodies, 1):
            body = {"model": MODEL, **asks}
            direct = httpx.post(f"{llama.url}{path}", json=body, timeout=60)
            assert direct.status_code >= 400, direct.text
            through = post(server, path, body)
            assert (through.status_code, through.json()) == (direct.status_code, direct.json())
            assert len(jobs_of(server)) == number
        assert "n_ctx" in post(server, *bodies[1][:1], {"model": MODEL, **bodies[1][1]}).json()["error"]
        assert {(job["state"], job["attempt"]) for job in jobs_of(server)} == {("failed", 1)}
        assert target_of(server, "llama")["breaker"] == "closed"


def test_the_targets_document_is_for_the_caller_and_not_for_lists_and_logs(
    foreman: Server, twin: FakeOllama
) -> None:
    fields = {"note": "mind the gap " * 1000}
    twin.control(faults=[{"kind": "error", "path": "/v1/chat/completions", "status": 500, "fields": fields}])
    refused = post(foreman, "/v1/chat/completions", {**CHAT, "model": "twin"})
    assert refused.json()["error"]["note"] == fields["note"]
    job = the_job(foreman)
    kept = {"code": "target_error", "message": BROKE, "retryable": True, "status": 500}
    assert job["error"] == jobs_of(foreman)[0]["error"] == kept
    events = httpx.get(f"{foreman.url}/jobs/{job['job_id']}/events").json()["events"]
    assert events[-1]["data"]["error"] == kept
    # Who attaches later is told by the same frame.
    stream = httpx.get(f"{foreman.url}/jobs/{job['job_id']}/stream", params={"dialect": "openai"})
    assert "mind the gap" in stream.text


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"note": f"you sent {TOKEN}", TOKEN: 1}, True),
        ({"odd": "\0"}, False),
        ({"odd": "\ud800"}, False),
        ({"large": "x" * MAX_ERROR_BYTES}, False),
        ({"message": "y" * 3 * MAX_MESSAGE}, True),
        ({"message": None, "deep": {"er": [{"still": [1, 2.50, -0.0, 1e300, None, True]}]}}, True),
    ],
)
def test_an_odd_error_is_an_error_all_the_same_and_never_shows_the_token(
    foreman: Server, twin: FakeOllama, fields: dict[str, Any], kept: bool
) -> None:
    twin.control(faults=[{"kind": "error", "path": "/v1/chat/completions", "status": 500, "fields": fields}])
    answer = post(foreman, "/v1/chat/completions", {**CHAT, "model": "twin"})
    assert answer.status_code == 500
    assert TOKEN not in answer.text
    error = answer.json()["error"]
    assert (
        set(error) > {"message", "type", "param", "code"} or len(error.get("message") or "") > MAX_MESSAGE
    ) is kept
    assert the_job(foreman)["state"] == "failed"


def test_a_status_that_nobody_knows_is_a_bad_gateway(foreman: Server, fake: FakeOllama) -> None:
    for status in (302, 600, 999):
        fake.control(faults=[{"kind": "error", "path": "/api/chat", "status": status}])
        assert post(foreman, "/api/chat", CHAT).status_code == 502


# -- what is tried again -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "passing",
    [
        {**BUSY, "times": 2},
        {**BUSY, "status": 429, "times": 1, "retry_after": "1"},
        {**BUSY, "times": 1, "retry_after": "0"},
        {"kind": "truncate", "times": 2},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_soon_passes_is_tried_again_behind_the_callers_back(
    client: ollama.Client, foreman: Server, fake: FakeOllama, passing: dict[str, Any], stream: bool
) -> None:
    fake.control(faults=[{**passing, "path": "/api/chat"}])
    frames = [*client.chat("llama3.2", HELLO, stream=True)] if stream else [client.chat("llama3.2", HELLO)]
    assert "".join(frame.message.content or "" for frame in frames) == SAID
    assert asked(fake) == 1 + passing["times"]
    job = the_job(foreman)
    assert (job["state"], job["attempt"], job["deferrals"], job["error"]) == ("done", 1, 0, None)
    logs = httpx.get(f"{foreman.url}/jobs/{job['job_id']}/events", params={"types": "log,working"}).json()
    assert [each["type"] for each in logs["events"]].count("log") == passing["times"]
    assert [each["type"] for each in logs["events"]].count("working") == 1


@pytest.mark.parametrize(("path", "body", "there"), WHOLE)
def test_a_target_that_stays_busy_is_asked_three_times_and_then_heard(
    foreman: Server, fake: FakeOllama, path: str, body: dict[str, Any], there: str
) -> None:
    fake.control(faults=[{**BUSY, "path": there}])
    answer = post(foreman, path, body)
    assert answer.status_code == 503
    assert BUSY["message"] in answer.text
    assert answer.headers["retry-after"] == "1"
    assert asked(fake) == 3
    assert the_job(foreman)["state"] == "failed"


@pytest.mark.parametrize(("path", "body", "there"), WHOLE)
def test_a_target_that_hangs_up_on_a_call_is_asked_three_times_by_kept_connections_too(
    foreman: Server, fake: FakeOllama, path: str, body: dict[str, Any], there: str
) -> None:
    assert post(foreman, path, body).status_code == 200
    fake.control(reset_stats=True, faults=[{"kind": "cut", "path": there}])
    assert post(foreman, path, body).status_code == 502
    assert asked(fake) == 3
    fake.control(faults=[])
    assert post(foreman, path, body).status_code == 200


def test_openai_is_told_of_a_busy_target_by_its_own_error(spoken: openai.OpenAI, fake: FakeOllama) -> None:
    fake.control(faults=[{**BUSY, "path": "/api/chat", "times": 2}])
    assert spoken.chat.completions.create(model="llama3.2", messages=HELLO).choices[0].message.content == SAID
    fake.control(faults=[{**BUSY, "path": "/api/chat", "status": 429}])
    with pytest.raises(openai.RateLimitError, match="server busy"):
        spoken.chat.completions.create(model="llama3.2", messages=HELLO)


@pytest.mark.parametrize("status", [429, 503])
def test_a_target_that_wants_to_be_left_alone_for_long_is_not_asked_again(
    foreman: Server, fake: FakeOllama, status: int
) -> None:
    fake.control(faults=[{**BUSY, "path": "/api/chat", "status": status, "retry_after": "3600"}])
    answer = post(foreman, "/api/chat", CHAT)
    assert (answer.status_code, answer.headers["retry-after"]) == (status, "3600")
    assert asked(fake) == 1


def test_a_target_that_crashes_before_its_first_word_is_tried_again(
    client: ollama.Client, foreman: Server, fake: FakeOllama
) -> None:
    fake.control(faults=[{"kind": "cut", "path": "/api/chat", "times": 2}])
    assert client.chat("llama3.2", HELLO).message.content == SAID
    assert asked(fake) == 3
    assert the_job(foreman)["attempt"] == 1


@pytest.mark.parametrize("kind", ["cut", "truncate"])
def test_a_target_that_breaks_off_whenever_it_is_asked_is_a_bad_gateway(
    foreman: Server, fake: FakeOllama, kind: str
) -> None:
    fake.control(faults=[{"kind": kind, "path": "/api/chat"}])
    answer = post(foreman, "/api/chat", CHAT)
    assert answer.status_code == 502
    assert asked(fake) == 3
    assert the_job(foreman)["deferrals"] == 0


@pytest.mark.parametrize("kind", ["cut", "truncate", "error", "garbage"])
def test_after_the_first_word_nothing_is_begun_anew(
    client: ollama.Client, foreman: Server, fake: FakeOllama, kind: str
) -> None:
    fake.control(faults=[{"kind": kind, "path": "/api/chat", "after": 2}], token_seconds=0.02)
    heard = []
    with pytest.raises(ollama.ResponseError):
        heard += list(client.chat("llama3.2", HELLO, stream=True))
    assert asked(fake) == 1
    assert the_job(foreman)["state"] == "failed"


def test_a_target_that_went_away_in_the_middle_is_waited_for(foreman: Server, fake: FakeOllama) -> None:
    """It crashed before its first word, and is not back in two seconds: unreachable is no error."""
    fake.control(prefill_seconds=60)

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(post, foreman, "/api/chat", CHAT)
        fake.wait_for(lambda stats: stats["running"] == 1)
        fake.control(prefill_seconds=0)
        fake.stop()
        wait_until(lambda: the_job(foreman)["reason"] == "target_asleep")
        fake.start()
        assert waiting.result(60).json()["message"]["content"] == SAID


# -- who wants more ------------------------------------------------------------------------------------------


@pytest.fixture
def patient(foreman: Server) -> dict[str, str]:
    """The headers of somebody who waits in a queue with a short backoff."""
    assert httpx.put(f"{foreman.url}/queues/patient", json={"backoff_seconds": 0.05}).is_success
    return {"x-foreman-queue": "patient"}


@pytest.mark.parametrize("failing", [{"kind": "error"}, BUSY, {"kind": "truncate"}, {"kind": "garbage"}])
def test_whoever_wants_more_attempts_gets_them_with_the_jobs_backoff(
    foreman: Server, fake: FakeOllama, patient: dict[str, str], failing: dict[str, Any]
) -> None:
    headers = {**patient, "x-foreman-max-attempts": "5"}
    fake.control(faults=[{**failing, "path": "/api/chat", "times": 4}])
    with ollama.Client(host=foreman.url, headers=headers) as client:
        assert client.chat("llama3.2", HELLO).message.content == SAID
    assert asked(fake) == 5
    job = the_job(foreman)
    assert (job["attempt"], job["max_attempts"], job["deferrals"]) == (5, 5, 0)


@pytest.mark.parametrize(("attempts", "status"), [("1", 500), ("1", 503), ("2", 500), ("2", 503)])
def test_no_more_attempts_are_made_than_wanted(
    foreman: Server, fake: FakeOllama, patient: dict[str, str], attempts: str, status: int
) -> None:
    fake.control(faults=[{"kind": "error", "path": "/api/chat", "status": status}])
    answer = post(foreman, "/api/chat", CHAT, **patient, x_foreman_max_attempts=attempts)
    assert (answer.status_code, answer.json()) == (status, {"error": BROKE})
    assert asked(fake) == int(attempts)
    assert the_job(foreman)["reason"] == "attempts_exhausted"


def test_a_queues_own_backoff_makes_no_caller_wait(
    foreman: Server, fake: FakeOllama, patient: dict[str, str]
) -> None:
    fake.control(faults=[{"kind": "error", "path": "/api/chat"}])
    assert post(foreman, "/api/chat", CHAT, **patient).status_code == 500
    assert asked(fake) == 1


# -- bad calls and good ones ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "told"), [("garbage", "target_garbled: no JSON"), ("truncate", "answer_cut_short")]
)
def test_answers_that_make_no_sense_do_not_delay_the_good_one_behind_them(
    foreman: Server, fake: FakeOllama, fault: str, told: str
) -> None:
    fake.control(faults=[{"kind": fault, "after": 1, "path": "/api/chat"}])
    with httpx.Client(base_url=foreman.url, timeout=60) as caller:
        for _ in range(6):
            ending = caller.post("/api/chat", json={**CHAT, "stream": True}).text.splitlines()[-1]
            assert "error" in orjson.loads(ending)
        target = target_of(foreman)
        assert (target["breaker"], target["state"], target["warning"]) == ("closed", "awake", told)
        fake.control(faults=[])
        assert caller.post("/api/chat", json=CHAT).json()["message"]["content"] == SAID
    assert target_of(foreman)["warning"] is None


def test_a_hundred_bad_calls_do_not_delay_the_good_one_behind_them(foreman: Server, fake: FakeOllama) -> None:
    fake.control(
        faults=[
            {"kind": "error", "path": "/api/chat", "status": 500, "times": 100},
            {"kind": "error", "path": "/api/generate", "status": 400, "times": 100},
        ]
    )
    with httpx.Client(base_url=foreman.url, timeout=60) as caller:
        for _ in range(100):
            assert caller.post("/api/generate", json={"model": "llama3.2", "prompt": "x"}).status_code == 400
        for _ in range(100):
            assert caller.post("/api/chat", json=CHAT).status_code == 500
        target = target_of(foreman)
        assert (target["breaker"], target["warning"]) == ("closed", "target_error: HTTP 500")
        assert caller.post("/api/chat", json=CHAT).json()["message"]["content"] == SAID
    assert (target_of(foreman)["breaker"], target_of(foreman)["warning"]) == ("closed", None)
