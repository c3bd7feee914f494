"""What became of a job over time: one bar for each time that it was claimed, all of them to the same scale.

Pure: from the events of a job to the bars of a drawing, in percent of its width. Times are the log's; what is
still going on reaches to the moment of the drawing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from app.dashboard.words import counted, duration, exact
from app.dialects.shapes import as_dict
from app.jobs.states import RUNNING, TERMINAL, State, Verb
from app.store.events import Event

# As many as can be read; the log has the others.
MAX_RUNS = 12
# What is drawn is at least that wide, in percent: a sliver can still be pointed at.
LEAST_WIDTH = 0.5
MAX_MARKS = 40
_TICKS = 5
_STEPS = (
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    20,
    30,
    60,
    120,
    300,
    600,
    1200,
    1800,
    3600,
    7200,
    14_400,
    21_600,
    43_200,
    86_400,
)

# A wait that nobody could have shortened: it is drawn as a gap.
GAP = "gap"


@dataclass(slots=True)
class Part:
    """A piece of a bar. What it is, from when to when, and that in words."""

    kind: str
    begins: datetime
    ends: datetime
    words: str
    # In percent of the drawing.
    x: float = 0.0
    width: float = 0.0

    @property
    def seconds(self) -> float:
        return max(0.0, (self.ends - self.begins).total_seconds())


@dataclass(slots=True)
class Mark:
    """Something that happened at one moment."""

    at: datetime
    kind: str
    words: str
    x: float = 0.0


@dataclass(slots=True)
class Run:
    """From when it began to wait to the end of one attempt, or to now."""

    parts: list[Part] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    # Its number; None while it has not been claimed.
    attempt: int | None = None
    worker: str | None = None
    # The state that it ended in, or is in; and how that came about.
    state: str = State.QUEUED
    verb: str | None = None
    error: str = ""

    @property
    def begins(self) -> datetime:
        return self.parts[0].begins

    @property
    def told(self) -> list[Part]:
        """What the words beside the bar tell of it: not what lies within another part."""
        return [part for part in self.parts if part.kind not in INSIDE and part.seconds >= 0.001]


@dataclass(slots=True)
class Tick:
    x: float
    label: str
    anchor: str = "middle"


@dataclass(slots=True)
class Timeline:
    runs: list[Run]
    ticks: list[Tick]
    # What came before the first bar, in words.
    earlier: str = ""


# What a target has spent its time on, within `working`.
INSIDE = ("prefill", "decode")

_WORDS = {State.QUEUED: "waited", State.LOADING: "loading", State.WORKING: "working"}
_VERBS = {
    "retry": "to be tried again",
    "defer": "put off",
    "release": "given back by its worker",
    "rescue": "taken from a worker that was lost",
    "fail": "failed",
    "complete": "done",
    "cancel": "cancelled",
    "expire": "expired",
    "supersede": "superseded",
    "skip": "skipped",
    "dismiss": "dismissed",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """What the run that made the job done spent its time on, as its target tells."""

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


def timeline(
    events: Sequence[Event],
    now: datetime,
    *,
    run_at: datetime | None = None,
    usage: Usage | None = None,
    most: int = MAX_RUNS,
) -> Timeline:
    """Of the last events of a job, in order. `run_at`: not before when it was to be claimed at first."""
    revived = max((event.seq for event in events if event.reason == Verb.REVIVE), default=0)
    # Attempts start over then, and the days that it lay there would make slivers of them.
    drawn = [event for event in events if event.seq >= revived]
    runs = _runs(drawn, now, run_at)
    shown = runs[-most:]
    if usage is not None:
        _look_inside(shown, usage)
    ends = max((part.ends for run in shown for part in run.parts), default=now)
    begins = min((run.begins for run in shown), default=now)
    _place(shown, begins, ends)
    ticks = list(_ticks((ends - begins).total_seconds()))
    return Timeline(shown, ticks, _earlier(len(runs) - len(shown), shown, drawn, is_revived=revived > 0))


def _runs(events: Sequence[Event], now: datetime, run_at: datetime | None) -> list[Run]:
    """Each begins with the wait for it."""
    runs: list[Run] = []
    marks: list[Mark] = []
    run, state, since = Run(), None, now
    # Until when nobody was to claim it.
    held: datetime | None = None
    for event in events:
        data = _data(event)
        if event.type != event.state or state in TERMINAL:
            marks.append(Mark(event.at, event.type, f"{event.type.replace('_', ' ')}, {exact(event.at)}"))
            continue
        if state is not None:
            _extend(run, State(state), since, event.at, held, is_over=True)
        if event.type == State.LOADING:
            run.attempt, run.worker = _number(data.get("attempt")), _text(data.get("worker"))
        elif event.type not in RUNNING and state is not None:
            run.state, run.verb, run.error = event.type, event.reason, _error(data)
            runs.append(run)
            run = Run()
        if event.type == State.QUEUED:
            held = run_at if event.reason == Verb.ENQUEUE else _moment(data.get("run_at"))
        state, since = event.type, event.at
    if state is not None and state not in TERMINAL:
        run.state = state
        _extend(run, State(state), since, now, held, is_over=False)
        runs.append(run)
    for mark in marks[-MAX_MARKS:]:
        _hang(mark, runs)
    return [each for each in runs if each.parts]


def _extend(
    run: Run, state: State, since: datetime, until: datetime, held: datetime | None, *, is_over: bool
) -> None:
    """The time between two changes, as a part of the bar; a wait as two: before it could end, and after."""
    until = max(since, until)
    if state is State.QUEUED and held is not None and held > since:
        turn = min(held, until)
        run.parts.append(_part(GAP, "held back", since, turn, is_over=is_over or turn < until))
        since = turn
        if turn == until:
            return
    run.parts.append(_part(state, _WORDS[state], since, until, is_over=is_over))


def _part(kind: str, words: str, since: datetime, until: datetime, *, is_over: bool) -> Part:
    lasted = duration((until - since).total_seconds())
    span = f"{_clock(since)} to {_clock(until)}" if is_over else f"since {_clock(since)}"
    return Part(kind, since, until, f"{words} {lasted}, {span} UTC")


def _clock(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3]


def outcome(run: Run) -> str:
    """How it went, in words."""
    return _VERBS.get(run.verb or "", "")


def _hang(mark: Mark, runs: Sequence[Run]) -> None:
    """On the bar of its time."""
    for run in reversed(runs):
        if run.parts and mark.at >= run.begins:
            run.marks.append(mark)
            return


def _earlier(left_out: int, shown: Sequence[Run], events: Sequence[Event], *, is_revived: bool) -> str:
    if is_revived and not left_out:
        return "What came before it was revived is not drawn."
    is_cut = bool(events) and not is_revived and events[0].seq > 1
    if not left_out and not is_cut:
        return ""
    first = next((run.attempt for run in shown if run.attempt is not None), None)
    if first is not None and first - 1 > left_out:
        return f"{counted(first - 1, 'earlier attempt')} {'is' if first == 2 else 'are'} not drawn."
    if is_cut:
        return "What came before is not drawn."
    return f"{counted(left_out, 'earlier run')} {'is' if left_out == 1 else 'are'} not drawn."


def _look_inside(runs: Sequence[Run], usage: Usage) -> None:
    """The answer was written at the end of the work, and its prompt read right before that."""
    for run in runs:
        if run.state != State.DONE or not run.parts or run.parts[-1].kind != State.WORKING:
            continue
        whole = run.parts[-1]
        ends = whole.ends
        for kind, words, seconds in (
            ("decode", "writing the answer", usage.decode_seconds),
            ("prefill", "reading the prompt", usage.prefill_seconds),
        ):
            begins = max(whole.begins, ends - timedelta(seconds=min(seconds, whole.seconds)))
            if begins < ends:
                run.parts.append(
                    Part(kind, begins, ends, f"{words} {duration((ends - begins).total_seconds())}")
                )
                ends = begins


def _place(runs: Sequence[Run], begins: datetime, ends: datetime) -> None:
    whole = max((ends - begins).total_seconds(), 0.001)

    def at(moment: datetime) -> float:
        return min(100.0, max(0.0, (moment - begins).total_seconds() / whole * 100))

    for run in runs:
        for part in run.parts:
            part.x = round(at(part.begins), 3)
            part.width = round(max(LEAST_WIDTH if part.seconds else 0.0, at(part.ends) - at(part.begins)), 3)
            part.x = min(part.x, 100 - part.width)
        for mark in run.marks:
            mark.x = round(at(mark.at), 3)


def _ticks(seconds: float) -> Iterator[Tick]:
    """A few round times, counted from the beginning of the drawing."""
    if seconds <= 0:
        return
    step = next((step for step in _STEPS if seconds / step <= _TICKS), None)
    if step is None:
        step = -(-seconds // (_TICKS * 86_400)) * 86_400
    yield Tick(0.0, "0", "start")
    number = 1
    while number * step <= seconds:
        x = round(number * step / seconds * 100, 3)
        yield Tick(x, duration(number * step), "end" if x > 95 else "middle")
        number += 1


def _data(event: Event) -> dict[str, Any]:
    """What the event says, whatever that is."""
    try:
        return as_dict(msgspec.json.decode(event.data)) if event.data else {}
    except msgspec.MsgspecError:
        return {}


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _moment(value: Any) -> datetime | None:
    """Infinity, for one, is no moment: nobody knows when."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None


def _error(data: dict[str, Any]) -> str:
    error = as_dict(data.get("error"))
    reason = _text(data.get("reason")) or ""
    return _text(error.get("message")) or _text(error.get("code")) or reason.replace("_", " ")
