"""A job as `GET /jobs/{id}` tells it, with types; `raw` is the answer itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from foreman_client.errors import UNSUCCESSFUL
from foreman_client.wire import moment

ACTIVE_STATES = frozenset({"queued", "loading", "working"})
TERMINAL_STATES = frozenset({"done", *UNSUCCESSFUL})


@dataclass(frozen=True, slots=True)
class JobError:
    code: str
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    step: str | None = None
    message: str | None = None
    current: float | None = None
    total: float | None = None
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A snapshot: it does not change. Ask again, or hold on to a JobHandle."""

    job_id: str
    state: str
    kind: str = "chat"
    queue: str = "default"
    reason: str | None = None
    reason_since: datetime | None = None
    priority: int = 0
    model: str | None = None
    payload: Any = None
    result: Any = None
    error: JobError | None = None
    attempt: int = 0
    max_attempts: int | None = None
    deferrals: int = 0
    progress: Progress | None = None
    created_at: datetime | None = None
    run_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    updated_at: datetime | None = None
    deadline: datetime | None = None
    worker: str | None = None
    target: str | None = None
    lease_expires_at: datetime | None = None
    concurrency_key: str | None = None
    parent_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[Mapping[str, Any], ...] = ()
    trace: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    queue_position: int | None = None
    seq: int = 0
    usage: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL_STATES

    @property
    def text(self) -> str | None:
        """What a language model said: the text of a chat or generate result."""
        if not isinstance(self.result, Mapping):
            return None
        message = self.result.get("message")
        text = message.get("content") if isinstance(message, Mapping) else self.result.get("response")
        return text if isinstance(text, str) else None

    def raise_unless_done(self) -> "Job":
        """The job itself if it is done, its typed error if it ended any other way."""
        if self.state != "done":
            raise UNSUCCESSFUL[self.state](self)
        return self

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> "Job":
        fields: dict[str, Any] = {name: data[name] for name in _PLAIN if data.get(name) is not None}
        fields.update({name: moment(data.get(name)) for name in _MOMENTS})
        if error := data.get("error"):
            fields["error"] = JobError(
                error.get("code", ""), error.get("message", ""), bool(error.get("retryable", False))
            )
        if progress := data.get("progress"):
            fields["progress"] = Progress(**{name: progress.get(name) for name in Progress.__slots__})
        return cls(**fields, artifacts=tuple(data.get("artifacts") or ()), raw=data)


_MOMENTS = (
    "reason_since",
    "created_at",
    "run_at",
    "started_at",
    "completed_at",
    "updated_at",
    "deadline",
    "lease_expires_at",
)
_PLAIN = tuple(set(Job.__slots__) - {*_MOMENTS, "error", "progress", "artifacts", "raw"})


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of `GET /jobs`; `next_cursor` is None on the last, and only there.

    A page may be short, even empty, before that: the server looks at so many jobs at a time.
    """

    jobs: list[Job]
    next_cursor: str | None
