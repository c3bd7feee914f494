"""A job as it happens: its events as text, progress and states; polled, where there is no event log."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import foreman_client as fc
from app.cli.output import Output, plain
from app.cli.session import Session
from app.cli.times import exact

POLL_HOLD_SECONDS = 1.0


def events_of(session: Session, job_id: str) -> Iterator[fc.Event]:
    """All events of a job until it ends."""
    try:
        yield from session.foreman.events(job_id)
    except fc.NotFound:
        # The job or the route? The next line says it, if it is the job.
        session.foreman.get(job_id)
    else:
        return
    yield from _polled(session.foreman, job_id)


def _polled(foreman: "fc.Foreman", job_id: str) -> Iterator[fc.Event]:
    state, progress = None, None
    while True:
        job = foreman.get(job_id, hold_seconds=POLL_HOLD_SECONDS if state else 0.0)
        if job.progress and job.progress != progress:
            progress = job.progress
            yield fc.Event(job.seq, "progress", job.state, data=job.raw["progress"])
        if job.state != state:
            if job.text:
                yield fc.Event(job.seq, "output", job.state, data=job.text)
            state = job.state
            yield fc.Event(job.seq, state, state, job.reason)
        if job.terminal:
            return


def follow(session: Session, job_id: str) -> fc.Job:
    """Text to stdout as it is made, states and progress beside it; the ended job, or its error."""
    return _followed_as_json(session, job_id) if session.out.as_json else _followed(session, job_id)


def _followed(session: Session, job_id: str) -> fc.Job:
    out = session.out
    # First of all: the screen takes its time to load, and whoever is impatient is told as well.
    with detachable(out, job_id):
        screen = _Screen(out)
        with screen:
            for event in events_of(session, job_id):
                screen.show(event)
        job = session.foreman.get(job_id)
    if not screen.wrote_text and job.state == "done" and job.result is not None:
        show_result(out, job)
    return job.raise_unless_done()


def _followed_as_json(session: Session, job_id: str) -> fc.Job:
    """A line for each event, and the last of them with what came of it: an answer need not come in pieces."""
    out = session.out
    last = None
    with detachable(out, job_id):
        for event in events_of(session, job_id):
            if last is not None:
                out.json_line(event_line(last))
            # Only the one that may be the last is held back: a word is told when it comes.
            last = event if event.terminal else None
            if last is None:
                out.json_line(event_line(event))
        job = session.foreman.get(job_id)
    if last is not None:
        out.json_line({**event_line(last), **_outcome(job)})
    return job.raise_unless_done()


def _outcome(job: fc.Job) -> dict[str, Any]:
    outcome = {"result": job.result, "text": job.text, "error": job.raw.get("error")}
    return {name: value for name, value in outcome.items() if value is not None}


def show_result(out: Output, job: fc.Job) -> None:
    """What a model said bare, so that it can be piped; anything else as JSON."""
    out.text(job.text) if job.text is not None else out.json(job.result)


@contextmanager
def detachable(out: Output, job_id: str) -> Iterator[None]:
    """Ctrl-C leaves the job alone and says how to come back to it."""
    try:
        yield
    except KeyboardInterrupt:
        out.note(
            f"\nDetached; the job goes on. Attach again: foreman watch {job_id}\n"
            f"                                Stop it: foreman cancel {job_id}"
        )
        raise


class _Screen:
    """A spinner or bar on stderr until text comes; text goes to stdout bare, so that it can be piped."""

    def __init__(self, out: Output) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._out = out
        self.wrote_text = False
        self._attempt: int | None = None
        self._ends_line = True
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[counted]}"),
            TimeElapsedColumn(),
            console=out.notes,
            transient=True,
            disable=not out.notes.is_terminal,
        )
        self._task = self._bar.add_task("queued", total=None, counted="")

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        if not self._ends_line:
            self._out.text("\n")

    def show(self, event: fc.Event) -> None:
        if text := event.text:
            self._bar.stop()
            self._note_new_attempt(event)
            self._out.piece(text)
            self.wrote_text = True
            self._ends_line = text.endswith("\n")
        elif event.type == "progress":
            said = event.data or {}
            completed, total = bar_of(said)
            self._bar.update(self._task, completed=completed, total=total, counted=counted(said))
            if message := said.get("message") or said.get("step"):
                self._bar.update(self._task, description=_shown(message))
        elif event.type == "log":
            for line in log_lines(event):
                self._bar.console.print(plain(line), soft_wrap=True, markup=False)
        elif event.state and event.type == event.state:
            self._bar.update(self._task, description=_shown(f"{event.state} {_reason(event)}".strip()))

    def _note_new_attempt(self, event: fc.Event) -> None:
        """What a failed attempt has said stands on the screen; the next one starts over."""
        attempt = event.data.get("attempt") if isinstance(event.data, dict) else None
        if self.wrote_text and attempt != self._attempt:
            self._out.piece("\n")
            self._out.aside(f"starting over: attempt {attempt}")
        self._attempt = attempt


def _shown(said: object) -> str:
    """For places where rich looks for its own markup."""
    from rich.markup import escape

    return escape(plain(str(said)))


def _reason(event: fc.Event) -> str:
    """Why, where it is not just the name of the transition."""
    data = event.data if isinstance(event.data, dict) else {}
    return f"({data['reason']})" if data.get("reason") else ""


def bar_of(progress: dict[str, Any]) -> tuple[float | None, float | None]:
    """Completed and total for a progress bar, as far as the job said."""
    if progress.get("total"):
        return float(progress.get("current") or 0), float(progress["total"])
    if progress.get("fraction") is not None:
        return float(progress["fraction"]) * 100, 100.0
    return None, None


def counted(progress: dict[str, Any]) -> str:
    current, total, fraction = (progress.get(name) for name in ("current", "total", "fraction"))
    if total:
        return f"{current or 0:g}/{total:g}"
    return f"{fraction:.0%}" if fraction is not None else ""


def log_lines(event: fc.Event) -> Iterator[str]:
    data = event.data if isinstance(event.data, dict) else {"message": event.data}
    for entry in data.get("entries") or [data]:
        at = entry.get("at") or event.at
        level = str(entry.get("level", "info")).upper()
        yield f"{exact(at) if at else ''} {level:5} {entry.get('message', '')}"


def event_line(event: fc.Event) -> dict[str, Any]:
    """An event as the wire has it; one that is a piece of an answer says the piece in `text`."""
    line = {**asdict(event), "at": event.at.isoformat() if event.at else None}
    return {**line, "text": event.text} if event.type == "output" else line
