"""What is wrong with a body that does not fit its shape, in words for people: every wrong field is named."""

import re
from functools import cache

import msgspec

from app.errors import InvalidRequest
from app.jobs.verbatim import Members


def explain(parts: Members, shape: type[msgspec.Struct]) -> InvalidRequest:
    """Off the hot path: decode each field on its own, so that all the wrong ones are named."""
    errors = []
    for info in _field_infos(shape):
        raw = parts.get(info.encode_name)
        if raw is None:
            if info.required:
                errors.append({"field": info.encode_name, "message": "is required"})
            continue
        try:
            msgspec.json.decode(raw, type=info.type)
        except (msgspec.ValidationError, msgspec.DecodeError) as problem:
            errors.append({"field": info.encode_name, "message": _plain(str(problem))})
    named = "; ".join(f"{error['field']}: {error['message']}" for error in errors)
    return InvalidRequest(
        f"{named}." if named else "The request does not have the right shape.", errors=errors
    )


@cache
def _field_infos(shape: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(shape)


def _plain(message: str) -> str:
    """msgspec's messages, for people: no type names of ours, patterns in words."""
    message = re.sub(r"matching regex '\^\[A-Z.*'", "of letters, digits and . _ : - (1 to 128)", message)
    message = re.sub(r"matching regex .*", "without forbidden characters", message)
    message = (
        message.replace(" - at `$", " at `$")
        .replace(" | null`", "`")
        .replace("`str`", "a string")
        .replace("`int`", "an integer")
    )
    message = message.replace("`float`", "a number").replace("`datetime`", "an RFC 3339 timestamp")
    return re.sub(r"\s+", " ", message[:1].lower() + message[1:])
