"""Job ids: ULIDs, made fast. Same layout as python-ulid's, which parses and checks them."""

import os
import time
from datetime import UTC, datetime

from ulid import ULID

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _DIGITS for b in _DIGITS]
ID_LENGTH = 26


class _Last:
    """The newest id of this process, as a number."""

    value = 0


def new_id() -> str:
    """A fresh ULID from the clock and the system's randomness (table look-ups of ten bits at a time).

    Within one millisecond they ascend, so that what one process accepts together also goes in that order.
    """
    dice = int.from_bytes(os.urandom(10), "big")
    value = ((time.time_ns() // 1_000_000) << 80) | dice
    if value >> 80 == _Last.value >> 80:
        # A step of random width: the neighbours of an id cannot be guessed from it.
        value = _Last.value + 1 + (dice >> 40)
    _Last.value = value
    pairs = _PAIRS
    return "".join([pairs[(value >> shift) & 1023] for shift in range(120, -1, -10)])


def is_id(text: str) -> bool:
    """Whether this can be a job id at all; anything else is answered with 404 before a query is made."""
    if len(text) != ID_LENGTH or not text.isascii():
        return False
    try:
        ULID.from_str(text)
    except ValueError:
        return False
    return text.isupper() or text.isdigit()


def id_floor(moment: datetime) -> str:
    """The smallest id made at or after this moment: time filters become a range over the primary key."""
    moment = min(max(moment, datetime(1970, 1, 1, tzinfo=UTC)), datetime(9999, 1, 1, tzinfo=UTC))
    value = int(moment.timestamp() * 1000) << 80
    return "".join(_PAIRS[(value >> shift) & 1023] for shift in range(120, -1, -10))
