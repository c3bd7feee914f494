"""Every error the client raises, one tree:

    ForemanError
    ├── ApiError                    the server answered, and the answer was no
    │   ├── InvalidRequest          400, 422  invalid_request
    │   │   └── IdempotencyMismatch 422       idempotency_mismatch
    │   ├── Unauthorized            401       unauthorized
    │   ├── Forbidden               403       forbidden
    │   ├── NotFound                404       not_found
    │   │   └── JobNotFound         404       … of a job
    │   ├── MethodNotAllowed        405       method_not_allowed
    │   ├── Conflict                409
    │   │   ├── LeaseLost                     lease_lost
    │   │   ├── JobTerminal                   job_terminal
    │   │   ├── InvalidTransition             invalid_transition
    │   │   └── KeyBusy                       key_busy, with `existing_job_id`
    │   ├── PayloadTooLarge         413       payload_too_large
    │   ├── QueueFull               429       queue_full, with `retry_after`
    │   ├── RateLimited             429       rate_limited, with `retry_after`
    │   └── Unavailable             502–504   unavailable, with `retry_after`
    ├── Unreachable                 no answer at all; `maybe_received`: the request may have arrived
    ├── JobUnsuccessful             the job ended, but not with a result; `job` is the job
    │   ├── JobFailed
    │   ├── JobCancelled
    │   ├── JobExpired
    │   ├── JobSkipped
    │   ├── JobStale
    │   └── JobDismissed
    ├── WaitTimeout                 also a TimeoutError: the job goes on
    └── WebhookRejected             a webhook whose signature or timestamp is wrong

Nothing of httpx leaks out: catching ForemanError catches all.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from foreman_client.job import Job


class ForemanError(Exception):
    """Base of everything this package raises on purpose."""


class ApiError(ForemanError):
    """A problem document (RFC 9457) from the server."""

    code: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        problem: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.problem: Mapping[str, Any] = problem or {}
        self.retry_after = retry_after


class InvalidRequest(ApiError):
    """The request cannot be meant like that; the message names the field."""

    code = "invalid_request"


class IdempotencyMismatch(InvalidRequest):
    """The idempotency key was used before with another body."""

    code = "idempotency_mismatch"


class Unauthorized(ApiError):
    code = "unauthorized"


class Forbidden(ApiError):
    code = "forbidden"


class NotFound(ApiError):
    code = "not_found"


class JobNotFound(NotFound):
    """No such job, or one of another tenant."""


class MethodNotAllowed(ApiError):
    code = "method_not_allowed"


class Conflict(ApiError):
    """The state of things does not allow it."""


class LeaseLost(Conflict):
    """The lease token is not the current one: the job is somebody else's by now. Stop working on it."""

    code = "lease_lost"


class JobTerminal(Conflict):
    code = "job_terminal"


class InvalidTransition(Conflict):
    code = "invalid_transition"


class KeyBusy(Conflict):
    """Another job holds the concurrency key."""

    code = "key_busy"

    @property
    def existing_job_id(self) -> str | None:
        return self.problem.get("existing_job_id")


class PayloadTooLarge(ApiError):
    code = "payload_too_large"


class QueueFull(ApiError):
    code = "queue_full"


class RateLimited(ApiError):
    code = "rate_limited"


class Unavailable(ApiError):
    """The server, or something in front of it, cannot answer at the moment."""

    code = "unavailable"


class Unreachable(ForemanError):
    """No answer: refused, cut off or timed out."""

    def __init__(self, message: str, *, maybe_received: bool) -> None:
        super().__init__(message)
        self.maybe_received = maybe_received


class JobUnsuccessful(ForemanError):
    """The job reached a terminal state other than `done`."""

    def __init__(self, job: "Job") -> None:
        self.job = job
        self.code = job.error.code if job.error else None
        said = job.error.message if job.error else job.reason
        super().__init__(f"job {job.job_id} ended {job.state}" + (f": {said}" if said else ""))


class JobFailed(JobUnsuccessful):
    """A permanent error, or the attempts are used up; `job.error` says which."""


class JobCancelled(JobUnsuccessful):
    pass


class JobExpired(JobUnsuccessful):
    """The deadline passed."""


class JobSkipped(JobUnsuccessful):
    """Replaced by a newer job while it was queued."""


class JobStale(JobUnsuccessful):
    """Lost its keyed lease and was superseded."""


class JobDismissed(JobUnsuccessful):
    """A dead letter that an operator gave up on."""


class WaitTimeout(ForemanError, TimeoutError):
    """The wait is over, the job is not; it goes on, and may be waited for again."""


class WebhookRejected(ForemanError):
    """Not signed with this secret, or not now: do not trust the body."""


UNSUCCESSFUL: dict[str, type[JobUnsuccessful]] = {
    "failed": JobFailed,
    "cancelled": JobCancelled,
    "expired": JobExpired,
    "skipped": JobSkipped,
    "stale": JobStale,
    "dismissed": JobDismissed,
}

# The status decides only where the body carries no code we know (a proxy's answer, a newer server).
BY_CODE: dict[str, type[ApiError]] = {
    error.code: error
    for error in (
        InvalidRequest,
        IdempotencyMismatch,
        Unauthorized,
        Forbidden,
        NotFound,
        MethodNotAllowed,
        LeaseLost,
        JobTerminal,
        InvalidTransition,
        KeyBusy,
        PayloadTooLarge,
        QueueFull,
        RateLimited,
        Unavailable,
    )
}
BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    409: Conflict,
    413: PayloadTooLarge,
    422: InvalidRequest,
    429: RateLimited,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}
