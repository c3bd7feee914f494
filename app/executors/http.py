"""Kind `http`: makes one HTTP call on a caller's behalf, behind the outbound guard, and keeps what came back.

What the answer means for the job: a status counted as success completes it; 429, 5xx, a time-out or an answer
that broke off is tried again; a connection that never came about is nobody's fault and spends no attempt; any
other status, and whatever the guard refuses, is final.
"""

import base64
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson

from app.errors import InvalidRequest
from app.executors.http_call import HttpCall, parse_call
from app.executors.protocol import ClaimedJob, RunContext
from app.jobs import verbatim
from app.jobs.outcomes import Deferred, Failed, JobError, Outcome, Retry, Succeeded
from app.jobs.retry import defer_delay
from app.outbound.client import GuardedClient
from app.outbound.errors import OutboundProtocolError, OutboundRefused, OutboundTimeout, OutboundUnreachable
from app.outbound.response import OutboundResponse

# What is kept of an answer; the rest is cut off and the result says so.
MAX_BODY_BYTES = 1024 * 1024
MIN_TIMEOUT_SECONDS = 0.1
TOO_MANY_REQUESTS = 429


class HttpExecutor:
    """`trace` says which traceparent a call carries; the job's own where nobody says."""

    def __init__(
        self, client: GuardedClient, trace: Callable[[ClaimedJob], str | None] = lambda job: job.traceparent
    ) -> None:
        self._client = client
        self._trace = trace

    async def run(self, job: ClaimedJob, context: RunContext) -> Outcome:
        try:
            call = parse_call(job.payload)
        except InvalidRequest as problem:
            return Failed(JobError("invalid_payload", problem.detail))
        await context.start()
        timeout = _timeout(call, job, datetime.now(UTC))
        try:
            response = await self._client.request(
                call.verb,
                call.url,
                headers=_headers(call, job, timeout, self._trace(job)),
                content=call.content or b"",
                deadline_seconds=timeout,
                max_response_bytes=MAX_BODY_BYTES,
            )
        except OutboundRefused as refused:
            return Failed(JobError("outbound_refused", _sentence(refused.reason)))
        except OutboundUnreachable as away:
            error = JobError("unreachable", _sentence(away.reason), retryable=True)
            return Deferred(defer_delay(job.deferrals, random.random()), "unreachable", error)
        except OutboundTimeout as late:
            return Retry(JobError("timeout", _sentence(late.reason), retryable=True))
        except OutboundProtocolError as broken:
            return Retry(JobError("bad_answer", _sentence(broken.reason), retryable=True))
        return _judge(call, response, datetime.now(UTC))


def _timeout(call: HttpCall, job: ClaimedJob, now: datetime) -> float:
    """No longer than the job has left."""
    if job.deadline is None:
        return call.timeout_seconds
    return max(MIN_TIMEOUT_SECONDS, min(call.timeout_seconds, (job.deadline - now).total_seconds()))


def _headers(call: HttpCall, job: ClaimedJob, timeout: float, traceparent: str | None) -> dict[str, str]:
    headers = dict(call.headers)
    if call.content_type is not None and not any(name.lower() == "content-type" for name in headers):
        headers["content-type"] = call.content_type
    headers["idempotency-key"] = job.id
    headers["x-foreman-timeout"] = f"{timeout:g}"
    if traceparent is not None:
        headers["traceparent"] = traceparent
    return headers


def _judge(call: HttpCall, response: OutboundResponse, now: datetime) -> Outcome:
    if call.is_success(response.status):
        return Succeeded(result_text(response))
    message = f"{call.verb} was answered with {response.status}."
    if response.status == TOO_MANY_REQUESTS or response.status >= 500:
        error = JobError(f"http_{response.status}", message, retryable=True)
        return Retry(error, response.retry_after_seconds(now))
    if 300 <= response.status < 400:
        message += " Redirects are not followed: give the final URL, or count it as success."
    return Failed(JobError(f"http_{response.status}", message))


def result_text(response: OutboundResponse) -> str:
    """Status, headers and body as the job's result. `encoding` says how the body stands there."""
    body, truncated = response.decoded(MAX_BODY_BYTES)
    encoding, shown = _shown(body, response.header("content-type") or "", truncated)
    result: dict[str, Any] = {
        "status": response.status,
        "headers": _joined(response),
        "body": shown,
        "encoding": encoding,
        "truncated": truncated,
    }
    return orjson.dumps(result).decode()


def _joined(response: OutboundResponse) -> dict[str, str]:
    """By lower-case name; values of a repeated one are joined as HTTP does, cookies line by line."""
    headers: dict[str, str] = {}
    for name, value in response.headers:
        before = headers.get(name)
        separator = "\n" if name == "set-cookie" else ", "
        headers[name] = value if before is None else f"{before}{separator}{value}"
    return headers


def _shown(body: bytes, content_type: str, truncated: bool) -> tuple[str, Any]:
    """JSON as itself where it says so and is, text as a string, anything else in base64."""
    media, _, parameters = content_type.partition(";")
    media = media.strip().lower()
    if not body:
        return "text", ""
    if not truncated and (media == "application/json" or media.endswith("+json")) and _is_clean(body):
        return "json", orjson.Fragment(body)
    try:
        return "text", body.decode(_charset(parameters))
    except (UnicodeDecodeError, LookupError):
        if truncated and (text := _cut_text(body)) is not None:
            return "text", text
        return "base64", base64.b64encode(body).decode()


def _is_clean(body: bytes) -> bool:
    """Whether callers can be given this JSON as it is."""
    try:
        verbatim.check_value(body)
    except InvalidRequest:
        return False
    return True


def _charset(parameters: str) -> str:
    for each in parameters.split(";"):
        name, _, value = each.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() in (
            "iso-8859-1",
            "latin-1",
        ):
            return "latin-1"
    return "utf-8"


def _cut_text(body: bytes) -> str | None:
    """UTF-8 that was cut in the middle of its last character."""
    for missing in (1, 2, 3):
        try:
            return body[:-missing].decode()
        except UnicodeDecodeError:
            continue
    return None


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}."
