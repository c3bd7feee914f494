"""Check that a webhook comes from Foreman: Standard Webhooks 1.0, symmetric signatures."""

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from foreman_client.errors import WebhookRejected
from foreman_client.wire import decode


def verify_webhook(
    body: bytes | str,
    headers: Mapping[str, str],
    secret: str | Iterable[str],
    *,
    tolerance_seconds: float = 300.0,
) -> dict[str, Any]:
    """The parsed event, or WebhookRejected. Give the body as it came: parsed and written again, it differs.

    `secret` may be several while they are being rotated; one signature by one of them is enough. Deliveries
    are at least once: `headers["webhook-id"]` is equal on every try, for throwing away what was seen before.
    """
    raw = body.encode() if isinstance(body, str) else body
    named = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, sent_at = named["webhook-id"], named["webhook-timestamp"]
        signatures = named["webhook-signature"].split()
        age = time.time() - int(sent_at)
    except (KeyError, ValueError) as error:
        raise WebhookRejected(f"a header is missing or wrong: {error}") from None
    if abs(age) > tolerance_seconds:
        raise WebhookRejected(f"the timestamp is {abs(age):.0f} s {'old' if age > 0 else 'ahead'}")
    signed = b".".join((message_id.encode(), sent_at.encode(), raw))
    for one in [secret] if isinstance(secret, str) else secret:
        digest = hmac.new(_key(one), signed, hashlib.sha256).digest()
        expected = b"v1," + base64.b64encode(digest)
        if any(hmac.compare_digest(expected, given.encode()) for given in signatures):
            event: dict[str, Any] = decode(raw)
            return event
    raise WebhookRejected("no signature matches")


# Padding is optional, as in the reference implementations: whatever secret the server takes is taken here.
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?")
# What Foreman signs with, and Standard Webhooks asks for. Above all not nothing: with the empty key of a
# variable that was never set, anybody can sign.
_SHORTEST, _LONGEST = 24, 64


def _key(secret: str) -> bytes:
    encoded = secret.removeprefix("whsec_")
    if not _BASE64.fullmatch(encoded):
        raise WebhookRejected("the secret is not whsec_ followed by base64")
    key = base64.b64decode(encoded + "=" * (-len(encoded) % 4))
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise WebhookRejected(f"the secret holds {len(key)} bytes instead of {_SHORTEST} to {_LONGEST}")
    return key
