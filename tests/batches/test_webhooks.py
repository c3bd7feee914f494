"""Who begins a batch is told of its end, as OpenAI tells it."""

import base64
import json

import httpx
import pytest

from tests.batches.conftest import as_file, begun, client_of, line, settled
from tests.conftest import MakeServer, Server, wait_until
from tests.webhooks.conftest import MakeReceiver, make_receiver

__all__ = ["make_receiver"]

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
ALLOWED = {
    "FOREMAN_OUTBOUND_ALLOW": "127.0.0.1",
    "FOREMAN_SECRET_KEY": "a passphrase that is long enough",
}


@pytest.mark.parametrize(("model", "type_"), [("echo", "batch.completed"), (None, "batch.failed")])
def test_the_end_of_a_batch_is_unwrapped_by_the_client(
    make_server: MakeServer, make_receiver: MakeReceiver, model: str | None, type_: str
) -> None:
    receiver = make_receiver()
    server = make_server(**ALLOWED)
    told = {
        "X-Foreman-Webhook-Url": receiver.url,
        "X-Foreman-Webhook-Secret": SECRET,
        "X-Foreman-Webhook-Shape": "openai",
    }
    with client_of(server) as client:
        asked = line("a", model="echo") if model else {"custom_id": "a"}
        batch = begun(client, asked, extra_headers=told)
        [arrival] = wait_until(receiver.arrivals)
        event = client.webhooks.unwrap(arrival.body, arrival.headers, secret=SECRET)
        assert event.type == "batch.completed" or event.type == "batch.failed"  # noqa: PLR1714
        assert (event.type, event.data.id) == (type_, batch.id)
        ended = client.batches.retrieve(event.data.id)
        assert ended.status == type_.removeprefix("batch.")
        assert bool(ended.output_file_id) == (model is not None)


def test_the_operators_receiver_is_told_without_a_word_of_the_caller(
    make_server: MakeServer, make_receiver: MakeReceiver
) -> None:
    receiver = make_receiver()
    server = make_server(**ALLOWED, FOREMAN_OPENAI_WEBHOOK_URL=receiver.url, FOREMAN_WEBHOOK_SHAPE="openai")
    with client_of(server) as client:
        batch = settled(client, begun(client, line("a", model="echo")))
    [arrival] = wait_until(receiver.arrivals)
    assert json.loads(arrival.body)["data"] == {"id": batch.id}


def test_a_receiver_that_may_not_be_called_is_refused_by_the_name_of_its_header(foreman: Server) -> None:
    file = httpx.post(
        f"{foreman.url}/v1/files", data={"purpose": "batch"}, files={"file": as_file(line("a"))}
    ).json()
    wanted = {
        "input_file_id": file["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "1h",
    }
    headers = {"X-Foreman-Webhook-Url": "http://169.254.169.254/"}
    answer = httpx.post(f"{foreman.url}/v1/batches", json=wanted, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "X-Foreman-Webhook-Url"
