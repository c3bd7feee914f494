"""Job ids: ULIDs, made fast. Same layout as python-ulid's, which parses and checks them."""

import os
import struct
import time
from datetime import UTC, datetime

from ulid import ULID

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _DIGITS for b in _DIGITS]
ID_LENGTH = 26


# How much of the system's randomness is drawn at once: asking it for each id costs as much as making the id.
_DRAWN = 512
_HALF = (1 << 40) - 1
_TRACE_DIGITS = 48


class _Ids:
    """The newest id of this process, and the randomness that was drawn for the next ones."""

    __slots__ = ("first_text", "high", "low", "moment", "moment_text", "pool")

    def __init__(self) -> None:
        self.moment = 0
        # The two halves of the 80 bits behind the moment, as numbers.
        self.high = self.low = 0
        # The moment, and with it the first half, as text: most ids share them with the one before.
        self.moment_text = self.first_text = ""
        self.pool: list[int] = []


class _Traces:
    """Hexadecimal digits for the next traces."""

    __slots__ = ("digits", "used")

    def __init__(self) -> None:
        self.digits = ""
        self.used = 0


_IDS = _Ids()
_TRACES = _Traces()


def _forget() -> None:
    """In the child of a fork: with its parent's randomness it would make its parent's ids."""
    _IDS.pool.clear()
    _IDS.moment = 0
    _TRACES.digits = ""


os.register_at_fork(after_in_child=_forget)


def new_id() -> str:
    """A fresh ULID from the clock and the system's randomness (table look-ups of ten bits at a time).

    Within one millisecond they ascend, so that what one process accepts together also goes in that order.
    """
    ids, pairs = _IDS, _PAIRS
    if len(ids.pool) < 2:
        ids.pool.extend(struct.unpack(f"{_DRAWN}Q", os.urandom(8 * _DRAWN)))
    moment = time.time_ns() // 1_000_000
    if moment == ids.moment:
        # A step of random width: the neighbours of an id cannot be guessed from it.
        low = ids.low + 1 + (ids.pool.pop() & _HALF)
        if low > _HALF:
            _second_half_is_full(ids)
    else:
        low = ids.pool.pop()
        _begin(ids, moment, ids.pool.pop() & _HALF)
    ids.low = low = low & _HALF
    return (
        ids.first_text
        + pairs[low >> 30]
        + pairs[low >> 20 & 1023]
        + pairs[low >> 10 & 1023]
        + pairs[low & 1023]
    )


def _begin(ids: _Ids, moment: int, high: int) -> None:
    if moment != ids.moment:
        ids.moment, ids.moment_text = moment, _moment_text(moment)
    ids.high = high
    ids.first_text = ids.moment_text + "".join([_PAIRS[high >> shift & 1023] for shift in (30, 20, 10, 0)])


def _second_half_is_full(ids: _Ids) -> None:
    if ids.high < _HALF:
        _begin(ids, ids.moment, ids.high + 1)
    else:
        # Once in years: on into the next millisecond.
        _begin(ids, ids.moment + 1, 0)


def new_traceparent() -> str:
    """A trace that begins here, as W3C has it. Unique is enough: nobody is let in by a trace id."""
    traces = _TRACES
    start = traces.used
    if start >= len(traces.digits):
        traces.digits, start = os.urandom(_DRAWN * _TRACE_DIGITS // 2).hex(), 0
    traces.used = start + _TRACE_DIGITS
    return f"00-{traces.digits[start : start + 32]}-{traces.digits[start + 32 : start + _TRACE_DIGITS]}-01"


def _moment_text(milliseconds: int) -> str:
    return "".join([_PAIRS[(milliseconds >> shift) & 1023] for shift in range(40, -1, -10)])


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
    return _moment_text(int(moment.timestamp() * 1000)) + "0" * (ID_LENGTH - 10)
