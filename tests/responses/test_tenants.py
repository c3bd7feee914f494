"""Responses of other tenants are as if they were not, and keys may do what their scopes say."""

import json
from collections.abc import Iterator

import httpx
import openai
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import Server
from tests.responses.conftest import client_of
from tests.serving import serving


@pytest.fixture(scope="module")
def guarded(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(postgres, tmp_path_factory.mktemp("guarded"), FOREMAN_AUTH="on") as server:
        yield server


def test_another_tenant_finds_nothing_and_goes_on_from_nothing(guarded: Server) -> None:
    with (
        client_of(guarded, guarded.key("acme")) as owner,
        client_of(guarded, guarded.key("other")) as stranger,
    ):
        response = owner.responses.create(model="echo", input="secret", background=True)
        for call in (
            stranger.responses.retrieve,
            stranger.responses.cancel,
            stranger.responses.delete,
            stranger.responses.input_items.list,
        ):
            with pytest.raises(openai.NotFoundError, match="not found"):
                call(response.id)
        with pytest.raises(openai.BadRequestError) as refused:
            stranger.responses.create(model="echo", input="and?", previous_response_id=response.id)
        assert refused.value.code == "previous_response_not_found"
        assert owner.responses.retrieve(response.id).status in {"queued", "in_progress", "completed"}


def test_who_may_only_read_cannot_ask(guarded: Server) -> None:
    reader, writer = guarded.key("acme", "jobs:read"), guarded.key("acme", "jobs:write")
    with client_of(guarded, reader) as reads, client_of(guarded, writer) as writes:
        response = writes.responses.create(model="echo", input="hi")
        assert reads.responses.retrieve(response.id) == response
        for call in (reads.responses.delete, reads.responses.cancel, writes.responses.retrieve):
            with pytest.raises(openai.PermissionDeniedError):
                call(response.id)
        with pytest.raises(openai.PermissionDeniedError):
            reads.responses.create(model="echo", input="hi")
    with client_of(guarded, "fmn_nonsense") as nobody, pytest.raises(openai.AuthenticationError):
        nobody.responses.retrieve(response.id)


def test_ten_thousand_items_are_read_page_by_page(guarded: Server) -> None:
    with client_of(guarded, guarded.key("acme")) as client:
        response = client.responses.create(
            model="echo", input=[{"role": "user", "content": str(number)} for number in range(10_000)]
        )
        assert response.output_text == "9999"
        page = client.responses.input_items.list(response.id, limit=100)
        assert len(page.data) == 100
        assert page.has_more
        following = page.get_next_page()
        assert not {item.id for item in page.data} & {item.id for item in following.data}


def test_a_conversation_does_not_grow_beyond_what_a_body_may_have(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("small")
    with (
        serving(postgres, folder, FOREMAN_MAX_BODY_BYTES="20000") as server,
        client_of(server) as client,
    ):
        first = client.responses.create(model="echo", input="x" * 12_000)
        with pytest.raises(openai.BadRequestError, match="more than 20000 bytes") as refused:
            client.responses.create(model="echo", input="and?", previous_response_id=first.id)
        assert refused.value.param == "previous_response_id"


def test_headers_of_foreman_are_heard(guarded: Server) -> None:
    key = guarded.key("acme")
    with client_of(guarded, key) as client:
        own = {"X-Foreman-Priority": "7", "X-Foreman-Queue": "stories"}
        response = client.responses.create(model="echo", input="hi", background=True, extra_headers=own)
    bearer = {"Authorization": f"Bearer {key}"}
    job = httpx.get(f"{guarded.url}/jobs/{response.id.removeprefix('resp_')}", headers=bearer).json()
    assert (job["priority"], job["queue"]) == (7, "stories")
    wrong = httpx.post(
        f"{guarded.url}/v1/responses",
        headers={**bearer, "X-Foreman-Webhook-Url": "ftp://nowhere"},
        content=json.dumps({"model": "echo", "input": "hi", "background": True}),
    )
    assert wrong.status_code == 400
    assert "X-Foreman-Webhook-Url" in wrong.json()["error"]["message"]
