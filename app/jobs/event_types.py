"""The names of events: which are Foreman's own, and which a caller may use."""

import re

from app.jobs.states import RESERVED_EVENT_TYPES
from app.jobs.submission import EVENT_TYPE, invalid, shown

MAX_TYPES = 50
_NAME = re.compile(EVENT_TYPE + r"\Z")


def as_event_type(name: str) -> str:
    """A name for a caller's own event. Other spellings of ours are refused too: who could tell them apart?"""
    if not _NAME.match(name):
        raise invalid("type", "must begin with a letter, then letters, digits and . _ - (at most 64)")
    if name.lower() in RESERVED_EVENT_TYPES:
        raise invalid("type", f"{name} is a name of Foreman's own")
    return name


def parse_types(given: str | None) -> tuple[str, ...] | None:
    """A filter such as `output,done`; None without one. Any name may be posted, so any may be asked for."""
    if given is None:
        return None
    names = tuple(dict.fromkeys(given.split(",")))
    if len(names) > MAX_TYPES:
        raise invalid("types", f"may name at most {MAX_TYPES} types")
    for name in names:
        if not _NAME.match(name):
            raise invalid("types", f"{shown(name) or 'an empty name'} cannot be the type of an event")
        if name not in RESERVED_EVENT_TYPES and name.lower() in RESERVED_EVENT_TYPES:
            raise invalid("types", f"there is no {name}; did you mean {name.lower()}?")
    return names
