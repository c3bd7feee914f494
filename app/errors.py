"""Every error a caller can meet, with its status and stable code.

    ForemanError
    ├── InvalidRequest        422 invalid_request (400 as Unparsable)
    │   ├── Unparsable        400 invalid_request
    │   └── IdempotencyMismatch 422 idempotency_mismatch
    ├── Unauthorized          401 unauthorized
    ├── Forbidden             403 forbidden
    ├── NotFound              404 not_found
    ├── MethodNotAllowed      405 method_not_allowed
    ├── RequestTimeout        408 request_timeout
    ├── Conflict              409
    │   ├── LeaseLost             lease_lost
    │   ├── JobTerminal           job_terminal
    │   ├── InvalidTransition     invalid_transition
    │   ├── KeyBusy               key_busy
    │   └── FileInUse             file_in_use
    ├── PayloadTooLarge       413 payload_too_large
    │   └── HeadersTooLarge   431 payload_too_large
    ├── RangeNotSatisfiable   416 range_not_satisfiable
    ├── QueueFull             429 queue_full
    ├── RateLimited           429 rate_limited
    └── Unavailable           503 unavailable
        ├── Overloaded        503 unavailable
        └── DatabaseUnavailable

Raised anywhere, rendered in one place (app/api/problems.py) as RFC 9457 problem documents.
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class ForemanError(Exception):
    """Base of all errors that have a place on the wire."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Something went wrong on our side"
    # The rest of the request is not going to be read: the connection ends with the answer.
    closes: ClassVar[bool] = False

    def __init__(
        self,
        detail: str = "",
        *,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail or self.title)
        self.detail = detail or self.title
        self.retry_after = retry_after
        self.headers = headers
        self.extra = extra


class InvalidRequest(ForemanError):
    status, code, title = 422, "invalid_request", "The request is well-formed but wrong"


class Unparsable(InvalidRequest):
    status, title = 400, "The request could not be parsed"


class IdempotencyMismatch(InvalidRequest):
    code, title = "idempotency_mismatch", "This Idempotency-Key was used with another request"


class Unauthorized(ForemanError):
    status, code, title = 401, "unauthorized", "A valid API key is needed"
    closes = True

    def __init__(self, detail: str = "", *, problem: str | None = None) -> None:
        """`problem` is what is wrong with the key that was sent, in a word of RFC 6750."""
        challenge = 'Bearer realm="foreman"' + (f', error="{problem}"' if problem else "")
        super().__init__(detail, headers={"www-authenticate": challenge})


class Forbidden(ForemanError):
    status, code, title = 403, "forbidden", "This API key may not do that"


class NotFound(ForemanError):
    status, code, title = 404, "not_found", "There is no such thing"


class MethodNotAllowed(ForemanError):
    status, code, title = 405, "method_not_allowed", "This path does not take that method"


class RequestTimeout(ForemanError):
    status, code, title = 408, "request_timeout", "The request was sent too slowly"


class Conflict(ForemanError):
    status, code, title = 409, "invalid_transition", "The job is in another state"


class LeaseLost(Conflict):
    code, title = "lease_lost", "This lease token is not the current one"


class JobTerminal(Conflict):
    code, title = "job_terminal", "The job has already ended"


class InvalidTransition(Conflict):
    code, title = "invalid_transition", "The job's state does not allow that"


class KeyBusy(Conflict):
    code, title = "key_busy", "Another job holds this concurrency key"


class FileInUse(Conflict):
    code, title = "file_in_use", "A batch still reads this file"

    def __init__(self, detail: str = "") -> None:
        """OpenAI's clients try a 409 again; but until the batch has ended there is nothing to hope for."""
        super().__init__(detail, headers={"x-should-retry": "false"})


class PayloadTooLarge(ForemanError):
    status, code, title = 413, "payload_too_large", "The request body is too large"
    closes = True


class HeadersTooLarge(PayloadTooLarge):
    status, title = 431, "The request headers are too large"


class RangeNotSatisfiable(ForemanError):
    status, code, title = 416, "range_not_satisfiable", "There are no such bytes"


class QueueFull(ForemanError):
    status, code, title = 429, "queue_full", "The queue is full"


class RateLimited(ForemanError):
    status, code, title = 429, "rate_limited", "Too many requests"


class Unavailable(ForemanError):
    status, code, title = 503, "unavailable", "The service is not available right now"


class Overloaded(Unavailable):
    title = "The server has as much to read as it can hold"
    closes = True


class DatabaseUnavailable(Unavailable):
    """The database could not be used. It was logged where it was noticed: nobody else needs to."""
