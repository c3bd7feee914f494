"""The relatives of a job as a small picture: what it needs on the left, what needs it on the right.

Pure: from the document of the API to boxes and lines in pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.api.family import Family, Relative, Relatives
from app.dashboard.texts import visible
from app.dashboard.words import GLYPHS, number, short_id
from app.store.family import MAX_COUNTED

BOX_WIDTH, BOX_HEIGHT, ROW, COLUMN = 220, 26, 32, 280
MAX_LABEL = 20
# How many of each sort: with the job itself and what is only counted, no more than fifty boxes.
MAX_SHOWN = {"waited for": 14, "child": 18, "waits for it": 12}


@dataclass(frozen=True, slots=True)
class Box:
    x: int
    y: int
    # Empty for what leads nowhere: the job itself, and what is only counted.
    job_id: str
    label: str
    state: str
    words: str


@dataclass(frozen=True, slots=True)
class Line:
    x1: int
    y1: int
    x2: int
    y2: int
    # `parent`: belongs to; `waits`: waits for.
    kind: str


@dataclass(slots=True)
class Picture:
    width: int
    height: int
    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Entry:
    relative: Relative | None
    role: str
    label: str = ""


def picture(label: str, state: str, family: Family) -> Picture | None:
    """None where it has no relatives."""
    left = [_Entry(family.parent, "parent")] if family.parent is not None else []
    left += _entries(family.depends_on, "waited for")
    right = [*_entries(family.children, "child"), *_entries(family.dependents, "waits for it")]
    if not left and not right:
        return None
    rows = max(len(left), len(right))
    drawn = Picture((bool(left) + 1 + bool(right)) * COLUMN - COLUMN + BOX_WIDTH + 2, rows * ROW)
    own = Box(
        1 + bool(left) * COLUMN,
        _above(drawn.height),
        "",
        f"{GLYPHS[state]} {_cut(label)}",
        state,
        f"This job, {state}",
    )
    drawn.boxes.append(own)
    for x, entries in ((1, left), (own.x + COLUMN, right)):
        above = (rows - len(entries)) * ROW // 2
        for position, entry in enumerate(entries):
            box = _box(x, above + position * ROW + 2, entry)
            drawn.boxes.append(box)
            ends = (box, own) if box.x < own.x else (own, box)
            drawn.lines.append(_line(*ends, entry.role))
    return drawn


def _above(height: int) -> int:
    return (height - BOX_HEIGHT) // 2


def _line(left: Box, right: Box, role: str) -> Line:
    middle = BOX_HEIGHT // 2
    kind = "parent" if role in {"parent", "child"} else "waits"
    return Line(left.x + BOX_WIDTH, left.y + middle, right.x, right.y + middle, kind)


def _entries(relatives: Relatives, role: str) -> list[_Entry]:
    entries = [_Entry(each, role) for each in relatives.jobs[: MAX_SHOWN[role]]]
    more = relatives.total - len(entries)
    if more > 0:
        at_least = " at least" if relatives.total >= MAX_COUNTED else ""
        entries.append(_Entry(None, role, f"and {number(more)} more{at_least}"))
    return entries


def _box(x: int, y: int, entry: _Entry) -> Box:
    relative = entry.relative
    if relative is None:
        return Box(x, y, "", entry.label, "", f"{entry.role}: {entry.label}")
    name = _cut(relative.model or relative.kind or "removed")
    state = str(relative.state) if relative.state is not None else ""
    label = f"{GLYPHS.get(state, '–')} {name} {short_id(relative.job_id)}"
    return Box(
        x, y, relative.job_id if state else "", label, state, f"{entry.role}: {label}, {state or 'removed'}"
    )


def _cut(name: str) -> str:
    name = visible(name)
    return name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…"


def summary(states: dict[str, int]) -> str:
    """“3 failed, 12 queued and 400 done”."""
    order: Sequence[str] = list(GLYPHS)
    known = sorted(states.items(), key=lambda each: order.index(each[0]) if each[0] in order else len(order))
    return ", ".join(f"{number(count)} {state}" for state, count in known)
