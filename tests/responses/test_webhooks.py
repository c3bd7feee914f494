"""Who asks for a response in the background is told of its end, as OpenAI tells it."""

import base64

import pytest

from tests.conftest import MakeServer, wait_until
from tests.responses.conftest import client_of
from tests.webhooks.conftest import MakeReceiver, make_receiver

__all__ = ["make_receiver"]

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_of_a_response_is_unwrapped_by_the_client(
    make_server: MakeServer, make_receiver: MakeReceiver, stream: bool
) -> None:
    receiver = make_receiver()
    server = make_server(
        FOREMAN_OUTBOUND_ALLOW="127.0.0.1", FOREMAN_SECRET_KEY="a passphrase that is long enough"
    )
    told = {
        "X-Foreman-Webhook-Url": receiver.url,
        "X-Foreman-Webhook-Secret": SECRET,
        "X-Foreman-Webhook-Shape": "openai",
    }
    with client_of(server) as client:
        if stream:
            *_, last = client.responses.create(
                model="echo", input="hi", background=True, stream=True, extra_headers=told
            )
            assert last.type == "response.completed"
            response = last.response
        else:
            response = client.responses.create(model="echo", input="hi", background=True, extra_headers=told)
        [arrival] = wait_until(receiver.arrivals)
        event = client.webhooks.unwrap(arrival.body, arrival.headers, secret=SECRET)
        assert event.type == "response.completed"
        assert event.data.id == response.id
        assert client.responses.retrieve(event.data.id).output_text == "hi"
