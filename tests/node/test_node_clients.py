"""The JavaScript clients of Ollama and OpenAI, against Foreman before a fake Ollama: none may notice the difference."""

import base64
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from app.jobs.signing import sign
from app.store.outbox import DueDelivery
from app.webhooks.openai_event import compose_event
from tests.conftest import Server
from tests.fakes import FakeOllama
from tests.node.clients import NodeClients, NodeError
from tests.rows import made_up

HELLO = [{"role": "user", "content": "Hello, world"}]
SAID = "You said: Hello, world"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SECRETS = ["whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2)]


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "llama3.2", "messages": HELLO, **more}


# -- ollama ------------------------------------------------------------------------------------------------


def test_ollama_chats_whole(node: NodeClients, foreman: Server) -> None:
    answer = node.one("ollama", foreman.url, "chat", chat())
    assert answer["message"] == {"role": "assistant", "content": SAID}
    assert (answer["done"], answer["done_reason"]) == (True, "stop")
    assert answer["eval_count"]


def test_ollama_chats_in_a_stream(node: NodeClients, foreman: Server) -> None:
    frames = node.call("ollama", foreman.url, "chat", chat(stream=True))
    assert "".join(frame["message"]["content"] for frame in frames) == SAID
    assert [frame["done"] for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert len(frames) > 3


def test_ollama_calls_tools(node: NodeClients, foreman: Server) -> None:
    asked = [{"role": "user", "content": "use get_weather please"}]
    answer = node.one("ollama", foreman.url, "chat", chat(messages=asked, tools=[WEATHER]))
    [call] = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert "city" in call["function"]["arguments"]


@pytest.mark.parametrize("stream", [False, True])
def test_ollama_generates(node: NodeClients, foreman: Server, stream: bool) -> None:
    asked = {"model": "llama3.2", "prompt": "Hello, world", "stream": stream}
    frames = node.call("ollama", foreman.url, "generate", asked)
    assert "".join(frame["response"] for frame in frames) == SAID
    assert frames[-1]["done"]


def test_ollama_embeds(node: NodeClients, foreman: Server) -> None:
    asked = {"model": "nomic-embed-text", "input": ["one", "two"]}
    answer = node.one("ollama", foreman.url, "embed", asked)
    assert [len(each) for each in answer["embeddings"]] == [8, 8]


def test_ollama_lists_the_models(node: NodeClients, foreman: Server) -> None:
    answer = node.one("ollama", foreman.url, "list")
    assert "llama3.2:latest" in [each["name"] for each in answer["models"]]


@pytest.mark.parametrize("stream", [False, True])
def test_ollama_raises_a_targets_error_with_its_status_and_words(
    node: NodeClients, foreman: Server, fake: FakeOllama, stream: bool
) -> None:
    fake.control(faults=[{"kind": "error", "status": 400, "message": "bad option", "path": "/api/chat"}])
    with pytest.raises(NodeError) as refused:
        node.call("ollama", foreman.url, "chat", chat(stream=stream))
    assert (refused.value.name, refused.value.status) == ("ResponseError", 400)
    assert refused.value.message == "bad option"


def test_ollama_raises_that_a_model_is_unknown(node: NodeClients, foreman: Server) -> None:
    with pytest.raises(NodeError) as refused:
        node.call("ollama", foreman.url, "chat", chat(model="nobody"))
    assert (refused.value.status, refused.value.message) == (404, "model 'nobody' not found")


# -- openai ------------------------------------------------------------------------------------------------


def test_openai_chats_whole(node: NodeClients, foreman: Server) -> None:
    answer = node.one("openai", foreman.url, "chat.completions.create", chat())
    assert answer["object"] == "chat.completion"
    [choice] = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (SAID, "stop")
    assert answer["usage"]["completion_tokens"]


def test_openai_chats_in_a_stream(node: NodeClients, foreman: Server) -> None:
    asked = chat(stream=True, stream_options={"include_usage": True})
    chunks = node.call("openai", foreman.url, "chat.completions.create", asked)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == SAID
    assert len(deltas) > 3
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["usage"]["completion_tokens"]


def test_openai_gathers_a_stream_by_itself(node: NodeClients, foreman: Server) -> None:
    asked = chat(messages=[{"role": "user", "content": "use get_weather please"}], tools=[WEATHER])
    answer = node.one("openai", foreman.url, "chat.completions.stream", asked, then="finalChatCompletion")
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["get_weather"]


@pytest.mark.parametrize("form", ["float", None])
def test_openai_embeds(node: NodeClients, foreman: Server, form: str | None) -> None:
    """Left to itself, this client asks for base64 and makes numbers of it."""
    asked = {"model": "nomic-embed-text", "input": ["one", "two"]} | (
        {"encoding_format": form} if form else {}
    )
    answer = node.one("openai", foreman.url, "embeddings.create", asked)
    assert [len(each["embedding"]) for each in answer["data"]] == [8, 8]
    assert all(isinstance(number, float) for each in answer["data"] for number in each["embedding"])


def test_openai_walks_through_the_models(node: NodeClients, foreman: Server) -> None:
    models = node.call("openai", foreman.url, "models.list")
    assert "llama3.2:latest" in [model["id"] for model in models]


@pytest.mark.parametrize("stream", [False, True])
def test_openai_raises_a_targets_error_with_its_status_and_words(
    node: NodeClients, foreman: Server, fake: FakeOllama, stream: bool
) -> None:
    fake.control(faults=[{"kind": "error", "status": 400, "message": "bad option", "path": "/api/chat"}])
    with pytest.raises(NodeError) as refused:
        node.call("openai", foreman.url, "chat.completions.create", chat(stream=stream))
    assert (refused.value.name, refused.value.status) == ("BadRequestError", 400)
    assert "bad option" in refused.value.message


def test_openai_raises_that_a_model_is_unknown(node: NodeClients, foreman: Server) -> None:
    with pytest.raises(NodeError) as refused:
        node.call("openai", foreman.url, "chat.completions.create", chat(model="nobody"))
    assert (refused.value.name, refused.value.status) == ("NotFoundError", 404)
    assert refused.value.code == "model_not_found"


# -- webhooks ----------------------------------------------------------------------------------------------


def event(now: int) -> tuple[dict[str, str], str]:
    """The headers and the body of a delivery that tells of a batch."""
    at = datetime.fromtimestamp(now, UTC)
    delivery = made_up(
        DueDelivery, job_id="01JZ7Q0C3N8W9V5T4R2E1D6A7B", seq=4, kind="batch", type="done", at=at
    )
    body = compose_event(delivery, "evt_1", None)
    signature = sign(SECRETS, "message", now, body)
    headers = {"webhook-id": "message", "webhook-timestamp": str(now), "webhook-signature": signature}
    return headers, body.decode()


def test_openai_unwraps_an_event_by_either_of_two_secrets(node: NodeClients) -> None:
    now = int(time.time())
    headers, body = event(now)
    for secret in SECRETS:
        told = node.one("openai", "http://127.0.0.1:1", "webhooks.unwrap", body, headers, secret)
        assert (told["type"], told["created_at"]) == ("batch.completed", now)
        assert told["data"] == {"id": "batch_01JZ7Q0C3N8W9V5T4R2E1D6A7B"}


def test_openai_does_not_trust_an_event_that_was_changed(node: NodeClients) -> None:
    headers, body = event(int(time.time()))
    with pytest.raises(NodeError) as refused:
        node.call("openai", "http://127.0.0.1:1", "webhooks.unwrap", body + " ", headers, SECRETS[0])
    assert refused.value.name == "InvalidWebhookSignatureError"
