"""What checking payloads against a JSON Schema may cost, found out from the schema alone.

The validator stops at the first thing that is wrong, does not backtrack in patterns, and remembers what it
has found out where a schema refers back to itself. Three things still grow without bound: references that
double at each step, repetitions in patterns, and the words for what is wrong, for which every alternative is
gone through to its end.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from app.jobs.submission import invalid

MAX_PARTS = 100_000
MAX_PATTERN = 1000
# Up to here it is worth while to say what is wrong. Where alternatives refer back to themselves, the words
# for it are twice as many with each level of the payload.
EXPLAINED_PARTS = 10_000
EXPLAINED_LEVELS = 4


class SchemaSize:
    """How many parts a schema has once its references are followed, and whether any comes back to itself."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        # By reference; None while it is being followed.
        self._found: dict[str, int | None] = {}
        self.is_recursive = False
        self.parts = self._count(schema)

    def can_explain(self, instance: Any) -> bool:
        """Whether what is wrong with this can be said in reasonable time."""
        if self.is_recursive:
            return _levels(instance) <= EXPLAINED_LEVELS
        return self.parts <= EXPLAINED_PARTS

    def _count(self, part: Any) -> int:
        if isinstance(part, list):
            return sum(map(self._count, part))
        if not isinstance(part, dict):
            return 0
        # These two lead to wherever the checking began: anywhere.
        self.is_recursive |= "$dynamicRef" in part or "$recursiveRef" in part
        reference = part.get("$ref")
        followed = self._follow(reference) if isinstance(reference, str) else 0
        return 1 + followed + sum(map(self._count, part.values()))

    def _follow(self, reference: str) -> int:
        if reference not in self._found:
            self._found[reference] = None
            self._found[reference] = self._count(self._referred_to(reference))
        parts = self._found[reference]
        self.is_recursive |= parts is None
        return parts or 1

    def _referred_to(self, reference: str) -> Any:
        """What stands at a JSON pointer. A part that is named in another way may be any."""
        if reference != "#" and not reference.startswith("#/"):
            self.is_recursive = True
            return None
        found = self._schema
        for step in reference.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = {str(index): each for index, each in enumerate(found)}
            found = found.get(name) if isinstance(found, dict) else None
        return found


def measured(schema: Any) -> SchemaSize:
    """How large the schema is; raises InvalidRequest when checking against it could take too long."""
    try:
        size = SchemaSize(schema)
    except RecursionError as problem:
        raise invalid("payload_schema", "has references that lead too far") from problem
    if size.parts > MAX_PARTS:
        raise invalid("payload_schema", f"has more than {MAX_PARTS} parts once its references are followed")
    if any(_length(pattern) > MAX_PATTERN for pattern in _patterns(schema)):
        raise invalid(
            "payload_schema",
            f"has a pattern of more than {MAX_PATTERN} characters once its repetitions are written out",
        )
    return size


def _levels(instance: Any) -> int:
    inside = instance.values() if isinstance(instance, dict) else instance
    return 1 + max(map(_levels, inside), default=0) if isinstance(instance, dict | list) else 0


def _patterns(part: Any) -> Iterator[str]:
    if isinstance(part, list):
        for each in part:
            yield from _patterns(each)
    elif isinstance(part, dict):
        for name, value in part.items():
            if name == "pattern" and isinstance(value, str):
                yield value
            elif name == "patternProperties" and isinstance(value, dict):
                yield from value
            yield from _patterns(value)


_TOKEN = re.compile(
    r"""
    \\[pP]\{[^}]*\} | \\. | \[(?:\\.|[^\]\\])*\]     # one character: a class of any kind, or an escape
    | \{(?P<least>\d+)(?:,(?P<most>\d*))?\}          # a counted repetition
    | (?P<opens>\() | (?P<closes>\)) | .
    """,
    re.DOTALL | re.VERBOSE,
)


def _length(pattern: str) -> int:
    """How long a pattern is with its counted repetitions written out; roughly, and of what is none, too."""
    groups = [0]
    last = 0
    for token in _TOKEN.finditer(pattern):
        if token["opens"]:
            groups.append(0)
        elif token["closes"]:
            last = groups.pop()
            groups = groups or [0]
            groups[-1] += last
        elif token["least"]:
            # What has more digits is too long in any case.
            times = int((token["most"] or token["least"])[:9])
            groups[-1] += last * (times - 1)
            last *= times
        else:
            last = 1
            groups[-1] += 1
    return sum(groups)
