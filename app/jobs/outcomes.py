"""What a run can come to: what executors return and workers over HTTP say. Each is one verb of the store."""

import re
from dataclasses import dataclass

import orjson


@dataclass(frozen=True, slots=True)
class JobError:
    code: str
    message: str
    retryable: bool = False
    # For callers who wait on the line: the HTTP status of a target's refusal, after how many seconds it wants
    # to be asked again, and what it said, where that is in the shape of the caller's dialect, as JSON text.
    status: int | None = None
    # What of the request it is about, in the words of its caller.
    param: str | None = None
    retry_after: int | None = None
    body: str | None = None


# A worker over HTTP may put anything there; only what looks like a code is one.
_CODE = re.compile(r"[\w.:-]{1,100}", re.ASCII)


def code_of(error: object) -> str | None:
    """The code of an error as it is kept. Nobody but its job is told more: the message is foreign text."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) and _CODE.fullmatch(code) else None


def shown_error(kept: str | None) -> str | None:
    """The error of a job's row as it is shown. Its body is for the caller on the line, and may be large."""
    if kept is None or '"body":' not in kept:
        return kept
    error = orjson.loads(kept)
    error.pop("body", None)
    return orjson.dumps(error).decode()


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
    """→ retry, or fail once the attempts are used up, or if nothing is tried again later (`NO_BACKOFF`).

    Without a delay the job's backoff decides.
    """

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
