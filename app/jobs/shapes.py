"""From the bytes of a request to a checked shape: one way for all that come as JSON."""

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from app.errors import InvalidRequest
from app.jobs import verbatim
from app.jobs.submission import explain, invalid

Moment = Annotated[datetime, Meta(tz=True)]
Count = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=0)]
JobId = Annotated[str, Meta(pattern="^[0-7][0-9A-HJKMNP-TV-Z]{25}$", description="A ULID.")]


Shape = TypeVar("Shape", bound=msgspec.Struct)


def decode(body: bytes, shape: type[Shape], max_depth: int = verbatim.DEFAULT_MAX_DEPTH) -> Shape:
    """The body as this shape. Raises InvalidRequest that names what is wrong.

    A shape may have a method `check`, for what the types of its fields cannot say.
    """
    parts = verbatim.members(body, max_depth)
    read, check = _tools(shape)
    try:
        decoded: Shape = read(body)
    except msgspec.ValidationError as problem:
        unknown = sorted(parts.keys() - _names(shape))
        raise (invalid(unknown[0], "is not a known field") if unknown else explain(parts, shape)) from problem
    except msgspec.DecodeError as problem:
        # Numbers, for example, that JSON allows and nobody can compute with.
        raise InvalidRequest(f"The body cannot be read: {problem}.") from problem
    if check is not None:
        check(decoded)
    return decoded


@cache
def _tools(shape: type[msgspec.Struct]) -> tuple[Callable[[bytes], Any], Callable[[Any], None] | None]:
    return msgspec.json.Decoder(shape).decode, getattr(shape, "check", None)


@cache
def _names(shape: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(shape.__struct_encode_fields__)
