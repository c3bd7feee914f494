"""What a run of a job can come to. Executors return one of these; each maps to one store verb."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JobError:
    code: str
    message: str
    retryable: bool = False
    # The HTTP status of a target's refusal, for callers who wait on the line.
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Succeeded:
    """→ complete. `result` is JSON text, kept verbatim."""

    result: str
    usage: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """→ fail: a permanent error."""

    error: JobError


@dataclass(frozen=True, slots=True)
class Retry:
    """→ retry, or fail once the attempts are used up. Without a delay the job's backoff decides."""

    error: JobError
    delay_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """→ defer: nobody's fault (target away or busy), no attempt spent."""

    delay_seconds: float
    reason: str
    error: JobError | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """→ release: the worker is shutting down."""

    reason: str = "worker_shutdown"


@dataclass(frozen=True, slots=True)
class Cancelled:
    """→ cancel: the worker confirms that it stopped."""

    reason: str = "cancel"


Outcome = Succeeded | Failed | Retry | Deferred | Released | Cancelled
