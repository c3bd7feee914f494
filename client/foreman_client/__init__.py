"""Foreman's Python client: submit jobs, wait for them, do them.

    from foreman_client import Foreman

    with Foreman("http://127.0.0.1:8080") as foreman:
        handle = foreman.submit(model="echo", messages=[{"role": "user", "content": "hello"}])
        print(handle.wait(timeout=60).text)

Names are loaded when they are first used: whoever only checks webhooks does not pay for an HTTP client. This
package never imports the server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from foreman_client.blocking import Foreman, JobHandle
    from foreman_client.client import AsyncForeman
    from foreman_client.compatibility import SERVER_VERSIONS, ServerVersion, VersionMismatchWarning
    from foreman_client.errors import (
        ApiError,
        Conflict,
        Forbidden,
        ForemanError,
        IdempotencyMismatch,
        InvalidRequest,
        InvalidTransition,
        JobCancelled,
        JobDismissed,
        JobExpired,
        JobFailed,
        JobNotFound,
        JobSkipped,
        JobStale,
        JobTerminal,
        JobUnsuccessful,
        KeyBusy,
        LeaseLost,
        MethodNotAllowed,
        NotFound,
        PayloadTooLarge,
        QueueFull,
        RateLimited,
        Unauthorized,
        Unavailable,
        Unreachable,
        WaitTimeout,
        WebhookRejected,
    )
    from foreman_client.events import Event
    from foreman_client.explanation import Explanation, Reason
    from foreman_client.handle import AsyncJobHandle
    from foreman_client.job import Job, JobError, JobPage, Progress
    from foreman_client.webhooks import verify_webhook
    from foreman_client.worker import (
        ActiveJob,
        BlockingActiveJob,
        Defer,
        Fail,
        JobInterrupted,
        Retry,
        Worker,
    )

_HOMES = {
    "blocking": ("Foreman", "JobHandle"),
    "client": ("AsyncForeman",),
    "compatibility": ("SERVER_VERSIONS", "ServerVersion", "VersionMismatchWarning"),
    "events": ("Event",),
    "explanation": ("Explanation", "Reason"),
    "handle": ("AsyncJobHandle",),
    "job": ("Job", "JobError", "JobPage", "Progress"),
    "webhooks": ("verify_webhook",),
    "worker": ("ActiveJob", "BlockingActiveJob", "Defer", "Fail", "JobInterrupted", "Retry", "Worker"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "SERVER_VERSIONS",
    "ActiveJob",
    "ApiError",
    "AsyncForeman",
    "AsyncJobHandle",
    "BlockingActiveJob",
    "Conflict",
    "Defer",
    "Event",
    "Explanation",
    "Fail",
    "Forbidden",
    "Foreman",
    "ForemanError",
    "IdempotencyMismatch",
    "InvalidRequest",
    "InvalidTransition",
    "Job",
    "JobCancelled",
    "JobDismissed",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobHandle",
    "JobInterrupted",
    "JobNotFound",
    "JobPage",
    "JobSkipped",
    "JobStale",
    "JobTerminal",
    "JobUnsuccessful",
    "KeyBusy",
    "LeaseLost",
    "MethodNotAllowed",
    "NotFound",
    "PayloadTooLarge",
    "Progress",
    "QueueFull",
    "RateLimited",
    "Reason",
    "Retry",
    "ServerVersion",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "VersionMismatchWarning",
    "WaitTimeout",
    "WebhookRejected",
    "Worker",
    "verify_webhook",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # What has no home of its own is an error.
    value = getattr(import_module(f"{__name__}.{_HOME_OF.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
