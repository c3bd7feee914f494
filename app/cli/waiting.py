"""Waiting for a job: its id at once, why it waits in one line that changes, and in the end its result."""

import math
import os
import sys
import time
from typing import Any

import foreman_client as fc
from app.cli.live import counted, detachable, show_result
from app.cli.output import DIM, has_colours, plain
from app.cli.session import Session
from app.cli.table import cut, one_line, painted
from app.cli.times import ago, duration

# What ends at once is not explained; after that, how often one looks why.
PATIENCE_SECONDS = 1.0
LOOK_SECONDS = 2.0
# How long a server may be away that has answered before, and how soon it is asked again.
AWAY_SECONDS = 60.0
AGAIN_SECONDS = 1.0
USUAL_WIDTH = 80
ERASE = "\r\x1b[K"


def wait_for(session: Session, job_id: str, timeout: float | None) -> None:
    """Wait, and show the result; with --json the whole job, however it ended."""
    out = session.out
    reasons = _Reasons(session)
    try:
        with detachable(out, job_id), reasons:
            job = _ended(session, job_id, timeout, reasons)
        job.raise_unless_done()
    except fc.JobUnsuccessful as ended:
        if out.as_json:
            out.json(ended.job.raw)
        raise
    if out.as_json:
        out.json(job.raw)
    elif job.result is not None:
        show_result(out, job)


def _ended(session: Session, job_id: str, timeout: float | None, reasons: "_Reasons") -> fc.Job:
    begun = answered = time.monotonic()
    # One that has never answered is not waited for.
    job = session.foreman.get(job_id)
    hold = PATIENCE_SECONDS
    while not job.terminal:
        left = math.inf if timeout is None else timeout - (time.monotonic() - begun)
        if left <= 0:
            raise fc.WaitTimeout(f"job {job_id} is still {job.state} after {duration(timeout or 0)}")
        try:
            job = session.foreman.get(job_id, hold_seconds=min(left, hold))
            answered = time.monotonic()
        except (fc.Unreachable, fc.Unavailable, fc.RateLimited) as error:
            # The job goes on without us, and a server that is restarted comes back.
            if time.monotonic() - answered > AWAY_SECONDS:
                raise
            reasons.trouble(error)
            time.sleep(min(left, AGAIN_SECONDS))
        else:
            if not job.terminal and answered - begun >= PATIENCE_SECONDS:
                reasons.tell(job)
        hold = LOOK_SECONDS
    return job


class _Reasons:
    """On a terminal one line that changes; elsewhere a line for each new reason."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._live = sys.stderr.isatty()
        self._told: object = None
        # Whether the server can say more than the job itself does.
        self._explains = True

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._erase()

    def tell(self, job: fc.Job) -> None:
        self._show(*self._why(job))

    def trouble(self, error: Exception) -> None:
        self._show(type(error), one_line(plain(f"{error}; trying again")))

    def _show(self, reason: object, words: str) -> None:
        if self._live:
            # Cut at the edge: a line that has run over can no longer be taken back.
            # Some do not say how wide they are.
            width = os.get_terminal_size(sys.stderr.fileno()).columns or USUAL_WIDTH
            shown = cut(words, width - 1)
            sys.stderr.write(ERASE + painted(shown, DIM, has_colours(sys.stderr)))
            sys.stderr.flush()
        elif reason != self._told:
            self._session.out.note(words)
        self._told = reason

    def _erase(self) -> None:
        if self._live and self._told is not None:
            sys.stderr.write(ERASE)
            sys.stderr.flush()

    def _why(self, job: fc.Job) -> tuple[object, str]:
        """What tells one reason from another, and the words for it."""
        if job.state != "queued":
            return job.state, _running(job)
        explained = self._explained(job.job_id)
        if explained is not None:
            return explained
        position = f", number {job.queue_position} in its queue" if job.queue_position else ""
        reason = f": {job.reason}" if job.reason and job.reason != "enqueue" else ""
        due = f", due {ago(job.run_at)}" if job.run_at and job.run_at.timestamp() > time.time() else ""
        return (job.state, job.reason), one_line(plain(f"queued{reason}{due}{position}"))

    def _explained(self, job_id: str) -> tuple[object, str] | None:
        if not self._explains:
            return None
        try:
            said = self._session.foreman.call("GET", f"/jobs/{job_id}/explain")
        except fc.ForemanError as error:
            self._explains = not isinstance(error, (fc.NotFound, fc.MethodNotAllowed, fc.Forbidden))
            return None
        if not isinstance(said, dict):
            return None
        because: list[dict[str, Any]] = said.get("because") or []
        words = said.get("headline") or "; ".join(str(each.get("message", "")) for each in because)
        codes = tuple(str(each.get("code")) for each in because)
        return codes, one_line(plain(f"{said.get('state', 'queued')}: {words}"))


def _running(job: fc.Job) -> str:
    since = f" for {duration(time.time() - job.started_at.timestamp())}" if job.started_at else ""
    progress: dict[str, Any] = job.raw.get("progress") or {}
    said = " ".join(filter(None, (counted(progress), progress.get("message") or progress.get("step"))))
    return one_line(plain(f"{job.state}{since}" + (f": {said}" if said else "")))
