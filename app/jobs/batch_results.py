"""What a batch came to: the lines of its output and error files, as OpenAI writes them. Pure."""

from typing import Any

import msgspec
import orjson

from app.dialects.protocol import Dialect
from app.jobs.states import State

DAY_SECONDS = 86_400.0
# As long as OpenAI keeps the files of batches, unless somebody says otherwise.
KEPT_SECONDS = 30 * DAY_SECONDS

EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = ("batch_cancelled", "This request was not executed because its batch was cancelled.")
FAILED = ("batch_failed", "This request was not executed because its batch failed.")
DELETED = ("request_deleted", "The job of this request was deleted before its batch had ended.")
# Why a line has no answer whose batch has ended in this state.
_OF_BATCH = {State.EXPIRED: EXPIRED, State.CANCELLED: CANCELLED, State.FAILED: FAILED}
# The same of one that ended so by itself, while its batch went on.
_OF_LINE = {
    State.EXPIRED: EXPIRED,
    State.CANCELLED: ("request_cancelled", "The job of this request was cancelled."),
}
_OTHERWISE = ("request_not_executed", "The job of this request ended without an answer.")


def answered(job_id: str, custom_id: str, result: str | None) -> bytes:
    """A line of the output file. A result is kept as it is, on one line: no string in it has a line break."""
    body = (result or "null").replace("\n", " ").replace("\r", " ")
    return _line(job_id, custom_id, 200, body.encode())


def refused(job_id: str, custom_id: str, error: str | None, dialect: Dialect) -> bytes:
    """A line of the error file, for one that failed: what a caller on the line would have been answered."""
    said: dict[str, Any] = orjson.loads(error or "{}")
    status = int(said.get("status") or 500)
    message = said.get("message") or "the job failed"
    # The target's own words, where they are in the caller's shape.
    body = said.get("body") or dialect.error(status, message, param=said.get("param"), code=said.get("code"))
    return _line(job_id, custom_id, status, msgspec.json.encode(body))


def _line(job_id: str, custom_id: str, status: int, body: bytes) -> bytes:
    name = orjson.dumps(custom_id)
    return (
        b'{"id":"batch_req_%b","custom_id":%b,"response":{"status_code":%d,"request_id":"%b","body":%b},"error":null}\n'
        % (job_id.encode(), name, status, job_id.encode(), body)
    )


def unanswered(line_id: str, custom_id: str, why: tuple[str, str]) -> bytes:
    """A line of the error file, for one that was not run to its end."""
    code, message = why
    error = {"code": code, "message": message}
    line = {"id": f"batch_req_{line_id}", "custom_id": custom_id, "response": None, "error": error}
    return orjson.dumps(line) + b"\n"


def why_unanswered(state: str, of_batch: str) -> tuple[str, str]:
    """Of a line in this state, whose batch has ended in that one."""
    return _OF_BATCH.get(State(of_batch)) or _OF_LINE.get(State(state)) or _OTHERWISE


def why_missing(of_batch: str) -> tuple[str, str]:
    """Of a line that has no job: it never came to that, or somebody has deleted it."""
    return _OF_BATCH.get(State(of_batch), DELETED)
