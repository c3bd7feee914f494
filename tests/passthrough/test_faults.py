"""Targets that answer badly, callers that ask badly, and the paths that are not offered."""

from typing import Any

import httpx
import ollama
import openai
import orjson
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from tests.api.wire import say
from tests.conftest import MakeServer, Server, wait_until
from tests.fakes import FakeOllama
from tests.fakes.openai_llama import MODEL, LlamaServer
from tests.passthrough.conftest import job_of, jobs_of, target_of

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Hello, world"}]
SAID = "You said: Hello, world"


def submit(server: Server, **more: object) -> str:
    body = {"model": "llama3.2", "messages": HELLO, "backoff_seconds": 0.05, **more}
    return str(httpx.post(f"{server.url}/jobs", json=body).json()["job_id"])


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"kind": "garbage"}, "target_garbled"),
        ({"kind": "garbage", "after": 2}, "target_garbled"),
        ({"kind": "error", "status": 500}, "target_error"),
        ({"kind": "error", "after": 2}, "target_error"),
        ({"kind": "cut", "after": 2}, "answer_cut_short"),
        ({"kind": "truncate", "after": 2}, "answer_cut_short"),
    ],
)
def test_a_target_that_answers_badly_is_tried_again_and_then_given_up_on(
    foreman: Server, fake: FakeOllama, fault: dict[str, Any], code: str
) -> None:
    fault = {**fault, "path": "/api/chat"}
    fake.control(faults=[fault])
    job = job_of(foreman, submit(foreman, max_attempts=2), 30)
    assert (job["state"], job["attempt"], job["error"]["code"]) == ("failed", 2, code)
    if code == "target_garbled":
        assert "502 Bad Gateway" in job["error"]["message"]
    fake.control(faults=[{**fault, "times": 1}])
    job = job_of(foreman, submit(foreman), 30)
    assert (job["state"], job["attempt"]) == ("done", 2)


def test_a_busy_target_costs_no_attempt(foreman: Server, fake: FakeOllama) -> None:
    fake.control(faults=[{"kind": "busy", "path": "/api/chat", "times": 1}])
    job = job_of(foreman, submit(foreman), 30)
    assert (job["state"], job["attempt"], job["deferrals"]) == ("done", 1, 1)


def test_a_refusal_is_final(foreman: Server, fake: FakeOllama) -> None:
    fake.control(faults=[{"kind": "error", "status": 400, "message": "bad option", "path": "/api/chat"}])
    job = job_of(foreman, submit(foreman), 30)
    assert (job["state"], job["attempt"]) == ("failed", 1)
    assert job["error"] == {
        "code": "target_rejected",
        "message": "bad option",
        "retryable": False,
        "status": 400,
    }


def test_the_breaker_opens_after_failures_in_a_row_and_closes_again(
    foreman: Server, fake: FakeOllama
) -> None:
    fake.control(faults=[{"kind": "cut", "after": 1, "path": "/api/chat"}])
    for _ in range(5):
        job_of(foreman, submit(foreman, max_attempts=1), 30)
    assert target_of(foreman)["breaker"] == "open"
    fake.control(faults=[])
    job = job_of(foreman, submit(foreman, max_attempts=1), 30)
    assert job["state"] == "done"
    assert target_of(foreman)["breaker"] == "closed"


@pytest.mark.parametrize(
    "path", ["/api/chat", "/api/generate", "/api/embed", "/v1/chat/completions", "/v1/embeddings"]
)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"messages": []}',
        b'{"model": 5}',
        b"\xff",
        b"[" * 1000,
        b'{"model": NaN}',
    ],
)
def test_a_malformed_body_gets_the_surfaces_400(foreman: Server, path: str, body: bytes) -> None:
    refused = httpx.post(f"{foreman.url}{path}", content=body)
    assert refused.status_code == 400
    error = refused.json()["error"]
    if path.startswith("/v1"):
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
    else:
        assert isinstance(error, str)
    assert jobs_of(foreman) == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": "x"}, "messages"),
        ({"messages": [5]}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "hi"}], "stream": "yes"}, "stream"),
    ],
)
def test_what_no_target_of_another_dialect_could_make_sense_of_is_a_400_that_names_it(
    foreman: Server, fields: dict[str, Any], param: str
) -> None:
    """One of the same dialect would be asked: it may know better."""
    refused = httpx.post(f"{foreman.url}/v1/chat/completions", json={"model": "llama3.2", **fields})
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
    assert param in error["message"]


def test_a_body_that_is_too_large_is_refused_in_the_surfaces_words(foreman: Server) -> None:
    refused = httpx.post(f"{foreman.url}/v1/chat/completions", content=b" " * (17 * 1024 * 1024))
    assert refused.status_code == 413
    assert refused.json()["error"]["code"] == "payload_too_large"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", "high"),
        ("priority", "101"),
        ("queue", "a b"),
        ("deadline-seconds", "-1"),
        ("max-attempts", "0"),
        ("max-attempts", "101"),
        ("max-attempts", "-1"),
        ("max-attempts", "2.5"),
        ("max-attempts", "many"),
        ("max-attempts", ""),
        ("on-disconnect", "maybe"),
    ],
)
def test_a_wrong_header_is_named(foreman: Server, name: str, value: str) -> None:
    body = {"model": "llama3.2", "messages": HELLO}
    refused = httpx.post(f"{foreman.url}/api/chat", json=body, headers={f"x-foreman-{name}": value})
    assert refused.status_code == 400
    assert f"x-foreman-{name}" in refused.json()["error"].lower()


def test_the_headers_reach_the_job(foreman: Server) -> None:
    headers = {"x-foreman-priority": "7", "x-foreman-queue": "mine", "x-foreman-deadline-seconds": "60"}
    answer = httpx.post(
        f"{foreman.url}/api/chat", json={"model": "llama3.2", "messages": HELLO}, headers=headers
    )
    job = job_of(foreman, answer.headers["x-foreman-job-id"])
    assert (job["priority"], job["queue"], job["deadline"] is not None) == (7, "mine", True)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/pull"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/create"),
        ("GET", "/api/blobs/x"),
    ],
)
def test_nothing_else_of_ollama_is_reachable(foreman: Server, method: str, path: str) -> None:
    answer = httpx.request(method, f"{foreman.url}{path}", json={"model": "llama3.2"})
    assert answer.status_code == 404
    assert isinstance(answer.json()["error"], str)


def test_nothing_else_of_openai_is_reachable(foreman: Server) -> None:
    for method, path in (("POST", "/v1/fine_tuning/jobs"), ("GET", "/v1/assistants"), ("GET", "/v1/a%0Ab")):
        answer = httpx.request(method, f"{foreman.url}{path}")
        assert answer.status_code == 404, path
        assert answer.json()["error"]["code"] == "unknown_url"


# What a base URL leads to that ends in a slash, or in the middle.
@pytest.mark.parametrize(
    "path",
    [
        "/api",
        "/api/",
        "//api/chat",
        "///api/chat",
        "/api//chat",
        "/api/chat/",
        "/api/a%0Ab",
        "/v1",
        "/v1/",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/chat/completions/",
        "/v1/v1/chat/completions",
    ],
)
def test_a_misspelt_path_is_refused_in_the_shape_of_its_surface(foreman: Server, path: str) -> None:
    for method in ("GET", "POST", "DELETE", "PROPFIND"):
        answer = httpx.request(method, f"{foreman.url}{path}")
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")
        check_shape(path, answer)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/chat"),
        ("DELETE", "/api/generate"),
        ("TRACE", "/api/embed"),
        ("OPTIONS", "/api/chat"),
        ("POST", "/api/tags"),
        ("PUT", "/api/ps"),
        ("GET", "/v1/chat/completions"),
        ("POST", "/v1/models"),
        ("DELETE", "/v1/models/llama3.2"),
    ],
)
def test_a_wrong_method_is_refused_in_the_shape_of_its_surface(
    foreman: Server, method: str, path: str
) -> None:
    answer = httpx.request(method, f"{foreman.url}{path}")
    assert answer.status_code == 404
    check_shape(path, answer)


@pytest.mark.parametrize("path", ["/api", "/api/chat", "//api/chat", "/v1", "/v1/models", "//v1/models"])
def test_foreign_pages_names_and_broken_requests_are_refused_in_the_shape_of_the_surface(
    foreman: Server, path: str
) -> None:
    for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
        answer = httpx.post(f"{foreman.url}{path}", headers=headers)
        assert answer.status_code == 403
        check_shape(path, answer)
    # By the protocol itself, before there is a request.
    head = f"POST {path}?x=y HTTP/1.1\r\nhost: localhost\r\n"
    for status, rest in (
        (400, "content-length: x\r\n\r\n"),
        (400, "transfer-encoding: chunked\r\n\r\nno length\r\n"),
        (400, "host: localhost\r\n\r\n"),
    ):
        broken = say(foreman, (head + rest).encode(), keep_open=True)
        assert broken.statuses == [status]
        assert b"content-type: application/json" in broken.raw
        check_shape(path, httpx.Response(status, content=broken.body))


def check_shape(path: str, answer: httpx.Response) -> None:
    [error] = answer.json().values()
    if path.strip("/").startswith("api"):
        assert isinstance(error, str)
    else:
        assert set(error) == {"message", "type", "param", "code"}


def test_the_root_answers_as_ollama_does_and_leads_browsers_to_the_dashboard(foreman: Server) -> None:
    assert httpx.get(foreman.url).text == "Ollama is running"
    assert httpx.head(foreman.url).status_code == 200
    browser = httpx.get(foreman.url, headers={"accept": "text/html,application/xhtml+xml"})
    assert (browser.status_code, browser.headers["location"]) == (307, "/ui")
    assert httpx.get(f"{foreman.url}/api/version").json() == {"version": "0.33.0"}


def test_the_built_in_echo_is_served_on_both_surfaces_while_there_is_no_target(server: Server) -> None:
    with ollama.Client(host=server.url) as client:
        frames = list(client.chat("echo", [{"role": "user", "content": "one two three"}], stream=True))
        assert [frame.message.content for frame in frames] == ["one ", "two ", "three", ""]
        assert frames[-1].done
        assert client.generate("echo", "one two").response == "one two"
        assert "built into Foreman" in (client.list().models[0].details.family or "")
        with pytest.raises(ollama.ResponseError, match="model 'llama3' not found"):
            client.chat("llama3", HELLO)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as spoken:
        answer = spoken.chat.completions.create(model="echo", messages=HELLO)
        assert answer.choices[0].message.content == "Hello, world"
        chunks = list(spoken.chat.completions.create(model="echo", messages=HELLO, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello, world"
        assert len(spoken.embeddings.create(model="echo", input="x").data) == 1


def test_browser_clients_need_to_be_allowed(make_server: MakeServer, fake: FakeOllama) -> None:
    open_to = make_server(FOREMAN_CORS_ORIGINS="https://chat.example")
    headers = {"origin": "https://chat.example", "access-control-request-method": "POST"}
    allowed = httpx.options(f"{open_to.url}/api/chat", headers=headers)
    assert allowed.headers["access-control-allow-origin"] == "https://chat.example"
    other = httpx.options(f"{open_to.url}/api/chat", headers={**headers, "origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


def test_a_real_llama_cpp_serves_clients_of_both_dialects(make_server: MakeServer) -> None:
    with LlamaServer() as llama:
        server = make_server()
        httpx.put(
            f"{server.url}/targets/llama", json={"url": f"{llama.url}/v1", "dialect": "openai", "slots": 2}
        )
        wait_until(lambda: target_of(server, "llama")["state"] == "awake", 20)
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=60) as spoken:
            chunks = list(
                spoken.chat.completions.create(
                    model=MODEL,
                    messages=HELLO,
                    stream=True,
                    max_tokens=12,
                    stream_options={"include_usage": True},
                )
            )
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens == 12
            assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
            short = spoken.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5)
            assert short.usage is not None
            assert short.usage.completion_tokens == 5
            assert MODEL in {model.id for model in spoken.models.list()}
        with ollama.Client(host=server.url, timeout=60) as client:
            frames = list(client.chat(MODEL, HELLO, stream=True, options={"num_predict": 8}))
            assert (frames[-1].done_reason, frames[-1].eval_count) == ("length", 8)
            assert client.generate(MODEL, "Once", options={"num_predict": 4}).eval_count == 4
            assert client.embed(MODEL, ["one", "two"]).embeddings
            assert MODEL in {model.model for model in client.list().models}
            shown = client.show(MODEL)
            assert shown.modelinfo is not None
            architecture = shown.modelinfo["general.architecture"]
            # What the server takes; trained it was for more.
            assert shown.modelinfo[f"{architecture}.context_length"] == 2048
            assert shown.modelinfo["general.parameter_count"] == 121_920
            assert shown.details is not None
            assert shown.details.parameter_size == "122K"
            assert shown.capabilities == ["completion"]
        assert {job["target"] for job in jobs_of(server)} == {"llama"}
        assert {job["state"] for job in jobs_of(server)} == {"done"}


def test_a_caller_of_one_dialect_gets_the_same_from_a_target_of_the_other(
    foreman: Server, fake: FakeOllama
) -> None:
    httpx.put(f"{foreman.url}/targets/as-openai", json={"url": fake.url, "dialect": "openai", "slots": 1})
    try:
        wait_until(lambda: target_of(foreman, "as-openai")["state"] == "awake")
        job = job_of(foreman, submit(foreman, target="as-openai"), 20)
        assert job["target"] == "as-openai"
        assert job["result"]["message"]["content"] == SAID
        assert orjson.loads(orjson.dumps(job["result"]))["eval_count"] > 0
    finally:
        httpx.delete(f"{foreman.url}/targets/as-openai")
