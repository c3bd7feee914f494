"""Standard Webhooks 1.0 signatures: HMAC-SHA256 over `id.timestamp.body`, several while a secret is rotated.

Pure. Secrets are text of the form `whsec_<base64 of 24 to 64 bytes>`; errors never repeat one.
"""

import base64
import hmac
import re
import secrets as random_source
from collections.abc import Sequence

PREFIX = "whsec_"
TOLERANCE_SECONDS = 300

# Padding is optional, as in the reference implementations. b64decode alone would skip what it does not know.
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?")
_SHORTEST, _LONGEST, _NEW = 24, 64, 32


class SignatureInvalid(ValueError):
    """A delivery that must not be trusted; the text says which check it failed."""


def new_secret() -> str:
    """A fresh random secret."""
    return PREFIX + base64.b64encode(random_source.token_bytes(_NEW)).decode("ascii")


def parse_secret(secret: str) -> bytes:
    """The key inside a `whsec_…` secret. ValueError, in words for its owner, when it is none."""
    if not secret.startswith(PREFIX):
        raise ValueError(f"a webhook secret starts with {PREFIX}")
    encoded = secret[len(PREFIX) :]
    if not _BASE64.fullmatch(encoded):
        raise ValueError(f"a webhook secret is base64 after {PREFIX}")
    key = base64.b64decode(encoded + "=" * (-len(encoded) % 4))
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise ValueError(f"a webhook secret holds {_SHORTEST} to {_LONGEST} bytes, this one {len(key)}")
    return key


def sign(secrets: Sequence[str], message_id: str, timestamp: int, body: bytes) -> str:
    """The `webhook-signature` header: one `v1,…` per secret, in their order, separated by spaces."""
    if not secrets:
        raise ValueError("there is no secret to sign with")
    keys = [parse_secret(secret) for secret in secrets]
    return " ".join(f"v1,{_signature(key, message_id, timestamp, body)}" for key in keys)


def verify(
    secrets: Sequence[str],
    *,
    message_id: str,
    timestamp: str,
    signature: str,
    body: bytes,
    now: float,
    tolerance_seconds: float = TOLERANCE_SECONDS,
) -> None:
    """Raise SignatureInvalid unless one of the secrets made one of the signatures, close enough to `now`.

    `timestamp` and `signature` are the header values as they came in.
    """
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise SignatureInvalid("the timestamp is not a number of seconds")
    moment = int(timestamp)
    if abs(now - moment) > tolerance_seconds:
        raise SignatureInvalid("the timestamp is too far from the present")
    given = [part[3:].encode() for part in signature.split(" ") if part.startswith("v1,")]
    # Every pair is compared, so that the time taken tells nothing about which secret matched.
    matches = 0
    for secret in secrets:
        expected = _signature(parse_secret(secret), message_id, moment, body).encode()
        matches += sum(hmac.compare_digest(expected, candidate) for candidate in given)
    if not matches:
        raise SignatureInvalid("no signature matches")


def _signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    message = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return base64.b64encode(hmac.digest(key, message, "sha256")).decode("ascii")
