"""verify_webhook against the reference implementation of Standard Webhooks."""

import base64
import hmac
import json
import secrets
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from app.jobs.signing import parse_secret, sign
from foreman_client import WebhookRejected, verify_webhook
from foreman_client.webhooks import _key

SECRET = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
BODY = json.dumps({"type": "job.done", "data": {"job_id": "01J", "text": "grüß dich"}})


def signed(body: str = BODY, secret: str = SECRET, at: datetime | None = None) -> dict[str, str]:
    at = at or datetime.now(UTC)
    return {
        "webhook-id": "01J-4",
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign("01J-4", at, body),
    }


def test_what_the_reference_signs_is_accepted() -> None:
    assert verify_webhook(BODY.encode(), signed(), SECRET)["data"]["text"] == "grüß dich"
    assert verify_webhook(BODY, signed(), SECRET) == json.loads(BODY)


def test_header_names_may_have_any_case() -> None:
    headers = {name.title(): value for name, value in signed().items()}
    assert verify_webhook(BODY, headers, SECRET)


def test_one_of_several_signatures_and_secrets_is_enough_while_rotating() -> None:
    old = "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()
    headers = signed()
    headers["webhook-signature"] = f"v1a,AAAA {signed(secret=old)['webhook-signature']} v1,nonsense"
    assert verify_webhook(BODY, headers, [SECRET, old])
    with pytest.raises(WebhookRejected):
        verify_webhook(BODY, headers, SECRET)


def test_a_changed_body_id_or_timestamp_is_rejected() -> None:
    with pytest.raises(WebhookRejected, match="no signature"):
        verify_webhook(BODY + " ", signed(), SECRET)
    with pytest.raises(WebhookRejected, match="no signature"):
        verify_webhook(BODY, {**signed(), "webhook-id": "01J-5"}, SECRET)
    moved = str(int(signed()["webhook-timestamp"]) - 1)
    with pytest.raises(WebhookRejected, match="no signature"):
        verify_webhook(BODY, {**signed(), "webhook-timestamp": moved}, SECRET)


@pytest.mark.parametrize("minutes", [-6, 6])
def test_an_old_or_future_timestamp_is_rejected_though_rightly_signed(minutes: int) -> None:
    headers = signed(at=datetime.now(UTC) + timedelta(minutes=minutes))
    with pytest.raises(WebhookRejected, match="timestamp"):
        verify_webhook(BODY, headers, SECRET)
    assert verify_webhook(BODY, headers, SECRET, tolerance_seconds=600)


@pytest.mark.parametrize("missing", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_missing_header_is_rejected(missing: str) -> None:
    headers = signed()
    del headers[missing]
    with pytest.raises(WebhookRejected, match=missing):
        verify_webhook(BODY, headers, SECRET)


def test_a_secret_that_is_none_is_rejected() -> None:
    with pytest.raises(WebhookRejected, match="secret"):
        verify_webhook(BODY, signed(), "whsec_not base64!")


@given(st.binary(min_size=24, max_size=64), st.booleans(), st.binary(max_size=50))
def test_whatever_secret_the_server_takes_is_taken_here(key: bytes, padded: bool, noise: bytes) -> None:
    encoded = base64.b64encode(key).decode()
    secret = "whsec_" + (encoded if padded else encoded.rstrip("="))
    body = json.dumps({"noise": noise.hex()}).encode()
    now = int(time.time())
    headers = {
        "webhook-id": "01J-4",
        "webhook-timestamp": str(now),
        "webhook-signature": sign([secret], "01J-4", now, body),
    }
    assert verify_webhook(body, headers, secret) == {"noise": noise.hex()}


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_" + base64.b64encode(b"x" * 23).decode()])
def test_nobody_signs_with_a_secret_that_was_never_set_or_is_too_short(secret: str) -> None:
    at = datetime.now(UTC)
    signed_data = f"01J-4.{int(at.timestamp())}.{BODY}".encode()
    key = base64.b64decode(secret.removeprefix("whsec_"))
    forged = {
        "webhook-id": "01J-4",
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": "v1," + base64.b64encode(hmac.digest(key, signed_data, "sha256")).decode(),
    }
    with pytest.raises(WebhookRejected, match="24 to 64"):
        verify_webhook(BODY, forged, secret)


NEARLY_BASE64 = st.text("Aa09+/=-_ \n", max_size=100)
ENCODED = st.binary(max_size=80).map(lambda key: base64.b64encode(key).decode())


@given(st.one_of(st.text(max_size=100), NEARLY_BASE64, ENCODED))
def test_both_sides_take_the_same_secrets_for_the_same_keys(text: str) -> None:
    secret = f"whsec_{text}"
    try:
        theirs = parse_secret(secret)
    except ValueError:
        with pytest.raises(WebhookRejected, match="the secret"):
            _key(secret)
    else:
        assert _key(secret) == theirs
