"""Range requests (RFC 9110): one range of bytes; anything else of that header is answered with the whole."""

import re
from dataclasses import dataclass

from app.errors import RangeNotSatisfiable

_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Slice:
    status: int
    start: int
    length: int


def parse_range(given: str | None, size: int) -> Slice:
    """What is to be sent. Raises RangeNotSatisfiable for a range behind the end."""
    whole = Slice(200, 0, size)
    found = _RANGE.match((given or "").strip())
    if found is None:
        return whole
    first, last = found.groups()
    if not first and not last:
        return whole
    if not first:
        # The last so many bytes.
        length = min(int(last), size)
        start, end = size - length, size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < int(first):
            return whole
    if start >= end:
        raise RangeNotSatisfiable(f"The artifact has {size} bytes.")
    return Slice(206, start, end - start)
