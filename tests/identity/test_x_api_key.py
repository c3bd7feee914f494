"""Anthropic's clients send the key as `x-api-key`: as good as a bearer, wherever one is taken."""

from typing import Any

import anthropic
import httpx
import pytest

from app.identity.authenticator import TWO_KEYS, presented
from app.identity.key import new_key
from tests.conftest import Server

CHAT = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], "stream": False}


@pytest.mark.parametrize(
    ("authorization", "api_key", "shown"),
    [
        (None, None, None),
        (b"Bearer a", None, b"Bearer a"),
        (None, b"a", b"Bearer a"),
        (None, b" a\t", b"Bearer a"),
        (b"Bearer a", b"a", b"Bearer a"),
        (b"bearer  a ", b"a", b"Bearer a"),
        (b"Bearer a", b"b", TWO_KEYS),
        (b"Bearer a", b"", TWO_KEYS),
        (b"Basic a", b"a", TWO_KEYS),
        (b"", b"a", TWO_KEYS),
        (None, b"", b"Bearer "),
    ],
)
def test_what_is_shown_is_one_key(
    authorization: bytes | None, api_key: bytes | None, shown: bytes | None
) -> None:
    assert presented(authorization, api_key) == shown


def test_the_client_of_anthropic_is_let_in_by_the_header_it_sends(guarded: Server, tenant: str) -> None:
    key = guarded.key(tenant, "jobs:read")
    with anthropic.Anthropic(base_url=guarded.url, api_key=key, max_retries=0) as client:
        listed: Any = client.get("/v1/models", cast_to=object)
        assert listed["data"][0]["id"] == "echo"
        with pytest.raises(anthropic.PermissionDeniedError):
            client.post("/v1/chat/completions", body=CHAT, cast_to=object)
    with (
        anthropic.Anthropic(base_url=guarded.url, api_key=new_key(), max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError, match="no such API key"),
    ):
        client.get("/v1/models", cast_to=object)


def test_it_is_taken_wherever_a_bearer_is(guarded: Server, tenant: str) -> None:
    key = guarded.key(tenant, "jobs:read", "jobs:write")
    with httpx.Client(base_url=guarded.url, headers={"X-Api-Key": key}) as client:
        job_id = client.post("/jobs", json={"kind": "own-kind"}).json()["job_id"]
        assert client.get(f"/jobs/{job_id}").status_code == 200
        assert client.post("/api/chat", json=CHAT).status_code == 200
        # Sent both ways, as some do.
        assert client.get("/jobs", headers={"authorization": f"Bearer {key}"}).status_code == 200


def test_of_two_different_keys_neither_is_believed_nor_logged(guarded: Server, tenant: str) -> None:
    one, other = guarded.key(tenant, "jobs:read"), guarded.key(tenant, "jobs:read")
    headers = {"authorization": f"Bearer {one}", "x-api-key": other}
    answer = httpx.get(f"{guarded.url}/jobs", headers=headers)
    assert (answer.status_code, answer.json()["detail"]) == (
        401,
        "Two different API keys were sent: send one.",
    )
    twice = [("x-api-key", one), ("x-api-key", one)]
    assert httpx.get(f"{guarded.url}/jobs", headers=twice).status_code == 401
    for bad in ("", "fmn_nonsense", f"Bearer {one}", "x" * 10_000):
        assert httpx.get(f"{guarded.url}/jobs", headers={"x-api-key": bad}).status_code == 401
    assert not [key for key in (one, other, "fmn_nonsense") if key in guarded.log()]
