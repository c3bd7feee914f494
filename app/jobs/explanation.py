"""What a job says of itself: why it waits, what it is at, how it went. Shapes, and the words for people.

Pure: who finds it out is app/engine/explain.py.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import msgspec
import orjson
from msgspec import UNSET, Meta, UnsetType

from app.jobs.shapes import Count, JobId, Moment, Number
from app.jobs.states import State

# As much as a sentence has of what somebody else said.
MAX_QUOTED = 300
# How many jobs are named in a sentence; `jobs` has more of them, and `others` how many are left.
MAX_SAID = 3


class Code(StrEnum):
    """Why, for programs. Where a job's `reason` or a queue's `gated_by` has a word for it, it is that."""

    # It waits.
    PAUSED = "paused"
    WAITING_FOR = "waiting_for"
    SCHEDULED = "scheduled"
    BACKING_OFF = "backing_off"
    DEFERRED = "deferred"
    RELEASED = "released"
    TARGET_ASLEEP = "target_asleep"
    DUE = "due"
    KEY_BUSY = "key_busy"
    KEY_BLOCKED = "key_blocked"
    NO_WORKER = "no_worker"
    NO_WORKER_PROCESS = "no_worker_process"
    MODEL_UNKNOWN = "model_unknown"
    NO_SUCH_TARGET = "no_such_target"
    TARGET_UNASKED = "target_unasked"
    BREAKER_OPEN = "breaker_open"
    TARGET_BUSY = "target_busy"
    OTHER_MODEL_RESIDENT = "other_model_resident"
    MAX_RUNNING = "max_running"
    RATE = "rate"
    FAIR_BY = "fair_by"
    JOBS_AHEAD = "jobs_ahead"
    NEXT = "next"
    FAILED_BEFORE = "failed_before"
    # It runs.
    LOADING = "loading"
    WORKING = "working"
    LEASE_EXPIRED = "lease_expired"
    CANCEL_REQUESTED = "cancel_requested"
    MAX_DURATION = "max_duration"
    # Either.
    DEADLINE = "deadline"
    # It has ended.
    DONE = "done"
    FAILED = "failed"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    CANCELLED = "cancelled"
    DEPENDENCY_FAILED = "dependency_failed"
    PARENT_CANCELLED = "parent_cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"
    STALE = "stale"
    DISMISSED = "dismissed"
    LAST_ERROR = "last_error"
    LEDGER = "ledger"


class LastError(msgspec.Struct, kw_only=True):
    """What went wrong last, as the job's `error` has it."""

    code: str
    message: str


class OtherJob(msgspec.Struct, kw_only=True):
    """Another job of the same tenant that has to do with it."""

    job_id: JobId
    state: str
    since: Annotated[Moment | None, Meta(description="In this state.")]
    worker: str | None
    lease_expires_at: Moment | None


class Ledger(msgspec.Struct, kw_only=True):
    """How long it was in each state, over all attempts, and what it used of its model."""

    queued_seconds: Number
    loading_seconds: Number
    working_seconds: Number
    prompt_tokens: Count | None
    completion_tokens: Count | None


class Reason(msgspec.Struct, kw_only=True):
    """One reason. Beside its code and its sentence it has those fields that say something about it."""

    code: Code
    message: Annotated[str, Meta(description="A sentence for people.")]
    since: Moment | UnsetType = UNSET
    until: (
        Annotated[Moment, Meta(description="When that is over, or looked at again, by itself.")] | UnsetType
    ) = UNSET
    queue: str | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    targets: list[str] | UnsetType = UNSET
    worker: str | UnsetType = UNSET
    lease_expires_at: Moment | UnsetType = UNSET
    key: str | UnsetType = UNSET
    by: (
        Annotated[str, Meta(description="Who did it: the name of a key, as far as it may be told.")]
        | UnsetType
    ) = UNSET
    ahead: Annotated[Count, Meta(description="Jobs that go first; counted up to 10,000.")] | UnsetType = UNSET
    limit: Annotated[Number, Meta(description="How many may at once, or per `per_seconds`.")] | UnsetType = (
        UNSET
    )
    per_seconds: Number | UnsetType = UNSET
    running: Count | UnsetType = UNSET
    attempt: Count | UnsetType = UNSET
    max_attempts: Count | UnsetType = UNSET
    deferrals: Count | UnsetType = UNSET
    reason: Annotated[str, Meta(description="What was said when it was done.")] | UnsetType = UNSET
    error: LastError | UnsetType = UNSET
    jobs: list[OtherJob] | UnsetType = UNSET
    others: Annotated[Count, Meta(description="Further jobs, which are not named.")] | UnsetType = UNSET
    ledger: Ledger | UnsetType = UNSET


class Explanation(msgspec.Struct, kw_only=True):
    """Why a job waits, what it is at, or how it went. Of several reasons the one that decides comes first."""

    state: State
    since: Annotated[Moment, Meta(description="In this state.")]
    headline: Annotated[str, Meta(description="All of it in one sentence.")]
    because: list[Reason]
    position: Annotated[
        Count | None,
        Meta(description="As `queue_position` of the job: 1 is next; null unless it could be claimed."),
    ]
    next_at: Annotated[
        Moment | None, Meta(description="When something will next happen by itself; null when nobody knows.")
    ]


# -- words -------------------------------------------------------------------------------------------


def sentence(*parts: str) -> str:
    """The parts, one after the other, as one sentence: with a capital, and a full stop unless it has one."""
    text = " ".join(part for part in parts if part)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", "…")) else ".")


def quoted(text: str) -> str:
    """What somebody else said, in one line and not too much of it."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_QUOTED else line[: MAX_QUOTED - 1] + "…"


def clock(at: datetime, now: datetime) -> str:
    """A moment as a person says it: without the day if that is today's."""
    at, today = at.astimezone(UTC), now.astimezone(UTC).date()
    return f"{at:%H:%M} UTC" if at.date() == today else f"{at:%Y-%m-%d %H:%M} UTC"


def lasting(seconds: float) -> str:
    """A time in the units that a person would say, two of them at most."""
    if seconds < 1:
        return "< 1 ms" if 0 < seconds < 0.001 else f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{whole} s"


def soon(at: datetime, now: datetime) -> str:
    """“in 12 s”, or at what time where that is far away."""
    seconds = (at - now).total_seconds()
    if seconds <= 0:
        return "now"
    return f"in {lasting(seconds)}" if seconds < 3600 else f"at {clock(at, now)}"


def number(count: int, noun: str) -> str:
    """“1 job”, “3 jobs”; where no more were counted, “10,000 jobs or more”."""
    more = " or more" if count >= 10_000 else ""
    return f"{count:,} {noun}{'' if count == 1 else 's'}{more}"


def named(names: Iterable[str], others: int = 0) -> str:
    """“a, b and 3 others”."""
    said = list(names)
    others += len(said[MAX_SAID:])
    said = said[:MAX_SAID] + ([number(others, "other")] if others else [])
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def error_of(kept: str | None) -> LastError | None:
    """The error in a job's row, whatever it is: rows may be older than our checks."""
    if kept is None:
        return None
    try:
        found = orjson.loads(kept)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        return LastError(code="error", message=quoted(kept))
    code, message = found.get("code"), found.get("message")
    return LastError(code=str(code or "error"), message=quoted(str(message or code or "without a word")))


def headline(state: State, because: list[Reason]) -> str:
    """The first reason, and how many are ahead where that is not it."""
    first = because[0].message.removesuffix(".")
    if state is not State.QUEUED:
        return first
    ahead = next((each.ahead for each in because[1:] if each.code is Code.JOBS_AHEAD), UNSET)
    more = f"; {number(ahead, 'job')} {'is' if ahead == 1 else 'are'} ahead" if isinstance(ahead, int) else ""
    return f"Waiting: {first[:1].lower()}{first[1:]}{more}"


def next_at(because: Iterable[Reason], now: datetime) -> datetime | None:
    """The first moment of those that the reasons name."""
    return min(
        (each.until for each in because if isinstance(each.until, datetime) and each.until > now),
        default=None,
    )
