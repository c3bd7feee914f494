"""What a run can come to: what executors return and workers over HTTP say. Each is one verb of the store."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobError:
    code: str
    message: str
    retryable: bool = False
    # The HTTP status of a target's refusal, for callers who wait on the line.
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Succeeded:
    """→ complete. Both are JSON text; the result is kept verbatim."""

    result: str
    usage: str | None = None


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
    reason: str | None
    error: JobError | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """→ release: somebody else is to run it, and no attempt was spent."""

    reason: str | None = "worker_shutdown"
    delay_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """→ cancel: the worker confirms that it stopped."""

    reason: str = "cancel"


Outcome = Succeeded | Failed | Retry | Deferred | Released | Cancelled
