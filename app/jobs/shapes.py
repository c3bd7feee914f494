"""From the bytes of a request to a checked shape: one way for all that come as JSON."""

import re
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from app.dialects.protocol import AnyObject
from app.errors import InvalidRequest
from app.jobs import verbatim
from app.jobs.explain import explain
from app.jobs.submission import invalid

Moment = Annotated[datetime, Meta(tz=True)]
Count = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=0)]
JobId = Annotated[str, Meta(pattern="^[0-7][0-9A-HJKMNP-TV-Z]{25}$", description="A ULID.")]

# From here on the entries are counted before any of them is kept: millions of numbers or empty objects fit
# into a body, and keeping them would take a hundred times its room.
COUNTED_BYTES = 1024 * 1024

_decode_entries = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_unkept = msgspec.json.Decoder(list[AnyObject]).decode

Shape = TypeVar("Shape", bound=msgspec.Struct)
Entry = TypeVar("Entry")


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


def parse_batch(
    body: bytes,
    name: str,
    parse: Callable[[bytes], Entry],
    *,
    most: int,
    max_depth: int,
    parse_all: Callable[[msgspec.Raw], list[Entry] | None] | None = None,
) -> list[Entry]:
    """What `parse` makes of each entry of a body such as `{"jobs": [...]}`.

    One wrong entry spoils them all. Raises InvalidRequest that names the first by its index. `parse_all` does
    the same for the whole array in less time, or None where it cannot: then each entry is parsed.
    """
    parts = verbatim.members(body, max_depth)
    unknown = sorted(parts.keys() - {name})
    if unknown:
        raise invalid(unknown[0], "is not a known field")
    if name not in parts:
        raise invalid(name, "is required")
    array = parts[name]
    if parse_all is not None and memoryview(array).nbytes <= COUNTED_BYTES:
        quickly = parse_all(array)
        if quickly is not None and 1 <= len(quickly) <= most:
            return quickly
    parsed = []
    for index, entry in enumerate(_entries(name, array, most)):
        try:
            parsed.append(parse(bytes(entry)))
        except InvalidRequest as problem:
            raise InvalidRequest(
                f"{name}[{index}]: {problem.detail}", index=index, errors=problem.extra.get("errors", [])
            ) from problem
    return parsed


def _entries(name: str, array: msgspec.Raw, most: int) -> list[msgspec.Raw]:
    try:
        number = len(_decode_unkept(array)) if memoryview(array).nbytes > COUNTED_BYTES else 1
        entries = _decode_entries(array) if number <= most else []
    except msgspec.ValidationError as problem:
        wrong = re.search(r"\$\[(\d+)\]", str(problem))
        if wrong is None:
            raise invalid(name, "must be an array") from problem
        raise InvalidRequest(
            f"{name}[{wrong[1]}]: must be an object", index=int(wrong[1]), errors=[]
        ) from problem
    if not 1 <= len(entries) <= most:
        raise invalid(name, f"must have 1 to {most} entries")
    return entries
