"""OpenAI's asynchronous half with its JavaScript client: responses, files and batches on one's own machines."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import Server, free_port
from tests.fakes import FakeOllama
from tests.node.clients import NodeClients, NodeError
from tests.node.offered import needs
from tests.passthrough.conftest import target_of
from tests.patience import wait_until
from tests.serving import serving
from tests.sharing import FolderShare
from tests.webhooks.conftest import ReceiverProcess

SAID = "You said: Hello, world"
SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
RESPONSES = ("/v1/responses", "/v1/responses/{id}")
BATCHES = ("/v1/files", "/v1/files/{id}/content", "/v1/batches", "/v1/batches/{id}")


@pytest.fixture
def telling(
    node: NodeClients,
    share: FolderShare,
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
    fake: FakeOllama,
) -> Server:
    """One whose webhooks may come to this machine, signed."""
    settings = {
        "FOREMAN_OLLAMA_URL": fake.url,
        "FOREMAN_OUTBOUND_ALLOW": "127.0.0.0/8",
        "FOREMAN_WEBHOOK_SECRET": SECRET,
        "FOREMAN_WEBHOOK_SHAPE": "openai",
    }
    server = share.get("telling", lambda: serving(postgres, tmp_path_factory.mktemp("telling"), **settings))
    wait_until(lambda: target_of(server)["state"] == "awake")
    return server


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[ReceiverProcess]:
    running = ReceiverProcess(free_port(), tmp_path / "receiver.jsonl", "ok").start()
    yield running
    running.kill()


def asked(**more: Any) -> dict[str, Any]:
    return {"model": "llama3.2", "input": "Hello, world", **more}


def ended(node: NodeClients, server: Server, resource: str, thing_id: str) -> dict[str, Any]:
    """Asked for until it has ended."""

    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = node.one("openai", server.url, f"{resource}.retrieve", thing_id)
        under_way = {"queued", "in_progress", "validating", "finalizing", "cancelling"}
        return None if found["status"] in under_way else found

    found = wait_until(look, every=0.2)
    assert found is not None
    return found


# -- responses ---------------------------------------------------------------------------------------------


@needs(*RESPONSES)
def test_a_response_comes_whole(node: NodeClients, foreman: Server) -> None:
    answer = node.one("openai", foreman.url, "responses.create", asked())
    assert answer["id"].startswith("resp_")
    assert (answer["object"], answer["status"], answer["error"]) == ("response", "completed", None)
    assert answer["output_text"] == SAID
    assert answer["usage"]["output_tokens"]


@needs(*RESPONSES)
def test_a_response_comes_in_numbered_events(node: NodeClients, foreman: Server) -> None:
    events = node.call("openai", foreman.url, "responses.create", asked(stream=True))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == SAID
    assert len(deltas) > 1


@needs(*RESPONSES)
def test_the_client_gathers_a_response_by_itself(node: NodeClients, foreman: Server) -> None:
    answer = node.one("openai", foreman.url, "responses.stream", asked(), then="finalResponse")
    assert (answer["status"], answer["output_text"]) == ("completed", SAID)


@needs(*RESPONSES)
def test_a_response_calls_a_function_and_goes_on_with_what_it_said(
    node: NodeClients, foreman: Server
) -> None:
    first = node.one(
        "openai", foreman.url, "responses.create", asked(input="use get_weather please", tools=[WEATHER])
    )
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    assert call["name"] == "get_weather"
    assert "city" in json.loads(call["arguments"])
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    second = node.one(
        "openai", foreman.url, "responses.create", asked(input=[output], previous_response_id=first["id"])
    )
    assert (second["status"], second["previous_response_id"]) == ("completed", first["id"])


@needs(*RESPONSES)
def test_a_response_in_the_background_is_asked_for_later(node: NodeClients, foreman: Server) -> None:
    begun = node.one("openai", foreman.url, "responses.create", asked(background=True))
    assert begun["status"] in {"queued", "in_progress"}
    found = ended(node, foreman, "responses", begun["id"])
    assert (found["status"], found["background"], found["output_text"]) == ("completed", True, SAID)


@needs(*RESPONSES)
def test_a_stream_that_was_left_goes_on_behind_its_last_event(node: NodeClients, foreman: Server) -> None:
    create = asked(background=True, stream=True)
    seen = node.call("openai", foreman.url, "responses.create", create, most=4)
    response_id = seen[0]["response"]["id"]
    last = seen[-1]["sequence_number"]
    rest = node.call(
        "openai", foreman.url, "responses.retrieve", response_id, {"stream": True, "starting_after": last}
    )
    events = seen + rest
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == SAID
    assert events[-1]["type"] == "response.completed"


@needs(*RESPONSES, "/v1/responses/{id}/cancel")
def test_a_response_in_the_background_is_cancelled(
    node: NodeClients, foreman: Server, fake: FakeOllama
) -> None:
    fake.control(reply_tokens=100_000, token_seconds=0.05)
    begun = node.one("openai", foreman.url, "responses.create", asked(background=True))
    node.one("openai", foreman.url, "responses.cancel", begun["id"])
    assert ended(node, foreman, "responses", begun["id"])["status"] == "cancelled"


@needs(*RESPONSES, "/v1/responses/{id}/input_items")
def test_what_a_response_was_asked_is_listed_and_it_is_deleted(node: NodeClients, foreman: Server) -> None:
    answer = node.one("openai", foreman.url, "responses.create", asked())
    [item] = node.call("openai", foreman.url, "responses.inputItems.list", answer["id"])
    assert (item["role"], item["content"][0]["text"]) == ("user", "Hello, world")
    node.one("openai", foreman.url, "responses.delete", answer["id"])
    with pytest.raises(NodeError) as gone:
        node.call("openai", foreman.url, "responses.retrieve", answer["id"])
    assert (gone.value.name, gone.value.status) == ("NotFoundError", 404)


@needs(*RESPONSES)
def test_what_no_target_can_do_is_refused_by_its_name(node: NodeClients, foreman: Server) -> None:
    with pytest.raises(NodeError) as refused:
        node.call("openai", foreman.url, "responses.create", asked(tools=[{"type": "web_search"}]))
    assert (refused.value.name, refused.value.status) == ("BadRequestError", 400)
    assert "web_search" in refused.value.message


@needs(*RESPONSES)
def test_an_unknown_model_of_a_response_is_raised(node: NodeClients, foreman: Server) -> None:
    with pytest.raises(NodeError) as refused:
        node.call("openai", foreman.url, "responses.create", asked(model="nobody"))
    assert (refused.value.status, refused.value.code) == (404, "model_not_found")


@needs(*RESPONSES)
def test_the_end_of_a_response_is_told_and_unwrapped(
    node: NodeClients, telling: Server, receiver: ReceiverProcess
) -> None:
    headers = {"X-Foreman-Webhook-Url": receiver.url}
    create = asked(background=True)
    begun = node.one("openai", telling.url, "responses.create", create, defaultHeaders=headers)
    wait_until(receiver.count)
    [arrival] = receiver.arrivals()
    told = node.one("openai", telling.url, "webhooks.unwrap", arrival.body, arrival.headers, SECRET)
    assert (told["type"], told["data"]["id"]) == ("response.completed", begun["id"])
    assert node.one("openai", telling.url, "responses.retrieve", begun["id"])["output_text"] == SAID


# -- files and batches -------------------------------------------------------------------------------------


def line(custom_id: str, content: str) -> str:
    body = {"model": "llama3.2", "messages": [{"role": "user", "content": content}]}
    entry = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(entry) + "\n"


def uploaded(node: NodeClients, server: Server, text: str) -> dict[str, Any]:
    given = {"file": {"$file": {"name": "lines.jsonl", "text": text}}, "purpose": "batch"}
    found: dict[str, Any] = node.one("openai", server.url, "files.create", given)
    return found


def batch_of(file_id: str) -> dict[str, Any]:
    return {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}


@needs(*BATCHES)
def test_a_file_is_uploaded_listed_read_and_deleted(node: NodeClients, foreman: Server) -> None:
    text = line("é", "Hello")
    kept = uploaded(node, foreman, text)
    assert kept["id"].startswith("file-")
    assert (kept["filename"], kept["purpose"], kept["bytes"]) == ("lines.jsonl", "batch", len(text.encode()))
    assert kept["id"] in [each["id"] for each in node.call("openai", foreman.url, "files.list")]
    assert node.one("openai", foreman.url, "files.content", kept["id"]) == text
    assert node.one("openai", foreman.url, "files.delete", kept["id"])["deleted"]
    with pytest.raises(NodeError) as gone:
        node.call("openai", foreman.url, "files.retrieve", kept["id"])
    assert gone.value.status == 404


@needs(*BATCHES)
def test_a_batch_is_run_from_its_file_to_its_files(node: NodeClients, foreman: Server) -> None:
    texts = {f"line-{n}": f"Hello, {n}" for n in range(5)}
    kept = uploaded(node, foreman, "".join(line(name, text) for name, text in texts.items()))
    begun = node.one("openai", foreman.url, "batches.create", batch_of(kept["id"]))
    assert begun["id"].startswith("batch_")
    done = ended(node, foreman, "batches", begun["id"])
    assert done["status"] == "completed"
    assert done["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
    written = node.one("openai", foreman.url, "files.content", done["output_file_id"])
    answers = {each["custom_id"]: each["response"] for each in map(json.loads, written.splitlines())}
    assert {answer["status_code"] for answer in answers.values()} == {200}
    said = {name: each["body"]["choices"][0]["message"]["content"] for name, each in answers.items()}
    assert said == {name: f"You said: {text}" for name, text in texts.items()}


@needs(*BATCHES)
def test_a_batch_with_lines_that_are_wrong_fails_and_names_them(node: NodeClients, foreman: Server) -> None:
    kept = uploaded(node, foreman, line("a", "one") + "no JSON\n" + line("a", "two"))
    begun = node.one("openai", foreman.url, "batches.create", batch_of(kept["id"]))
    failed = ended(node, foreman, "batches", begun["id"])
    assert failed["status"] == "failed"
    assert [error["line"] for error in failed["errors"]["data"]] == [2, 3]


@needs(*BATCHES)
def test_the_end_of_a_batch_is_told_and_unwrapped(
    node: NodeClients, telling: Server, receiver: ReceiverProcess
) -> None:
    kept = uploaded(node, telling, line("a", "Hello"))
    headers = {"X-Foreman-Webhook-Url": receiver.url}
    begun = node.one("openai", telling.url, "batches.create", batch_of(kept["id"]), defaultHeaders=headers)
    wait_until(receiver.count)
    [arrival] = receiver.arrivals()
    told = node.one("openai", telling.url, "webhooks.unwrap", arrival.body, arrival.headers, SECRET)
    assert (told["type"], told["data"]["id"]) == ("batch.completed", begun["id"])
    assert node.one("openai", telling.url, "batches.retrieve", begun["id"])["status"] == "completed"
