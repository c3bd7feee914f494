"""Webhooks of responses and batches as OpenAI sends them, read by OpenAI's own client."""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import openai
import orjson
import pytest
from openai.types.webhooks import UnwrapWebhookEvent
from pydantic import TypeAdapter

from app.config import Settings, SettingsError
from app.dialects import DIALECTS
from app.dialects.openai import OpenAI
from app.engine.intake import SubmissionChecks
from app.errors import InvalidRequest
from app.jobs.openai_events import ENDS, OPENAI_SHAPE
from app.jobs.states import TERMINAL, State, Verb
from app.jobs.submission import NewJob
from app.outbound.client import GuardedClient
from app.outbound.guard import AddressPolicy
from app.secretbox import SecretBox
from app.store.control import revive
from app.store.database import Database
from app.store.outbox import DueDelivery, redeliver
from app.store.settle import Settlement, settle
from app.webhooks.openai_event import compose_event
from app.webhooks.outgoing import Outgoing
from tests.outbound.receivers import Receiver
from tests.patience import until
from tests.rows import made_up
from tests.store.making import claim_one, job, put
from tests.webhooks.dispatching import answering, dispatching, let_time_pass, over, parsed, rows

SECRETS = ["whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2)]
JOB = "01JZ7Q0C3N8W9V5T4R2E1D6A7B"
AT = datetime(2030, 1, 31, 12, 0, 0, 999_999, tzinfo=UTC)
BATCH = {"kind": "batch", "dialect": None}
# A dialect whose jobs OpenAI's clients know as responses.
RESPONSE = {"kind": "chat", "dialect": "answers"}
EVENTS: TypeAdapter[Any] = TypeAdapter(UnwrapWebhookEvent)


class Answers(OpenAI):
    name = "answers"
    wire_object = "response"
    id_prefix = "resp_"


@pytest.fixture(autouse=True)
def a_dialect_of_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DIALECTS, "answers", Answers())


@pytest.fixture
def client() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url="http://127.0.0.1:1/") as client:
        yield client


def event(about: dict[str, Any], state: str, result: str | None = None) -> dict[str, Any]:
    delivery = made_up(DueDelivery, job_id=JOB, seq=4, type=state, state=state, at=AT, **about)
    answered: dict[str, Any] = orjson.loads(compose_event(delivery, f"evt_{JOB}-4", result))
    return answered


@pytest.mark.parametrize(
    ("about", "state", "result", "told"),
    [
        (RESPONSE, "done", '{"status": "completed"}', "response.completed"),
        (RESPONSE, "done", '{"status": "incomplete", "output": []}', "response.incomplete"),
        (RESPONSE, "done", None, "response.completed"),
        (RESPONSE, "done", '["no", "response"]', "response.completed"),
        (RESPONSE, "done", '{"status": null}', "response.completed"),
        (RESPONSE, "failed", None, "response.failed"),
        (RESPONSE, "expired", None, "response.failed"),
        (RESPONSE, "cancelled", None, "response.cancelled"),
        (RESPONSE, "skipped", None, "response.cancelled"),
        (RESPONSE, "stale", None, "response.cancelled"),
        (BATCH, "done", None, "batch.completed"),
        # What is a batch's own is no response's.
        (BATCH, "done", '{"status": "incomplete"}', "batch.completed"),
        (BATCH, "failed", None, "batch.failed"),
        (BATCH, "expired", None, "batch.expired"),
        (BATCH, "cancelled", None, "batch.cancelled"),
        (BATCH, "skipped", None, "batch.cancelled"),
        (BATCH, "stale", None, "batch.cancelled"),
    ],
)
def test_each_end_is_an_event_that_the_clients_own_types_know(
    about: dict[str, Any], state: str, result: str | None, told: str
) -> None:
    said = event(about, state, result)
    prefix = "resp_" if about is RESPONSE else "batch_"
    assert said == {
        "id": f"evt_{JOB}-4",
        "object": "event",
        "created_at": int(AT.timestamp()),
        "type": told,
        "data": {"id": prefix + JOB},
    }
    known = EVENTS.validate_python(said, strict=True)
    noun, end = told.split(".")
    assert type(known).__name__ == f"{noun.title()}{end.title()}WebhookEvent"
    assert not known.model_extra


def test_every_end_is_told_but_that_a_failure_was_dismissed() -> None:
    assert set(ENDS) == {str(state) for state in TERMINAL - {State.DISMISSED}}


def told_job(url: str, about: dict[str, Any], **more: Any) -> NewJob:
    return job(webhook_url=url, webhook_shape=OPENAI_SHAPE, webhook_events=list(ENDS), **about, **more)


async def completed(database: Database, job_id: str, result: str = "null") -> None:
    token = await claim_one(database, job_id)
    await settle(database, [Settlement(job_id, token, Verb.COMPLETE, result=result)])


async def test_a_response_that_is_done_is_told_once_and_unwrapped_by_the_client(
    database: Database, client: openai.OpenAI
) -> None:
    async with Receiver() as receiver, dispatching(database, server_secrets=(SECRETS[0],)):
        new = told_job(receiver.url, RESPONSE)
        await put(database, new)
        await completed(database, new.id, '{"status":"completed"}')
        await until(lambda: over(database, new.id))
        # Nothing of its waiting and running.
        [request] = receiver.requests
        headers, body = parsed(request)
        told = client.webhooks.unwrap(body, headers, secret=SECRETS[0])
        assert isinstance(told, openai.types.webhooks.ResponseCompletedWebhookEvent)
        assert told.data.id == f"resp_{new.id}"
        assert headers["webhook-id"] == f"{new.id}-4"
        assert told.id == f"evt_{headers['webhook-id']}"
        [row] = await rows(database, new.id)
        # In lists it goes by the job's own word.
        assert (row["type"], row["state"]) == ("done", "delivered")
        at = await database.fetchval("SELECT completed_at FROM jobs WHERE id = $1", new.id)
        assert told.created_at == int(at.timestamp())
        with pytest.raises(openai.InvalidWebhookSignatureError):
            client.webhooks.unwrap(body, headers, secret=SECRETS[1])


@pytest.mark.parametrize(("status", "told"), [("completed", "completed"), ("incomplete", "incomplete")])
async def test_a_result_too_large_for_a_message_is_looked_into_all_the_same(
    database: Database, client: openai.OpenAI, status: str, told: str
) -> None:
    async with Receiver() as receiver, dispatching(database, server_secrets=(SECRETS[0],)):
        new = told_job(receiver.url, RESPONSE)
        await put(database, new)
        result = orjson.dumps({"output": ["x" * 1_000_000], "status": status}).decode()
        await completed(database, new.id, result)
        await until(lambda: over(database, new.id))
        headers, body = parsed(receiver.requests[0])
        assert client.webhooks.unwrap(body, headers, secret=SECRETS[0]).type == f"response.{told}"
        assert len(body) < 500


async def test_a_retry_and_a_redelivery_say_the_same_under_the_same_ids(
    database: Database, client: openai.OpenAI
) -> None:
    async with (
        Receiver(answering(500, times=2)) as receiver,
        dispatching(database, server_secrets=(SECRETS[0],)),
    ):
        new = told_job(receiver.url, BATCH)
        await put(database, new)
        await completed(database, new.id)
        for tries in (1, 2):

            async def tried(tries: int = tries) -> bool:
                [row] = await rows(database, new.id)
                return bool(row["tries"] == tries)

            await until(tried)
            await let_time_pass(database, new.id)
        await until(lambda: over(database, new.id))
        await redeliver(database, new.id, new.tenant, 4)
        await until(lambda: len(receiver.requests) == 4)
        sent = [parsed(request) for request in receiver.requests]
        assert {headers["webhook-id"] for headers, _ in sent} == {f"{new.id}-4"}
        assert len({body for _, body in sent}) == 1
        for headers, body in sent:
            told = client.webhooks.unwrap(body, headers, secret=SECRETS[0])
            assert told.type == "batch.completed"


async def test_a_failure_that_is_revived_and_done_is_two_events_in_their_order(
    database: Database, client: openai.OpenAI
) -> None:
    async with Receiver() as receiver, dispatching(database, server_secrets=(SECRETS[0],)):
        new = told_job(receiver.url, BATCH)
        await put(database, new)
        token = await claim_one(database, new.id)
        failed = Settlement(new.id, token, Verb.FAIL, error='{"code":"x","message":"m"}')
        await settle(database, [failed])
        await revive(database, [new.id], new.tenant)
        await completed(database, new.id)
        await until(lambda: len(receiver.requests) == 2)
        sent = [parsed(request) for request in receiver.requests]
        told = [client.webhooks.unwrap(body, headers, secret=SECRETS[0]) for headers, body in sent]
        assert [each.type for each in told] == ["batch.failed", "batch.completed"]
        assert len({each.id for each in told}) == len({headers["webhook-id"] for headers, _ in sent}) == 2


async def test_while_a_secret_is_replaced_the_client_takes_either(
    database: Database, client: openai.OpenAI
) -> None:
    async with Receiver() as receiver, dispatching(database, server_secrets=tuple(SECRETS)):
        new = told_job(receiver.url, BATCH)
        await put(database, new)
        await completed(database, new.id)
        await until(lambda: over(database, new.id))
        headers, body = parsed(receiver.requests[0])
        for secret in SECRETS:
            assert client.webhooks.unwrap(body, headers, secret=secret).type == "batch.completed"


async def test_a_secret_of_the_jobs_own_signs_it(database: Database, client: openai.OpenAI) -> None:
    box = SecretBox([bytes(32)])
    async with Receiver() as receiver, dispatching(database, box=box, server_secrets=(SECRETS[0],)):
        new = told_job(receiver.url, BATCH)
        new.sealed_webhook_secret = box.seal(SECRETS[1], new.id)
        await put(database, new)
        await completed(database, new.id)
        await until(lambda: over(database, new.id))
        headers, body = parsed(receiver.requests[0])
        client.webhooks.unwrap(body, headers, secret=SECRETS[1])


# -- what is let in ----------------------------------------------------------------------------------------


async def checked(new: NewJob, *, own_url: str | None = None) -> None:
    client = GuardedClient(AddressPolicy())
    try:
        await SubmissionChecks(AddressPolicy(), client, None, own_url).check([new])
    finally:
        await client.aclose()


async def test_without_a_choice_of_events_the_ends_are_told() -> None:
    for about in (RESPONSE, BATCH):
        new = job(webhook_url="http://192.0.2.1/", webhook_shape=OPENAI_SHAPE, **about)
        await checked(new, own_url=new.webhook_url)
        assert new.webhook_events == ENDS


async def test_some_of_the_ends_may_be_chosen() -> None:
    new = job(webhook_url="http://x/", webhook_shape=OPENAI_SHAPE, webhook_events=["failed"], **BATCH)
    await checked(new, own_url="http://x/")
    assert new.webhook_events == ["failed"]


@pytest.mark.parametrize("name", ["queued", "working", "progress", "dismissed", "response.completed"])
async def test_what_is_no_end_has_no_event_and_is_refused(name: str) -> None:
    new = job(webhook_url="http://x/", webhook_shape=OPENAI_SHAPE, webhook_events=["done", name], **RESPONSE)
    with pytest.raises(InvalidRequest, match=rf"webhook_events: {name} is no end; .* done, failed"):
        await checked(new, own_url="http://x/")


@pytest.mark.parametrize("about", [{"kind": "noop"}, {"kind": "chat", "dialect": "openai"}, {"kind": "chat"}])
async def test_a_job_of_any_other_kind_is_refused(about: dict[str, Any]) -> None:
    new = job(webhook_url="http://x/", webhook_shape=OPENAI_SHAPE, **about)
    with pytest.raises(InvalidRequest, match="webhook_shape: openai is only for responses and batches"):
        await checked(new, own_url="http://x/")


async def test_a_receiver_that_may_not_be_called_is_refused_unless_it_is_the_operators_own() -> None:
    new = job(webhook_url="http://10.1.2.3/", webhook_shape=OPENAI_SHAPE, **BATCH)
    with pytest.raises(InvalidRequest, match="state_webhook_url: the URL's host is not allowed"):
        await checked(new)
    await checked(new, own_url="http://10.1.2.3/")


# -- the operator's own receiver ---------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["ftp://x/", "nothing", "http://10.1.2.3/hook", "http://127.0.0.1:9/"])
def test_an_endpoint_that_can_never_be_called_is_said_at_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match=r"^FOREMAN_OPENAI_WEBHOOK_URL: "):
        Outgoing(Settings(database_url="postgresql://x/", openai_webhook_url=url))


def test_an_endpoint_on_this_machine_will_do_in_the_development_mode_or_where_it_is_opened() -> None:
    url = "http://127.0.0.1:9/"
    Outgoing(Settings(openai_webhook_url=url))
    Outgoing(Settings(database_url="postgresql://x/", outbound_allow="127.0.0.1", openai_webhook_url=url))
    with pytest.raises(SettingsError):
        Outgoing(Settings(auth="on", openai_webhook_url=url))
