"""The headers that say where the events of a response or a batch go, checked as the fields of a job are."""

import base64
from typing import Any

import orjson
import pytest
from starlette.requests import Request

from app.api import surfaces
from app.api.webhook_headers import HEADERS, Webhook, webhook_of, webhook_parameters
from app.config import Settings
from app.dialects import DIALECTS
from app.engine.intake import SubmissionChecks
from app.errors import InvalidRequest
from app.outbound.client import GuardedClient
from app.outbound.guard import AddressPolicy
from tests.store.making import job

SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()
OWN = "https://hooks.example/openai"


def request(*headers: tuple[str, str], **named: str) -> Request:
    given = [*headers, *((f"X-Foreman-Webhook-{name.title()}", value) for name, value in named.items())]
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in given]
    return Request({"type": "http", "headers": raw})


def webhook(*headers: tuple[str, str], settings: dict[str, Any] | None = None, **named: str) -> Webhook:
    return webhook_of(request(*headers, **named), Settings(**(settings or {})))


def refused(**named: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        webhook_of(request(**named), Settings())
    for name in HEADERS:
        assert name not in caught.value.detail
    return caught.value.detail


def test_without_headers_and_settings_nobody_is_told() -> None:
    assert webhook() == Webhook()


def test_all_of_it_by_headers() -> None:
    found = webhook(url=" https://x.example/ ", events="done, failed", secret=SECRET, shape="OpenAI")
    assert found == Webhook("https://x.example/", ["done", "failed"], SECRET, "openai")
    new = job(kind="batch")
    found.put_on(new)
    assert (new.webhook_url, new.webhook_events) == ("https://x.example/", ["done", "failed"])
    assert (new.webhook_secret, new.webhook_shape) == (SECRET, "openai")


def test_a_header_that_comes_twice_goes_on_with_the_list() -> None:
    twice = [("X-Foreman-Webhook-Events", "done"), ("X-Foreman-Webhook-Events", "failed,")]
    assert webhook(*twice, url="https://x.example/").events == ["done", "failed"]


def test_the_settings_say_what_headers_leave_open() -> None:
    settings = {"openai_webhook_url": OWN, "webhook_shape": "openai"}
    assert webhook(settings=settings) == Webhook(OWN, None, None, "openai")
    assert webhook(settings=settings, shape="foreman") == Webhook(OWN)
    assert webhook(settings=settings, events="done") == Webhook(OWN, ["done"], None, "openai")
    other = webhook(settings=settings, url="https://x.example/", secret=SECRET)
    assert other == Webhook("https://x.example/", None, SECRET, "openai")


def test_a_shape_alone_makes_nobody_a_receiver() -> None:
    assert webhook(settings={"webhook_shape": "openai"}) == Webhook()


def test_the_operators_receiver_is_not_told_of_calls_that_wait_for_their_answer() -> None:
    settings = Settings(openai_webhook_url=OWN)
    assert webhook_of(request(), settings, in_background=False) == Webhook()
    asked = webhook_of(request(url="https://x.example/"), settings, in_background=False)
    assert asked == Webhook("https://x.example/")


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"events": "done"}, "X-Foreman-Webhook-Url: is needed when X-Foreman-Webhook-Events or "),
        ({"secret": SECRET}, "X-Foreman-Webhook-Url: is needed when "),
        ({"shape": "openai"}, "X-Foreman-Webhook-Shape: means nothing without X-Foreman-Webhook-Url"),
        ({"url": "https://x/", "shape": "standard"}, "X-Foreman-Webhook-Shape: must be foreman or openai"),
        ({"shape": ""}, "X-Foreman-Webhook-Shape: must be foreman or openai"),
        ({"url": ""}, "X-Foreman-Webhook-Url: "),
        ({"url": "https://x/" + "y" * 2048}, "X-Foreman-Webhook-Url: "),
        ({"url": "https://x/", "events": " , "}, "X-Foreman-Webhook-Events: names no event"),
        ({"url": "https://x/", "events": "finished"}, "X-Foreman-Webhook-Events: finished is not an event"),
        ({"url": "https://x/", "events": "dön€"[:3]}, "X-Foreman-Webhook-Events: "),
        ({"url": "https://x/", "events": ",".join(["done"] * 51)}, "X-Foreman-Webhook-Events: "),
        ({"url": "https://x/", "secret": "s" * 513}, "X-Foreman-Webhook-Secret: "),
    ],
)
def test_what_is_wrong_is_said_by_the_name_of_its_header(headers: dict[str, str], words: str) -> None:
    assert refused(**headers).startswith(words)


async def test_what_is_only_found_out_at_the_intake_is_said_by_the_name_of_its_header_too() -> None:
    cases = [
        (Webhook("http://10.1.2.3/"), "X-Foreman-Webhook-Url: the URL's host is not allowed: "),
        (Webhook("https://x.example/", secret="whsec_short"), "X-Foreman-Webhook-Secret: a webhook secret "),
        (Webhook("https://x.example/", shape="openai"), "X-Foreman-Webhook-Shape: openai is only for "),
    ]
    client = GuardedClient(AddressPolicy())
    for each, words in cases:
        new = job()
        each.put_on(new)
        with pytest.raises(InvalidRequest) as caught:
            await SubmissionChecks(AddressPolicy(), client, None).check([new])
        answer = surfaces.refusal(DIALECTS["openai"], caught.value)
        assert answer.status_code == 400
        assert orjson.loads(answer.body)["error"]["message"].startswith(words)
    await client.aclose()


def test_a_secret_is_in_no_error_and_in_no_log() -> None:
    assert SECRET not in repr(webhook(url="https://x.example/", secret=SECRET))
    assert "t0p" not in refused(url="https://x/", secret="t0p" * 300)


def test_the_document_names_the_headers_that_are_read() -> None:
    described = webhook_parameters.__annotations__.values()
    assert [said.__metadata__[0].alias for said in described if hasattr(said, "__metadata__")] == [
        *HEADERS.values()
    ]
