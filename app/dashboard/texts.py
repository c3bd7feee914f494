"""What others wrote, as a page may show it: cut where it is long, laid out where it is JSON, never hidden."""

import contextlib
import re
from dataclasses import dataclass

import msgspec

# Beyond this a text is not laid out but shown as it begins.
LAID_OUT_BYTES = 256 * 1024
SHOWN_CHARACTERS = 16_000

# Characters that turn around or hide what stands beside them, and those that have no shape at all.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u202a-\u202e\u2066-\u2069\ufeff]")


def visible(text: str) -> str:
    """Nothing in it changes how the rest is read: such characters are named instead."""
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text.replace("\r\n", "\n"))


@dataclass(frozen=True, slots=True)
class Shown:
    """As much of a text as a page has of it."""

    text: str
    size: int
    is_cut: bool


def shown(text: str, size: int, *, is_whole: bool, laid_out: bool) -> Shown:
    """JSON, of which this is all or the beginning. Laid out it has its numbers and its order as they came."""
    if is_whole and laid_out and size <= LAID_OUT_BYTES:
        # What cannot be is shown as it is.
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            text = msgspec.json.format(text, indent=2)
    is_cut = not is_whole or len(text) > SHOWN_CHARACTERS
    return Shown(visible(text[:SHOWN_CHARACTERS]), size, is_cut)
