"""Job ids: ULIDs, made fast. Same layout as python-ulid's, which parses and checks them."""

import os
import time
from datetime import UTC, datetime

from ulid import ULID

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _DIGITS for b in _DIGITS]
ID_LENGTH = 26


_DICE_BYTES = 10
# How much of the system's randomness is drawn at once: asking it for each id costs as much as making the id.
_DRAWN_BYTES = 400 * _DICE_BYTES
_LOW = (1 << 40) - 1


class _Ids:
    """The newest id of this process, and the randomness that was drawn for the next ones."""

    moment = 0
    # The moment as text: most ids share it with the one before.
    prefix = ""
    # The 80 bits behind it, as a number.
    dice = 0
    pool = b""
    drawn = 0


def _forget() -> None:
    """In the child of a fork: with its parent's randomness it would make its parent's ids."""
    _Ids.pool, _Ids.drawn, _Ids.moment = b"", 0, 0


os.register_at_fork(after_in_child=_forget)


def new_id() -> str:
    """A fresh ULID from the clock and the system's randomness (table look-ups of ten bits at a time).

    Within one millisecond they ascend, so that what one process accepts together also goes in that order.
    """
    ids, pairs = _Ids, _PAIRS
    start = ids.drawn
    if start >= len(ids.pool):
        ids.pool, start = os.urandom(_DRAWN_BYTES), 0
    ids.drawn = start + _DICE_BYTES
    dice = int.from_bytes(ids.pool[start : start + _DICE_BYTES], "big")
    moment = time.time_ns() // 1_000_000
    if moment == ids.moment:
        # A step of random width: the neighbours of an id cannot be guessed from it.
        dice = ids.dice + 1 + (dice >> 40)
        if dice >> 80:
            # Once in years, and as good as any other: on into the next millisecond.
            moment, dice = moment + 1, dice & ((1 << 80) - 1)
    if moment != ids.moment:
        ids.moment, ids.prefix = moment, _moment_text(moment)
    ids.dice = dice
    high, low = dice >> 40, dice & _LOW
    return (
        ids.prefix
        + pairs[high >> 30]
        + pairs[high >> 20 & 1023]
        + pairs[high >> 10 & 1023]
        + pairs[high & 1023]
        + pairs[low >> 30]
        + pairs[low >> 20 & 1023]
        + pairs[low >> 10 & 1023]
        + pairs[low & 1023]
    )


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
