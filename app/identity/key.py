"""The text of an API key: `fmn_`, thirty random characters, and six that are their checksum.

The checksum tells a slip, or a string that was never a key, from a key without asking the database, and lets
scanners find keys that leaked with next to no false alarms. It is no secret and protects nothing: the thirty
characters do (178 bits), of which only the SHA-256 is kept.
"""

import hashlib
import re
import secrets
import string
import zlib

PREFIX = "fmn_"
ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
RANDOM_LENGTH = 30
CHECKSUM_LENGTH = 6
PATTERN = rf"{PREFIX}[0-9A-Za-z]{{{RANDOM_LENGTH + CHECKSUM_LENGTH}}}"

_KEY = re.compile(PATTERN.encode())


def new_key() -> str:
    body = "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_LENGTH))
    return PREFIX + body + checksum(body)


def checksum(body: str) -> str:
    """CRC-32 in base 62, the most significant digit first."""
    number = zlib.crc32(body.encode())
    digits = []
    for _ in range(CHECKSUM_LENGTH):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


def is_key(text: bytes) -> bool:
    """Whether this can be a key at all."""
    if _KEY.fullmatch(text) is None:
        return False
    body = text[len(PREFIX) : -CHECKSUM_LENGTH].decode()
    return checksum(body).encode() == text[-CHECKSUM_LENGTH:]


def hash_of(key: bytes) -> bytes:
    """What is kept of it. A plain hash is enough: nobody guesses 178 random bits, however fast."""
    return hashlib.sha256(key).digest()
