"""Bodies that are an array of many, as `{"jobs": [...]}` and `{"settlements": [...]}`.

One wrong entry spoils them all, and is named by its index.
"""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from app.dialects.protocol import AnyObject
from app.errors import InvalidRequest
from app.jobs import verbatim
from app.jobs.submission import invalid

# From here on the entries are counted before any of them is kept: millions of numbers or empty objects fit
# into a body, and keeping them would take a hundred times its room.
COUNTED_BYTES = 1024 * 1024

_decode_entries = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_unkept = msgspec.json.Decoder(list[AnyObject]).decode

Entry = TypeVar("Entry")


def parse_batch(
    body: bytes, name: str, parse: Callable[[bytes], Entry], *, most: int, max_depth: int
) -> list[Entry]:
    """What `parse` makes of each entry. Raises InvalidRequest that names the first wrong one."""
    parts = verbatim.members(body, max_depth)
    unknown = sorted(parts.keys() - {name})
    if unknown:
        raise invalid(unknown[0], "is not a known field")
    if name not in parts:
        raise invalid(name, "is required")
    parsed = []
    for index, entry in enumerate(_entries(name, parts[name], most)):
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
