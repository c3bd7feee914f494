"""Tables for people, JSON for machines. Data goes to stdout, everything said about it to stderr."""

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any

from app.cli import ids, table, times
from app.cli.table import Cell, Column
from foreman_client.wire import encode_for_people

if TYPE_CHECKING:
    from rich.console import Console

STATE_STYLES = {
    "queued": "36",
    "loading": "33",
    "working": "34",
    "done": "32",
    "failed": "1;31",
    "cancelled": "35",
    "expired": "31",
    "skipped": "2",
    "stale": "2;31",
    "dismissed": "2",
}
DIM = "2"
# Somebody's words, of any length.
REMARKS = frozenset({"note", "error", "last_error", "warning", "why"})
MOMENTS = frozenset({"deadline", "last_used", "last_seen", "reason_since"})
# Longer numbers are told by their size; --json has all digits.
MOST_DIGITS = 15
MANY = 10**MOST_DIGITS
WIDEST_LABEL = 24
# More of it is not shown in any table, and to lay it out would take its time.
LONGEST_REMARK = 1000
# Where what is left of the name would say something else.
LABELS = {"run_at": "due"}

# What makes a terminal do something: C0 but tab and line feed, DEL, C1 (an escape in one character), and what
# turns the direction of text around. Job data is other people's: it moves nobody's cursor and hides nothing.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Text as a terminal may be given it: each control character is shown as one that could not be."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def _dump(value: Any, indent: int | None = None) -> str:
    """JSON says the same with its control characters escaped, those included that it need not escape."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", encode_for_people(value, indent))


class Output:
    """`utc`: moments as they are, rather than how long ago they were."""

    def __init__(self, *, as_json: bool, utc: bool = False) -> None:
        self.as_json = as_json
        self.utc = utc

    @property
    def is_terminal(self) -> bool:
        return sys.stdout.isatty()

    @property
    def width(self) -> int | None:
        """Piped into a file or another program there is no screen to fit into."""
        return shutil.get_terminal_size().columns if self.is_terminal else None

    @cached_property
    def console(self) -> "Console":
        # Imported where something moves on the screen: it takes as long to load as all the rest.
        from rich.console import Console

        return Console(highlight=False)

    @cached_property
    def notes(self) -> "Console":
        from rich.console import Console

        return Console(stderr=True, highlight=False)

    def json(self, value: Any) -> None:
        sys.stdout.write(_dump(value, indent=2) + "\n")

    def json_line(self, value: Any) -> None:
        sys.stdout.write(_dump(value) + "\n")
        sys.stdout.flush()

    def text(self, text: str) -> None:
        text = plain(text)
        sys.stdout.write(text if text.endswith("\n") else text + "\n")

    def piece(self, text: str) -> None:
        """A part of a text that is still being made."""
        sys.stdout.write(plain(text))
        sys.stdout.flush()

    def note(self, text: str, style: str = "") -> None:
        """For the person in front of it; never in the way of the data."""
        sys.stdout.flush()
        sys.stderr.write(table.painted(plain(text), style, has_colours(sys.stderr)) + "\n")
        sys.stderr.flush()

    def aside(self, text: str) -> None:
        """The same, of what one may well not read."""
        self.note(text, DIM)

    def said(self, answer: Any, words: str) -> None:
        """What was done, in words; for machines, what the server answered."""
        self.json(answer) if self.as_json else self.text(words)

    def line(self, answer: Any, words: str) -> None:
        """The same for one of several things."""
        self.json_line(answer) if self.as_json else self.text(words)
        sys.stdout.flush()

    def thing(self, answer: Mapping[str, Any]) -> None:
        """One thing, as the server tells it."""
        self.json(answer) if self.as_json else self.fields(answer.items())

    def rows(self, answer: Any, rows: Sequence[Mapping[str, Any]], columns: str, *, empty: str) -> None:
        """A table of these columns, of those among them that any row has; for machines, the whole answer.

        The columns come in the order of their importance: the last are the first to go below the rows.
        """
        if self.as_json:
            self.json(answer)
        elif not rows:
            self.note(empty)
        else:
            self._lines(self.table(rows, columns))

    def table(self, rows: Sequence[Mapping[str, Any]], columns: str) -> list[str]:
        present = [name for name in columns.split() if any(_is_said(row.get(name)) for row in rows)]
        short = self._short(rows)
        made = [
            Column(
                label(name),
                folds=not _is_rigid(name, rows),
                remark=name in REMARKS,
                cells=[self._cell(name, row.get(name), short) for row in rows],
            )
            for name in present or list(rows[0])
        ]
        return table.lines_of(made, self.width, has_colours(sys.stdout))

    def _short(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        if not self.is_terminal:
            return {}
        return ids.shortened(
            value
            for row in rows
            for name, value in row.items()
            if name.endswith("_id") and isinstance(value, str)
        )

    def _cell(self, name: str, value: Any, short: Mapping[str, str]) -> Cell:
        words = self.words(name, value, brief=self.is_terminal)
        if self.is_terminal and name in REMARKS:
            words = words[:LONGEST_REMARK]
        text = table.one_line(plain(words))
        return Cell(short.get(text, text), STATE_STYLES.get(text, "") if name == "state" else "")

    def fields(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """One thing, a line per field; what it does not have is left out."""
        said = [(name, value) for name, value in pairs if value not in (None, "", {}, [], ())]
        labels = [plain(label(name)) for name, _ in said]
        beside = min(WIDEST_LABEL, max(map(len, labels), default=0)) + len(table.GAP)
        colours = has_colours(sys.stdout)
        width = self.width
        room = None if width is None else max(width - beside, 10)
        for named, (name, value) in zip(labels, said, strict=True):
            style = STATE_STYLES.get(str(value), "") if name == "state" else ""
            lines = plain(self.words(name, value)).splitlines()
            if room is not None:
                lines = [part for line in lines for part in table.folded_into(line.expandtabs(), room)]
            first = table.painted(named, table.BOLD, colours) + " " * (beside - len(named))
            for line in lines or [""]:
                sys.stdout.write(first + table.painted(line, style, colours) + "\n")
                first = " " * beside

    def _lines(self, lines: Iterable[str]) -> None:
        sys.stdout.writelines(f"{line}\n" for line in lines)

    def moment(self, moment: datetime | str) -> str:
        return times.exact(moment) if self.utc else times.ago(moment)

    def words(self, name: str, value: Any, *, brief: bool = False) -> str:
        """A value as people say it; `brief`: where there is little room for it."""
        if value is None or isinstance(value, bool):
            return {None: "", True: "yes", False: "no"}[value]
        if _is_moment(name) and isinstance(value, (str, datetime)):
            return self.moment(value)
        if isinstance(value, (int, float, Decimal)):
            if name.endswith("_seconds") and 0 <= value < MANY:
                return times.duration(float(value))
            return _number(value, brief=brief)
        match value:
            case dict() if not any(isinstance(each, (dict, list)) for each in value.values()):
                return ", ".join(
                    f"{key}={self.words('', each)}" for key, each in value.items() if each is not None
                )
            case list() if all(isinstance(each, str) for each in value):
                return ", ".join(value)
            case dict() | list():
                return encode_for_people(value)
        return str(value)


def has_colours(stream: IO[str]) -> bool:
    """https://no-color.org"""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def label(name: str) -> str:
    """`created_at` is when it was created; `oldest_queued_seconds` says its unit itself."""
    return LABELS.get(name) or name.removesuffix("_at").removesuffix("_seconds").replace("_", " ")


def _is_said(value: Any) -> bool:
    return value not in (None, "", [], {})


def _is_moment(name: str) -> bool:
    return name.endswith("_at") or name in MOMENTS


def _is_rigid(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """What would make no sense in two lines: ids, states, moments, numbers."""
    if name == "state" or _is_moment(name):
        return True
    values = [row.get(name) for row in rows]
    if name.endswith("_id"):
        return all(value is None or ids.is_whole(str(value)) for value in values)
    return all(value is None or isinstance(value, (bool, int, float, Decimal)) for value in values)


def _number(value: int | float | Decimal, *, brief: bool) -> str:
    size = abs(Decimal(value))
    if brief and size >= MANY and size.is_finite():
        return f"{Decimal(value):.2e}"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return str(value)


def rows_in(answer: Any, name: str) -> list[dict[str, Any]]:
    """The list in an answer such as {"queues": […]}."""
    found = answer.get(name) if isinstance(answer, dict) else answer
    return found if isinstance(found, list) else []
