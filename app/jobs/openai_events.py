"""Jobs as the webhooks of OpenAI tell of them: which have a name there, and what their ends are called.

Pure. Responses and batches have one; nothing is told there of a job that waits or runs, only of its end.
"""

from dataclasses import dataclass

import msgspec

from app.dialects import dialect_named
from app.jobs.states import State
from app.jobs.submission import NewJob, invalid, shown

# The shapes that a job's webhooks can have.
FOREMAN_SHAPE, OPENAI_SHAPE = "foreman", "openai"
BATCH = "batch"
_COMPLETED, _INCOMPLETE = "completed", "incomplete"

# What each end is called; for a client, a job that made room for a newer one was cancelled. To dismiss a
# failed job changes nothing that was told of it.
_ENDS = {
    State.DONE: _COMPLETED,
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
    State.EXPIRED: "failed",
    State.SKIPPED: "cancelled",
    State.STALE: "cancelled",
}
_ENDS_OF_BATCHES = {**_ENDS, State.EXPIRED: "expired"}
ENDS = [str(state) for state in _ENDS]


class _Answer(msgspec.Struct):
    """Of a response that is done: how it says that it ended. All else is read over."""

    status: str = ""


@dataclass(frozen=True, slots=True)
class WireObject:
    """A job by its name on OpenAI's wire."""

    name: str
    id: str

    @property
    def is_batch(self) -> bool:
        return self.name == BATCH

    def event_type(self, state: str, result: str | None) -> str:
        """`result` is what a response that is done has come to; it is looked at for nothing else."""
        word = (_ENDS_OF_BATCHES if self.is_batch else _ENDS)[State(state)]
        if word == _COMPLETED and not self.is_batch and _is_incomplete(result):
            word = _INCOMPLETE
        return f"{self.name}.{word}"


def wire_object(job_id: str, kind: str, dialect: str | None) -> WireObject | None:
    """None for a job that OpenAI's clients have no name for."""
    if kind == BATCH:
        return WireObject(BATCH, f"{BATCH}_{job_id}")
    spoken = dialect_named(dialect)
    if spoken.wire_object is None:
        return None
    return WireObject(spoken.wire_object, spoken.id_prefix + job_id)


def _is_incomplete(result: str | None) -> bool:
    try:
        return msgspec.json.decode(result or "{}", type=_Answer).status == _INCOMPLETE
    except msgspec.MsgspecError:
        return False


def tell_ends(job: NewJob) -> None:
    """Of a new job whose webhooks have OpenAI's shape: what they tell. Raises InvalidRequest."""
    if wire_object(job.id, job.kind, job.dialect) is None:
        raise invalid("webhook_shape", f"{OPENAI_SHAPE} is only for responses and batches")
    if job.webhook_events is None:
        job.webhook_events = list(ENDS)
    for name in job.webhook_events:
        if name not in ENDS:
            told = f"in the shape {OPENAI_SHAPE} only ends are told: {', '.join(ENDS)}"
            raise invalid("webhook_events", f"{shown(name)} is no end; {told}")
