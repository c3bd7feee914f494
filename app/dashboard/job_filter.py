"""Which jobs an address asks for: filters that are the URL, and what is said of those that make no sense."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from app.api.job_parameters import METADATA, decode_cursor, moment_of, prefix_of
from app.api.operator_documents import JobFilter
from app.errors import InvalidRequest
from app.jobs.ids import is_id
from app.jobs.lanes import BUILTIN_KINDS, LLM_KINDS
from app.jobs.states import State
from app.jobs.submission import shown
from app.store.read import Filter

Pair = tuple[str, str]

# In the order in which they are shown.
NAMES = ("q", "state", "queue", "kind", "model", "error", "worker", "id_prefix", "since", "until")
# More than any question has; each takes part in the address of every chip.
MAX_PAIRS = 50
# Two fields of a form that become one filter.
KEY_FIELD, VALUE_FIELD = "metadata_key", "metadata_value"
_AGE = re.compile(r"(\d{1,6})\s*(s|min|m|h|d|w)")
_UNIT_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
# Ids begin so until 2039: shorter than this, or without it, a word is a kind or a model.
_ID_WORD = re.compile(r"01[0-9A-HJKMNP-TV-Z]{2,24}", re.ASCII | re.IGNORECASE)


@dataclass(slots=True)
class Asked:
    """What an address asks for."""

    # As they were written, those that count.
    pairs: list[Pair] = field(default_factory=list)
    filter: Filter = field(default_factory=Filter)
    # What is not followed, and why.
    problems: list[str] = field(default_factory=list)
    # Some name nothing: the address says the same without them.
    has_blanks: bool = False
    # Of the search: a whole id, or a word that may be a kind or a model.
    job_id: str | None = None
    word: str | None = None

    def all(self, name: str) -> list[str]:
        return [value for each, value in self.pairs if each == name]

    def first(self, name: str) -> str:
        return next(iter(self.all(name)), "")

    @property
    def metadata(self) -> list[Pair]:
        return [(name.removeprefix(METADATA), value) for name, value in self.pairs if _is_metadata(name)]

    @property
    def can_be_bulk(self) -> bool:
        """Whether an operation on all that match would do what it seems to."""
        return not self.problems and self.job_id is None


def parse(query: Iterable[Pair], now: datetime, others: frozenset[str] = frozenset()) -> Asked:
    """`others` are the names that the page itself knows."""
    asked = Asked()
    given = list(query)
    if len(given) > MAX_PAIRS:
        asked.problems.append(f"There are more than {MAX_PAIRS} filters: those beyond are left out.")
        given = given[:MAX_PAIRS]
    key = next((value for name, value in given if name == KEY_FIELD), "").strip()
    for name, value in given:
        if name in others or name == KEY_FIELD:
            continue
        if not value.strip() or (name == VALUE_FIELD and not key):
            asked.has_blanks = True
        elif "\0" in name or "\0" in value:
            asked.problems.append(f"{_said(name)} has a NUL character, and no job has that: it is left out.")
        elif name == VALUE_FIELD:
            asked.has_blanks = True
            _take(asked, METADATA + key, value, now)
        else:
            # Several states may stand in one, as for the API.
            for each in value.split(",") if name == "state" else [value]:
                _take(asked, name, each, now)
    if key and not any(name == VALUE_FIELD and value.strip() for name, value in given):
        asked.problems.append(f"Which value of the metadata “{_said(key)}”? Give both.")
    asked.pairs.sort(key=lambda pair: NAMES.index(pair[0]) if pair[0] in NAMES else len(NAMES))
    return asked


def _take(asked: Asked, name: str, value: str, now: datetime) -> None:
    if name not in NAMES and not _is_metadata(name):
        asked.problems.append(f"“{_said(name)}” is not a filter that jobs have: it is left out.")
        return
    try:
        _follow(asked, name, value.strip(), now)
    except InvalidRequest as problem:
        message = problem.extra.get("errors", [{"message": problem.detail}])[0]["message"]
        asked.problems.append(f"{name}={_said(value)} {message}: it is left out.")
        return
    # As often as it stands there, but for those that there may be several of, the last one counts.
    if name != "state":
        asked.pairs = [pair for pair in asked.pairs if pair[0] != name]
    if (name, value) not in asked.pairs:
        asked.pairs.append((name, value.strip()))


def _follow(asked: Asked, name: str, value: str, now: datetime) -> None:
    wanted = asked.filter
    match name:
        case "q":
            _search(asked, value)
        case "state":
            if value not in set(State):
                raise InvalidRequest(f"is none of the states {', '.join(State)}")
            wanted.states = [*wanted.states, State(value)]
        case "since":
            wanted.since = moment(name, value, now)
        case "until":
            wanted.until = moment(name, value, now)
        case "id_prefix":
            wanted.id_prefix = prefix_of(name, value)
        case "queue" | "kind" | "model" | "error" | "worker":
            setattr(wanted, name, value)
        case _:
            wanted.metadata[name.removeprefix(METADATA)] = value


def moment(name: str, given: str, now: datetime) -> datetime | None:
    """A moment, or how long ago: 15min, 1h, 7d."""
    age = _AGE.fullmatch(given)
    if age is None:
        try:
            return moment_of(name, given)
        except InvalidRequest as problem:
            raise InvalidRequest("is neither a time (2026-01-31T12:00:00Z) nor an age (1h, 7d)") from problem
    try:
        return now - timedelta(seconds=int(age[1]) * _UNIT_SECONDS[age[2]])
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def _search(asked: Asked, text: str) -> None:
    """What can be looked up: an id or its beginning, metadata as key=value, and one kind or model."""
    for word in _words(text):
        key, separator, value = word.partition("=")
        if separator and key:
            asked.filter.metadata[key] = value
        elif is_id(word.upper()):
            asked.job_id = word.upper()
        elif _ID_WORD.fullmatch(word):
            asked.filter.id_prefix = word.upper()
        elif asked.word is not None:
            asked.problems.append(f"One kind or model at a time: “{_said(word)}” is left out.")
        elif word in LLM_KINDS or word in BUILTIN_KINDS:
            asked.word = asked.filter.kind = word
        else:
            asked.word = word


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        # A quote that is not closed.
        return text.split()


def _is_metadata(name: str) -> bool:
    return name.startswith(METADATA) and name != METADATA


def _said(text: str) -> str:
    return shown(text.replace("\0", "␀"))


def address(path: str, pairs: Sequence[Pair], **more: str) -> str:
    query = urlencode([*pairs, *((name, value) for name, value in more.items() if value)])
    return f"{path}?{query}" if query else path


def pairs_of(wanted: Filter) -> list[Pair]:
    """The same filter with nothing relative in it, as it is handed from page to page."""
    given = [
        *(("state", str(state)) for state in wanted.states),
        ("queue", wanted.queue),
        ("kind", wanted.kind),
        ("model", wanted.model),
        ("error", wanted.error),
        ("worker", wanted.worker),
        ("id_prefix", wanted.id_prefix),
        ("since", _written(wanted.since)),
        ("until", _written(wanted.until)),
        *((METADATA + name, value) for name, value in wanted.metadata.items()),
    ]
    return [(name, value) for name, value in given if value is not None]


def document_of(wanted: Filter) -> JobFilter:
    """As bulk operations are asked for it."""
    return JobFilter(
        state=[str(state) for state in wanted.states] or None,
        queue=wanted.queue,
        kind=wanted.kind,
        model=wanted.model,
        error=wanted.error,
        worker=wanted.worker,
        id_prefix=wanted.id_prefix,
        since=_written(wanted.since),
        until=_written(wanted.until),
        metadata=wanted.metadata or None,
    )


def _written(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def cursor_of(asked: Asked, given: str) -> str | None:
    """The id before which the page begins."""
    if not given:
        return None
    try:
        before = decode_cursor(given)
    except InvalidRequest:
        before = ""
    if is_id(before):
        return before
    asked.problems.append("The place to go on from is not one of ours: these are the newest.")
    return None
