"""Tables that hold: at any width nothing runs over the edge, and nothing is cut that cannot be done without.

What does not fit beside the rest stands below its row, named. Pure: text in, lines out.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rich.cells import cell_len, chop_cells

GAP = "  "
INDENT = "    "
BETWEEN = " · "
# As narrow as a column of names or lists is made before it goes below.
NARROWEST = 12
# How much of a remark is shown below its row, in lines.
REMARK_LINES = 2
_BREAKS = re.compile(r"\s+")

BOLD = "1"
RESET = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    # What comes between `ESC [` and `m`.
    style: str = ""


@dataclass(frozen=True)
class Column:
    name: str
    # Folded where it is too wide: names, lists. What is not is ids, states, numbers and moments.
    folds: bool = False
    # Somebody's words: cut when they are long, for `get` or `show` has them all.
    remark: bool = False
    cells: list[Cell] = field(default_factory=list)

    @cached_property
    def natural(self) -> int:
        return max(self.titled, *(cell_len(cell.text) for cell in self.cells))

    @property
    def with_title(self) -> int:
        return max(self.natural, cell_len(self.name))

    @property
    def titled(self) -> int:
        """A title of several words stands on several lines."""
        return max(map(cell_len, self.name.split()), default=0)

    @property
    def narrowest(self) -> int:
        return min(self.natural, max(NARROWEST, self.titled)) if self.folds else self.natural


def one_line(text: str) -> str:
    return _BREAKS.sub(" ", text).strip()


def painted(text: str, style: str, colours: bool) -> str:
    return f"\x1b[{style}m{text}{RESET}" if colours and style and text else text


def cut(text: str, width: int) -> str:
    """One line that does not run over the edge."""
    return text if cell_len(text) <= width else chop_cells(text, max(1, width - 1))[0] + "…"


def lines_of(columns: Sequence[Column], width: int | None, colours: bool) -> list[str]:
    """The table; without a width each row is one line, however long."""
    beside, below = _placed(columns, width)
    widths = _widths(beside, width)
    lines = _row([Cell(column.name, BOLD) for column in beside], widths, colours, bottom=True)
    for number in range(len(columns[0].cells)):
        lines += _row([column.cells[number] for column in beside], widths, colours)
        lines += _beneath(below, number, width or 0)
    return lines


def _placed(columns: Sequence[Column], width: int | None) -> tuple[list[Column], list[Column]]:
    """Those beside each other, and those below: first the remarks, then whatever comes last."""
    beside = list(columns)
    if width is None or _room(beside, [column.natural for column in beside]) <= width:
        return beside, []
    below = [column for column in beside if column.remark]
    beside = [column for column in beside if not column.remark] or [below.pop(0)]
    while len(beside) > 1 and _room(beside, [column.narrowest for column in beside]) > width:
        below.insert(0, beside.pop())
    return beside, below


def _room(columns: Sequence[Column], widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(columns) - 1)


def _widths(columns: Sequence[Column], width: int | None) -> list[int]:
    """What is left over goes to those that fold, to the narrow ones first."""
    whole = [column.with_title for column in columns]
    if width is None or _room(columns, whole) <= width:
        return whole
    natural = [column.natural for column in columns]
    if _room(columns, natural) <= width:
        return natural
    widths = [column.narrowest for column in columns]
    spare = width - _room(columns, widths)
    wanting = sorted((place for place, column in enumerate(columns) if column.folds), key=natural.__getitem__)
    for count, place in enumerate(wanting):
        more = min(natural[place] - widths[place], max(0, spare) // (len(wanting) - count))
        widths[place] += more
        spare -= more
    # Only the very first column is ever wider than the screen.
    return [min(each, width) for each in widths]


def _row(cells: Sequence[Cell], widths: Sequence[int], colours: bool, *, bottom: bool = False) -> list[str]:
    folded = [folded_into(cell.text, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, folded))
    if bottom:
        folded = [[""] * (height - len(each)) + each for each in folded]
    lines = []
    for number in range(height):
        parts = []
        for cell, texts, width in zip(cells, folded, widths, strict=True):
            text = texts[number] if number < len(texts) else ""
            parts.append(painted(text, cell.style, colours) + " " * (width - cell_len(text)))
        lines.append(GAP.join(parts).rstrip())
    return lines


def _beneath(columns: Sequence[Column], number: int, width: int) -> list[str]:
    named = [
        f"{column.name} {column.cells[number].text}"
        for column in columns
        if column.cells[number].text and not column.remark
    ]
    room = max(1, width - len(INDENT))
    lines = folded_into(BETWEEN.join(named), room) if named else []
    for column in columns:
        if column.remark and column.cells[number].text:
            lines += _first(folded_into(column.cells[number].text, room), REMARK_LINES, room)
    return [INDENT + line for line in lines]


def _first(lines: list[str], most: int, width: int) -> list[str]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], chop_cells(lines[most - 1], max(1, width - 1))[0] + "…"]


def folded_into(text: str, width: int) -> list[str]:
    """Lines no wider than this, broken between words, and within those that are wider by themselves."""
    if cell_len(text) <= width:
        return [text]
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if cell_len(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        # A character may be wider than the column: there is no way to break that.
        *whole, line = chop_cells(word, max(2, width)) or [""]
        lines += whole
    return [*lines, line]
