"""The lines of a batch: from the bytes of a file to jobs, or to words for what is wrong with each. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import orjson

from app.dialects import DIALECTS
from app.dialects.models import model_key
from app.dialects.protocol import Dialect
from app.dialects.runner import RunnerOptions
from app.dialects.shapes import Kind
from app.errors import InvalidRequest
from app.jobs import verbatim
from app.jobs.lanes import BATCH_LINES
from app.jobs.submission import TEN_YEARS, Extensions, NewJob, new_job, shown

MAX_LINES = 50_000
MAX_CUSTOM_ID = 512
# Behind everything else: nobody waits on the line for it.
PRIORITY = -100
# Under which piece of metadata a line's own name stands.
CUSTOM_ID = "custom_id"
_MEMBERS = ("custom_id", "method", "url", "body")
# What a line is made of beside its body; it may be so much longer than the largest body.
ENVELOPE_BYTES = 8 * 1024
_BLANK = b" \t\r"


class Endpoint(NamedTuple):
    """What the lines of a batch ask for."""

    path: str
    kind: Kind
    dialect: Dialect


# The surfaces whose calls may be the lines of a batch.
_SURFACES = ("openai", "responses")
ENDPOINTS: dict[str, Endpoint] = {
    path: Endpoint(path, kind, DIALECTS[name])  # type: ignore[arg-type]  # the keys of `paths` are kinds
    for name in _SURFACES
    if name in DIALECTS
    for kind, path in DIALECTS[name].paths.items()
}

_WINDOW = re.compile(
    r"(?:(?P<d>\d{1,6})d)?(?:(?P<h>\d{1,6})h)?(?:(?P<m>\d{1,8})m)?(?:(?P<s>\d{1,10})s)?\Z", re.ASCII
)
_UNIT_SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}


def window_seconds(window: str) -> float | None:
    """How long `24h`, `90s` or `1d12h` is; None for anything else."""
    found = _WINDOW.match(window)
    if found is None:
        return None
    seconds = sum(int(number) * _UNIT_SECONDS[unit] for unit, number in found.groupdict("0").items())
    return float(seconds) if 0 < seconds <= TEN_YEARS else None


@dataclass(frozen=True, slots=True)
class LineError:
    """What is wrong with one line, or with the file as a whole: then it has no number."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class WrongLineError(Exception):
    """Raised with what is wrong with a line."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class Line(NamedTuple):
    """A line that can be run."""

    custom_id: str
    model: str
    options: RunnerOptions | None
    body: bytes

    def as_job(self, endpoint: Endpoint, parent_id: str, tenant: str) -> NewJob:
        fields = Extensions(kind=endpoint.kind, queue=BATCH_LINES, priority=PRIORITY, parent_id=parent_id)
        metadata = orjson.dumps({CUSTOM_ID: self.custom_id}).decode()
        job = new_job(tenant, fields, self.body.decode(), self.model, self.options, metadata=metadata)
        job.dialect = endpoint.dialect.name
        return job

    @property
    def group(self) -> str:
        """Equal for lines that can be served one after the other without loading anything in between."""
        return f"{model_key(self.model)}\0{self.options}"


def read_line(line: bytes, endpoint: Endpoint, max_depth: int) -> Line:
    """Raises WrongLineError."""
    try:
        members = verbatim.members(line, max_depth)
    except InvalidRequest as problem:
        raise WrongLineError("invalid_json_line", problem.detail.replace("The body", "The line")) from None
    for name in _MEMBERS:
        if name not in members:
            raise WrongLineError("missing_required_parameter", f"{name} is missing.", name)
    for name in members:
        if name not in _MEMBERS:
            raise WrongLineError(
                "unknown_parameter", f"{shown(name)} is not a member of a line.", shown(name)
            )
    custom_id = _custom_id(members["custom_id"])
    if _text(members["method"]) != "POST":
        raise WrongLineError("invalid_method", "method must be POST.", "method")
    if _text(members["url"]) != endpoint.path:
        raise WrongLineError("invalid_url", f"url must be the batch's endpoint, {endpoint.path}.", "url")
    body = bytes(members["body"])
    if not body.startswith(b"{"):
        raise WrongLineError("invalid_request", "body must be an object.", "body")
    try:
        asked = endpoint.dialect.read_body(endpoint.kind, body)
    except InvalidRequest as problem:
        raise WrongLineError("invalid_request", f"body: {problem.detail}", "body") from None
    if asked.stream:
        raise WrongLineError("invalid_request", "body.stream must not be true in a batch.", "body.stream")
    return Line(custom_id, asked.model, asked.runner_options, body)


def _custom_id(raw: msgspec.Raw) -> str:
    given = _text(raw)
    if given is None or not 1 <= len(given) <= MAX_CUSTOM_ID or "\0" in given:
        words = f"custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters."
        raise WrongLineError("invalid_custom_id", words, "custom_id")
    return given


def _text(raw: msgspec.Raw) -> str | None:
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.MsgspecError:
        return None


class RawLine(NamedTuple):
    """A line as it stands in the file; one that is too long is not kept."""

    number: int
    offset: int
    length: int
    data: bytes | None


class LineSplitter:
    """Takes a file piece by piece and gives its lines, holding no more than one of them."""

    def __init__(self, max_line_bytes: int) -> None:
        self._most = max_line_bytes
        self._begun = bytearray()
        self._length = 0
        self._offset = 0
        self._number = 0

    def feed(self, piece: bytes) -> list[RawLine]:
        """The lines that end in this piece; blank ones are counted, but not given."""
        found = []
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            found += self._end(piece[start:end], 1)
            start = end + 1
        self._take(piece[start:])
        return found

    def rest(self) -> list[RawLine]:
        """The last line, where no line break follows it."""
        return self._end(b"", 0) if self._length else []

    def _take(self, part: bytes) -> None:
        self._length += len(part)
        if self._length <= self._most:
            self._begun += part
        else:
            self._begun.clear()

    def _end(self, part: bytes, line_break: int) -> list[RawLine]:
        self._take(part)
        self._number += 1
        data = bytes(self._begun) if self._length <= self._most else None
        line = RawLine(self._number, self._offset, self._length, data)
        self._offset += self._length + line_break
        self._begun.clear()
        self._length = 0
        return [] if data is not None and not data.strip(_BLANK) else [line]


class Place(NamedTuple):
    """Where a line that was found good lies, and with which others it is run."""

    group: int
    number: int
    offset: int
    length: int


class Checker:
    """Looks at all lines of a file, one after the other, and remembers where the good ones lie."""

    def __init__(self, endpoint: Endpoint, max_depth: int, max_line_bytes: int) -> None:
        self._endpoint = endpoint
        self._max_depth = max_depth
        self._splitter = LineSplitter(max_line_bytes)
        self._max_line_bytes = max_line_bytes
        self._seen: dict[str, int] = {}
        self._groups: dict[str, int] = {}
        self._lines = 0
        self.places: list[Place] = []
        self.errors: list[LineError] = []

    @property
    def is_over(self) -> bool:
        """There are too many: nobody looks any further."""
        return self._lines > MAX_LINES

    def feed(self, piece: bytes) -> None:
        self._look(self._splitter.feed(piece))

    def end(self) -> None:
        self._look(self._splitter.rest())
        if self.is_over:
            self.errors = [LineError("too_many_lines", f"A batch may have at most {MAX_LINES} lines.")]
        elif not self._lines:
            self.errors = [LineError("empty_file", "The input file has no lines.")]

    def grouped(self) -> list[Place]:
        """The good lines in the order in which they are run: group by group, as each first appears."""
        return sorted(self.places)

    def _look(self, lines: list[RawLine]) -> None:
        for line in lines:
            self._lines += 1
            if self.is_over:
                return
            try:
                self._check(line)
            except WrongLineError as wrong:
                self.errors.append(LineError(wrong.code, str(wrong), line.number, wrong.param))

    def _check(self, line: RawLine) -> None:
        if line.data is None:
            raise WrongLineError(
                "line_too_long", f"A line may have at most {self._max_line_bytes} bytes, this one has more."
            )
        read = read_line(line.data, self._endpoint, self._max_depth)
        first = self._seen.setdefault(read.custom_id, line.number)
        if first != line.number:
            words = f"custom_id {shown(read.custom_id)} is that of line {first} already."
            raise WrongLineError("duplicate_custom_id", words, "custom_id")
        group = self._groups.setdefault(read.group, len(self._groups))
        self.places.append(Place(group, line.number, line.offset, line.length))


class Span(NamedTuple):
    """Lines that lie so near to each other that they are read in one go."""

    offset: int
    length: int
    places: tuple[Place, ...]


def spans(places: Sequence[Place], gap: int, most: int) -> list[Span]:
    """Those of a chunk; what lies between two of them is read over if it is no more than `gap` bytes."""
    found: list[list[Place]] = []
    for place in sorted(places, key=lambda each: each.offset):
        if found:
            first, last = found[-1][0], found[-1][-1]
            end = place.offset + place.length
            if place.offset - (last.offset + last.length) <= gap and end - first.offset <= most:
                found[-1].append(place)
                continue
        found.append([place])
    return [
        Span(group[0].offset, group[-1].offset + group[-1].length - group[0].offset, tuple(group))
        for group in found
    ]


def chunks(places: list[Place], most: int, most_bytes: int) -> list[list[Place]]:
    """In their order, so many at a time: what one commit takes in."""
    found: list[list[Place]] = []
    size = 0
    for place in places:
        if not found or len(found[-1]) == most or size + place.length > most_bytes:
            found.append([])
            size = 0
        found[-1].append(place)
        size += place.length
    return found
