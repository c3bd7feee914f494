"""Tables for people, JSON for machines. Data goes to stdout, everything said about it to stderr."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from foreman_client.wire import encode_for_people

# Piped into a file or another program there is no screen to fit into.
PIPED_WIDTH = 240

STATE_STYLES = {
    "queued": "cyan",
    "loading": "yellow",
    "working": "blue",
    "done": "green",
    "failed": "bold red",
    "cancelled": "magenta",
    "expired": "red",
    "skipped": "dim",
    "stale": "dim red",
    "dismissed": "dim",
}


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
    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)
        self.notes = Console(stderr=True, highlight=False)

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
        self.console.file.write(plain(text))
        self.console.file.flush()

    def note(self, text: str) -> None:
        """For the person in front of it; never in the way of the data."""
        self.notes.print(text, soft_wrap=True)

    def said(self, answer: Any, words: str) -> None:
        """What was done, in words; for machines, what the server answered."""
        self.json(answer) if self.as_json else self.text(words)

    def line(self, answer: Any, words: str) -> None:
        """The same for one of several things."""
        self.json_line(answer) if self.as_json else self.text(words)

    def thing(self, answer: Mapping[str, Any]) -> None:
        """One thing, as the server tells it."""
        self.json(answer) if self.as_json else self.fields(answer.items())

    def rows(self, answer: Any, rows: Sequence[Mapping[str, Any]], columns: str, *, empty: str) -> None:
        """A table of these columns, of those among them that any row has; for machines, the whole answer."""
        if self.as_json:
            self.json(answer)
            return
        if not rows:
            self.note(empty)
            return
        present = [name for name in columns.split() if any(row.get(name) is not None for row in rows)]
        shown = present or list(rows[0])
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in shown:
            table.add_column(name.replace("_", " "), no_wrap=name.endswith("id"), overflow="fold")
        for row in rows:
            table.add_row(*(cell(name, row.get(name)) for name in shown))
        self.console.print(table)

    def fields(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """One thing, a line per field; what it does not have is left out."""
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in pairs:
            if value not in (None, "", {}, [], ()):
                table.add_row(Text(plain(name.replace("_", " "))), cell(name, value))
        self.console.print(table)


def cell(name: str, value: Any) -> Text:
    if name == "state":
        return Text(plain(str(value)), style=STATE_STYLES.get(str(value), ""))
    if value is not None and (name.endswith("_at") or name in {"deadline", "last_used", "last_seen"}):
        return Text(plain(ago(value)))
    return Text(plain(_words(value)))


def _words(value: Any) -> str:
    match value:
        case None | bool():
            return {None: "", True: "yes", False: "no"}[value]
        case float():
            return f"{value:.3f}".rstrip("0").rstrip(".")
        case dict() if not any(isinstance(each, (dict, list)) for each in value.values()):
            return ", ".join(f"{key}={_words(each)}" for key, each in value.items())
        case list() if all(isinstance(each, str) for each in value):
            return ", ".join(value)
        case dict() | list():
            return encode_for_people(value)
    return str(value)


def ago(value: datetime | str) -> str:
    """'12 s ago', 'in 5 min': what people want to know of a time."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return str(value)
    seconds = (datetime.now(UTC) - moment.astimezone(UTC)).total_seconds()
    return f"in {duration(-seconds)}" if seconds < -1 else f"{duration(max(0.0, seconds))} ago"


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def rows_in(answer: Any, name: str) -> list[dict[str, Any]]:
    """The list in an answer such as {"queues": […]}."""
    found = answer.get(name) if isinstance(answer, dict) else answer
    return found if isinstance(found, list) else []
