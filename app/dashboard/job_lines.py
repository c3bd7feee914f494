"""A job as one line of a list."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from app.api.job_documents import Job
from app.dashboard.page import Page
from app.identity.scopes import Scope
from app.jobs.states import RUNNING, TERMINAL, State, Verb
from app.store import api_keys

MAX_MESSAGE = 300
# Where nobody's key is known, these tell best who called; the database keeps metadata in no order of its own.
TELLING = (
    "customer",
    "tenant",
    "user",
    "caller",
    "client",
    "account",
    "team",
    "service",
    "source",
    "schedule",
)
# Of a job that has ended, the verb that ended it says the same as its state.
SAID = frozenset(Verb)


@dataclass(frozen=True, slots=True)
class Line:
    job: Job
    # What it is: the model where there is one, and else the kind.
    what: str
    # Where it says more than the state and the error do.
    reason: str | None
    # How long it has been at work, all attempts together; None before the first.
    seconds: float | None
    # When it is to begin, where that is still to come.
    due_at: datetime | None
    progress: str
    error_code: str
    error_message: str
    # Whose key submitted it, if that is known.
    caller: str
    metadata: list[tuple[str, str]]


async def lines_of(visit: Page, jobs: Sequence[Job]) -> list[Line]:
    callers = {}
    if visit.may(Scope.ADMIN_READ):
        ids = [job.job_id for job in jobs]
        callers = await api_keys.submitters(visit.services.database, ids, visit.tenant)
    now = datetime.now(UTC)
    return [_line(job, callers.get(job.job_id, ""), now) for job in jobs]


def _line(job: Job, caller: str, now: datetime) -> Line:
    error = _decoded(job.error)
    waits = job.state == State.QUEUED and job.run_at is not None and job.run_at > now
    return Line(
        job=job,
        what=job.model or job.kind,
        reason=None if job.state in TERMINAL and job.reason in SAID else job.reason,
        seconds=None if job.started_at is None else _worked(job),
        due_at=job.run_at if waits else None,
        progress=_progress(_decoded(job.progress)) if job.state in RUNNING else "",
        # Of one that is done or waits anew, the last error is history.
        error_code=str(error.get("code", "")) if job.state in TERMINAL else "",
        error_message=str(error.get("message", ""))[:MAX_MESSAGE],
        caller=caller,
        metadata=sorted(_decoded(job.metadata).items(), key=_tells),
    )


def _tells(entry: tuple[str, str]) -> tuple[int, str]:
    name = entry[0]
    return (TELLING.index(name) if name in TELLING else len(TELLING), name)


def _worked(job: Job) -> float:
    return job.timings.loading_seconds + job.timings.working_seconds


def _progress(said: dict[str, Any]) -> str:
    fraction = said.get("fraction")
    if isinstance(fraction, int | float) and 0 <= fraction <= 1:
        return f"{fraction:.0%}".replace("%", "\u202f%")
    return str(said.get("step") or "")[:40]


def _decoded(raw: msgspec.Raw) -> dict[str, Any]:
    found = msgspec.json.decode(raw)
    return found if isinstance(found, dict) else {}


def by_state(jobs: Iterable[Job]) -> dict[State, int]:
    """How many are in which, in the order of the states."""
    found = [job.state for job in jobs]
    return {state: found.count(state) for state in State if state in found}
