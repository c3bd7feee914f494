"""Anthropic's JavaScript client, against Foreman before a fake Ollama."""

from typing import Any

import pytest

from tests.conftest import Server
from tests.fakes import FakeOllama
from tests.node.clients import NodeClients, NodeError
from tests.node.offered import needs

pytestmark = needs("/v1/messages")

SAID = "You said: Hello, world"
WEATHER = {
    "name": "get_weather",
    "description": "The weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def asked(content: Any = "Hello, world", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": "llama3.2", "max_tokens": 1000, "messages": messages, **more}


def test_a_message_comes_whole(node: NodeClients, foreman: Server) -> None:
    answer = node.one("anthropic", foreman.url, "messages.create", asked())
    assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "end_turn")
    assert [(block["type"], block["text"]) for block in answer["content"]] == [("text", SAID)]
    assert answer["usage"]["output_tokens"]


def test_a_message_comes_in_events(node: NodeClients, foreman: Server) -> None:
    events = node.call("anthropic", foreman.url, "messages.create", asked(stream=True))
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta["text"] for delta in deltas) == SAID
    assert len(deltas) > 1
    [end] = [event for event in events if event["type"] == "message_delta"]
    assert end["delta"]["stop_reason"] == "end_turn"


def test_the_client_gathers_a_message_by_itself(node: NodeClients, foreman: Server) -> None:
    answer = node.one("anthropic", foreman.url, "messages.stream", asked(), then="finalMessage")
    assert [block["text"] for block in answer["content"]] == [SAID]


def test_a_system_of_blocks_and_a_text_of_blocks_are_taken(node: NodeClients, foreman: Server) -> None:
    system = [{"type": "text", "text": "Be brief."}]
    blocks = [{"type": "text", "text": "Hello, world"}]
    answer = node.one("anthropic", foreman.url, "messages.create", asked(blocks, system=system))
    assert answer["content"][0]["text"] == SAID


@pytest.mark.parametrize("method", ["create", "stream"])
def test_a_tool_is_used(node: NodeClients, foreman: Server, method: str) -> None:
    body = asked("use get_weather please", tools=[WEATHER])
    then = "finalMessage" if method == "stream" else None
    answer = node.one("anthropic", foreman.url, f"messages.{method}", body, then=then)
    assert answer["stop_reason"] == "tool_use"
    [used] = [block for block in answer["content"] if block["type"] == "tool_use"]
    assert used["name"] == "get_weather"
    assert "city" in used["input"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_targets_error_is_raised_with_its_status_and_words(
    node: NodeClients, foreman: Server, fake: FakeOllama, stream: bool
) -> None:
    fake.control(faults=[{"kind": "error", "status": 400, "message": "bad option", "path": "/api/chat"}])
    with pytest.raises(NodeError) as refused:
        node.call("anthropic", foreman.url, "messages.create", asked(stream=stream))
    assert (refused.value.name, refused.value.status) == ("BadRequestError", 400)
    assert refused.value.body["type"] == "error"
    assert "bad option" in refused.value.body["error"]["message"]


def test_an_unknown_model_is_raised_in_anthropics_shape(node: NodeClients, foreman: Server) -> None:
    with pytest.raises(NodeError) as refused:
        node.call("anthropic", foreman.url, "messages.create", asked(model="nobody"))
    assert (refused.value.name, refused.value.status) == ("NotFoundError", 404)
    assert refused.value.body["error"]["type"] == "not_found_error"


@needs("/v1/messages/count_tokens")
def test_where_no_target_can_count_tokens_that_is_said(node: NodeClients, foreman: Server) -> None:
    body = asked()
    del body["max_tokens"]
    with pytest.raises(NodeError) as refused:
        node.call("anthropic", foreman.url, "messages.countTokens", body)
    assert refused.value.body["type"] == "error"
    assert "count" in refused.value.body["error"]["message"]
