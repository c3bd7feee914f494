"""Signatures, held against the reference package `standardwebhooks`."""

import base64
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from app.jobs.signing import SignatureInvalid, new_secret, parse_secret, sign, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(bytes(range(64))).decode()


def headers(message_id: str, timestamp: int, signature: str) -> dict[str, str]:
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature,
    }


def test_the_example_of_the_specification_comes_out_the_same() -> None:
    signature = sign([SECRET], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(
    key=st.binary(min_size=24, max_size=64),
    message_id=st.from_regex(r"[0-9A-Z]{26}-[0-9]{1,6}", fullmatch=True),
    timestamp=st.integers(0, 2**33),
    body=st.text(),
)
def test_every_signature_equals_the_reference(key: bytes, message_id: str, timestamp: int, body: str) -> None:
    secret = "whsec_" + base64.b64encode(key).decode()
    # The reference takes text and a UTC time; with bytes or another zone it signs something else.
    expected = Webhook(secret).sign(message_id, datetime.fromtimestamp(timestamp, UTC), body)
    assert sign([secret], message_id, timestamp, body.encode()) == expected


def test_the_reference_verifies_either_signature_while_secrets_rotate() -> None:
    now = int(time.time())
    body = '{"type":"job.done","data":{"text":"caf\u00e9"}}'
    sent = headers("01J-4", now, sign([SECRET, OTHER], "01J-4", now, body.encode()))
    for secret in (SECRET, OTHER):
        assert Webhook(secret).verify(body, sent)["type"] == "job.done"
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(body, sent)


def test_what_the_reference_signs_verifies_here() -> None:
    now = int(time.time())
    signature = Webhook(SECRET).sign("01J-4", datetime.fromtimestamp(now, UTC), "{}")
    verify([OTHER, SECRET], message_id="01J-4", timestamp=str(now), signature=signature, body=b"{}", now=now)


def test_several_signatures_stand_in_the_order_of_their_secrets() -> None:
    both = sign([SECRET, OTHER], "01J-1", 1, b"{}")
    assert both == f"{sign([SECRET], '01J-1', 1, b'{}')} {sign([OTHER], '01J-1', 1, b'{}')}"


@pytest.mark.parametrize(
    "changed",
    [
        {"body": b"{ }"},
        {"message_id": "01J-2"},
        {"timestamp": "1700000001"},
        {"signature": ""},
        {"signature": "v1,"},
        {"signature": "v1"},
        {"signature": "v2," + "a" * 44},
        {"signature": "v1,\u00e9"},
        {"signature": "v1a,x v1,AAAA"},
        {"timestamp": "1700000301"},
        {"timestamp": "1699999699"},
        {"timestamp": "1700000000.0"},
        {"timestamp": "-1700000000"},
        {"timestamp": " 1700000000"},
        {"timestamp": "\u0661\u0667\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660"},
        {"timestamp": "9" * 13},
        {"timestamp": ""},
    ],
)
def test_anything_changed_or_out_of_time_does_not_verify(changed: dict[str, Any]) -> None:
    good: dict[str, Any] = {
        "message_id": "01J-1",
        "timestamp": "1700000000",
        "signature": sign([SECRET], "01J-1", 1700000000, b"{}"),
        "body": b"{}",
        "now": 1700000000,
    }
    verify([SECRET], **good)
    with pytest.raises(SignatureInvalid):
        verify([SECRET], **(good | changed))


@pytest.mark.parametrize(("now", "trusted"), [(699, False), (700, True), (1300, True), (1300.5, False)])
def test_a_well_signed_delivery_is_trusted_for_five_minutes_either_way(now: float, trusted: bool) -> None:
    signature = sign([SECRET], "01J-1", 1000, b"{}")
    given: dict[str, Any] = {"message_id": "01J-1", "timestamp": "1000", "signature": signature}
    if trusted:
        verify([SECRET], **given, body=b"{}", now=now)
    else:
        with pytest.raises(SignatureInvalid, match="too far from the present"):
            verify([SECRET], **given, body=b"{}", now=now)


def test_one_good_signature_among_strange_ones_is_enough() -> None:
    good = sign([SECRET], "01J-1", 1700000000, b"{}")
    verify(
        [SECRET],
        message_id="01J-1",
        timestamp="1700000000",
        signature=f"v1a,ed25519 v1,AAAA  {good} nonsense",
        body=b"{}",
        now=1700000299.5,
    )


def test_no_secret_means_no_signature_and_no_trust() -> None:
    with pytest.raises(ValueError, match="no secret"):
        sign([], "01J-1", 1, b"{}")
    with pytest.raises(SignatureInvalid):
        verify([], message_id="01J-1", timestamp="1", signature="v1,", body=b"{}", now=1)


def test_a_new_secret_is_well_formed_and_never_the_same() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert {len(parse_secret(secret)) for secret in made} == {32}


@pytest.mark.parametrize("length", [24, 25, 26, 32, 63, 64])
def test_a_secret_is_accepted_with_or_without_padding(length: int) -> None:
    encoded = base64.b64encode(bytes(length)).decode()
    assert parse_secret("whsec_" + encoded) == parse_secret("whsec_" + encoded.rstrip("=")) == bytes(length)


@pytest.mark.parametrize(
    ("secret", "complaint"),
    [
        ("", "starts with whsec_"),
        ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "starts with whsec_"),
        ("WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "starts with whsec_"),
        ("whsec_", "this one 0"),
        ("whsec_" + base64.b64encode(bytes(23)).decode(), "this one 23"),
        ("whsec_" + base64.b64encode(bytes(65)).decode(), "this one 65"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", "this one 23"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw=", "base64"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", "base64"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZI o2LaLaSw", "base64"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa-_", "base64"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaL\u00e9Sw", "base64"),
        ("whsec_A", "base64"),
    ],
)
def test_a_bad_secret_is_refused_in_words_that_do_not_repeat_it(secret: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        parse_secret(secret)
    assert len(secret) < 10 or secret[6:] not in str(caught.value)
