"""Secrets at rest: AES-256-GCM, with several keys while one is being replaced.

A sealed secret is `version | key id | salt | nonce | ciphertext and tag`. What it belongs to (the job's id,
say) is authenticated with it, so that a sealed secret copied to another row does not open there.
"""

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_VERSION = b"\x01"
# What stands in the place of a secret whose key was lost for good: nobody opens it, and it needs no key.
GIVEN_UP = b"\x00"
_KEY_BYTES, _KEY_ID_BYTES, _SALT_BYTES, _NONCE_BYTES, _TAG_BYTES = 32, 4, 16, 12, 16
_SALT_START = len(_VERSION) + _KEY_ID_BYTES
# The part of a sealed secret that says which key it needs, in SQL. There is an index of it: never change it.
KEY_ID_OF = "substring({} FROM 2 FOR 4)"
_NONCE_START = _SALT_START + _SALT_BYTES
_CIPHERTEXT_START = _NONCE_START + _NONCE_BYTES
_SHORTEST_PASSPHRASE = 16
# The salt is fixed because replicas share nothing but the passphrase. 64 MiB and about 0.2 s, once per start.
_SCRYPT_SALT = b"foreman secretbox passphrase v1"
_SCRYPT_COST = {"n": 2**16, "r": 8, "p": 1, "maxmem": 128 * 1024 * 1024}


class SecretBoxError(Exception):
    """Base of what can go wrong with sealed secrets."""


class SecretKeyInvalid(SecretBoxError, ValueError):
    """The configured key, or the key file, cannot be used."""


class SecretKeyUnknown(SecretBoxError):
    """The secret was sealed with a key that is not configured here."""


class SealBroken(SecretBoxError):
    """The sealed bytes were changed, cut, or belong to something else."""


class SecretBox:
    """Seals with the first key, opens with any of them."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise SecretKeyInvalid("there is no secret key")
        if any(len(key) != _KEY_BYTES for key in keys):
            raise SecretKeyInvalid(f"a secret key is {_KEY_BYTES} bytes long")
        self._keys = {_key_id(key): key for key in keys}
        self._sealing_id = _key_id(keys[0])

    @property
    def key_ids(self) -> tuple[bytes, ...]:
        """By which sealed secrets name the keys; the first is that of the key that seals."""
        return tuple(self._keys)

    @classmethod
    def from_setting(cls, setting: str) -> "SecretBox":
        """From FOREMAN_SECRET_KEY: comma-separated keys, each base64 of 32 bytes or a long passphrase."""
        entries = [entry.strip() for entry in setting.split(",") if entry.strip()]
        return cls([_key_from_text(entry) for entry in entries])

    @classmethod
    def from_file(cls, path: Path) -> "SecretBox":
        """From a key file, made with a random key when there is none: for development without settings.

        Several keys are separated by commas, as in the setting."""
        if not path.exists():
            _create_key_file(path)
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise SecretKeyInvalid(f"{path} can be read by others: make it private with chmod 600")
        entries = path.read_text("ascii", errors="replace").split(",")
        keys = [key for key in (_decoded_key(entry.strip()) for entry in entries) if key is not None]
        if len(keys) < len(entries):
            raise SecretKeyInvalid(f"{path} does not contain a key")
        return cls(keys)

    def seal(self, plaintext: str, aad: str) -> bytes:
        """Encrypt `plaintext`, bound to `aad`: it opens only with the same `aad`."""
        salt, nonce = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_NONCE_BYTES)
        header = _VERSION + self._sealing_id
        cipher = _message_cipher(self._keys[self._sealing_id], salt)
        return header + salt + nonce + cipher.encrypt(nonce, plaintext.encode(), header + aad.encode())

    def open(self, sealed: bytes, aad: str) -> str:
        """Decrypt what `seal` made. Raises SecretKeyUnknown or SealBroken."""
        if sealed == GIVEN_UP:
            raise SealBroken("its key was lost, and it was given up")
        if sealed[:1] != _VERSION or len(sealed) < _CIPHERTEXT_START + _TAG_BYTES:
            raise SealBroken("this is not a sealed secret")
        header, salt = sealed[:_SALT_START], sealed[_SALT_START:_NONCE_START]
        key = self._keys.get(header[len(_VERSION) :])
        if key is None:
            raise SecretKeyUnknown("the secret was sealed with a key that is not configured")
        nonce, ciphertext = sealed[_NONCE_START:_CIPHERTEXT_START], sealed[_CIPHERTEXT_START:]
        try:
            return _message_cipher(key, salt).decrypt(nonce, ciphertext, header + aad.encode()).decode()
        except InvalidTag:
            raise SealBroken("the sealed secret was changed or belongs to something else") from None


def key_id_of(sealed: bytes) -> bytes:
    """Which key it was sealed with; empty for one that was given up."""
    return sealed[len(_VERSION) : _SALT_START]


def _message_cipher(key: bytes, salt: bytes) -> AESGCM:
    # A key of its own for each message: random 12-byte nonces under one key would be safe for only 2**32 of
    # them, which a server sealing a thousand secrets a second uses up in seven weeks.
    return AESGCM(hmac.digest(key, b"foreman secretbox message" + salt, "sha256"))


def _key_id(key: bytes) -> bytes:
    return hmac.digest(key, b"foreman secretbox key id", "sha256")[:_KEY_ID_BYTES]


def _key_from_text(text: str) -> bytes:
    key = _decoded_key(text)
    if key is not None:
        return key
    if len(text) < _SHORTEST_PASSPHRASE:
        raise SecretKeyInvalid(
            f"a secret key is base64 of {_KEY_BYTES} bytes (openssl rand -base64 {_KEY_BYTES}) "
            f"or a passphrase of at least {_SHORTEST_PASSPHRASE} characters"
        )
    return hashlib.scrypt(text.encode(), salt=_SCRYPT_SALT, dklen=_KEY_BYTES, **_SCRYPT_COST)


def _decoded_key(text: str) -> bytes | None:
    """The 32 bytes that `text` is base64 of, in either alphabet, padded or not; None if it is not."""
    unpadded = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        key = base64.b64decode(unpadded + "=" * (-len(unpadded) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) == _KEY_BYTES else None


def _create_key_file(path: Path) -> None:
    """Make the file complete or not at all, and never replace one that another process made meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode("ascii") + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)
