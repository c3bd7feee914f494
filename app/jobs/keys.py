"""Concurrency keys: an ordered template of constants and JSON pointers, resolved against a payload.

`["zendesk", "/origin", "tickets"]` and a payload with `"origin": "acme"` make `zendesk/acme/tickets`. What
starts with a slash is a pointer (RFC 6901), everything else a constant. Numbers keep the caller's spelling.
"""

from collections.abc import Sequence

import msgspec

from app.errors import InvalidRequest

# Far below what fits into one entry of a B-tree.
MAX_KEY_BYTES = 1000

_SCALARS = frozenset(b'"-0123456789tf')


def concurrency_key(template: Sequence[str], payload: str) -> str:
    """The key of this payload. Raises InvalidRequest naming the pointer that is missing or no scalar."""
    parts = [_resolve(part, payload) if part.startswith("/") else part for part in template]
    key = "/".join(parts)
    if "\0" in key:
        raise _wrong(template, "has a NUL character")
    if not key or len(key.encode()) > MAX_KEY_BYTES:
        raise _wrong(template, f"must make a key of 1 to {MAX_KEY_BYTES} bytes")
    return key


def _resolve(pointer: str, payload: str) -> str:
    value = msgspec.Raw(payload.encode())
    for token in pointer[1:].split("/"):
        found = _member(value, token.replace("~1", "/").replace("~0", "~"))
        if found is None:
            raise InvalidRequest(
                f"The queue's key needs {pointer} in the payload, and there is nothing.",
                pointer=pointer,
                errors=[{"field": "payload", "pointer": pointer, "message": "is missing"}],
            )
        value = found
    text = bytes(value)
    if text[0] not in _SCALARS:
        raise InvalidRequest(
            f"The queue's key needs a string, number or boolean at {pointer} in the payload.",
            pointer=pointer,
            errors=[
                {"field": "payload", "pointer": pointer, "message": "must be a string, number or boolean"}
            ],
        )
    return msgspec.json.decode(text, type=str) if text[:1] == b'"' else text.decode()


def _member(value: msgspec.Raw, token: str) -> msgspec.Raw | None:
    opening = bytes(value)[:1]
    if opening == b"{":
        return msgspec.json.decode(value, type=dict[str, msgspec.Raw]).get(token)
    if opening == b"[" and token.isascii() and token.isdigit() and str(int(token[:9])) == token:
        items = msgspec.json.decode(value, type=list[msgspec.Raw])
        return items[int(token)] if int(token) < len(items) else None
    return None


def _wrong(template: Sequence[str], message: str) -> InvalidRequest:
    pointer = next((part for part in template if part.startswith("/")), "")
    return InvalidRequest(
        f"The queue's key {message}.",
        pointer=pointer,
        errors=[{"field": "payload", "pointer": pointer, "message": message}],
    )
