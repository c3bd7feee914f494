"""A synchronous call, read: what Foreman has to know of its body, and what the headers ask for."""

import contextlib
import re
from dataclasses import dataclass

from starlette.requests import Request

from app.api.direct import read_body
from app.api.job_parameters import idempotency_key, trace_of
from app.api.jobs import fingerprint_of
from app.api.services import Services, tenant_of
from app.dialects.protocol import Body, Dialect
from app.dialects.shapes import Kind
from app.errors import InvalidRequest
from app.jobs import verbatim
from app.jobs.submission import TEN_YEARS, Extensions, NewJob, is_name, new_job
from app.loops.off_loop import off_loop


@dataclass(frozen=True, slots=True)
class Call:
    """A synchronous call that was read and found sound."""

    job: NewJob
    kind: Kind
    dialect: Dialect
    streams: bool
    include_usage: bool
    cancels: bool
    key: str | None
    fingerprint: bytes | None


async def read_call(request: Request, services: Services, kind: Kind, dialect: Dialect) -> Call:
    body = await read_body(request)
    asked = await off_loop(len(body), _parse, body, kind, dialect, services.settings.max_json_depth)
    fields = Extensions(
        kind=kind,
        queue=_queue(request),
        priority=_priority(request),
        deadline_seconds=_deadline(request),
    )
    job = new_job(tenant_of(request), fields, body.decode(), asked.model, asked.runner_options)
    trace = trace_of(request)
    job.request_id, job.traceparent, job.tracestate = trace.request_id, trace.traceparent, trace.tracestate
    job.interactive = True
    job.dialect = dialect.name
    key = idempotency_key(request)
    return Call(
        job,
        kind,
        dialect,
        streams=dialect.asks_to_stream(kind, asked.stream),
        include_usage=asked.wants_usage,
        cancels=_cancels(request),
        key=key,
        fingerprint=None if key is None else await fingerprint_of(request, body),
    )


def _parse(body: bytes, kind: Kind, dialect: Dialect, max_depth: int) -> Body:
    verbatim.members(body, max_depth)
    return dialect.read_body(kind, body)


def _priority(request: Request) -> int:
    given = request.headers.get("x-foreman-priority")
    if given is None:
        return 0
    if not re.fullmatch(r"[+-]?[0-9]{1,3}", given.strip()) or not -100 <= int(given) <= 100:
        raise InvalidRequest("X-Foreman-Priority must be a number from -100 to 100")
    return int(given)


def _queue(request: Request) -> str:
    given = request.headers.get("x-foreman-queue", "default")
    if not is_name(given):
        raise InvalidRequest("X-Foreman-Queue is not the name of a queue")
    return given


def _deadline(request: Request) -> float | None:
    given = request.headers.get("x-foreman-deadline-seconds")
    if given is None:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(given)
        if 0 < seconds <= TEN_YEARS:
            return seconds
    raise InvalidRequest("X-Foreman-Deadline-Seconds must be a number of seconds above 0")


def _cancels(request: Request) -> bool:
    given = request.headers.get("x-foreman-on-disconnect", "cancel").strip().lower()
    if given not in {"cancel", "continue"}:
        raise InvalidRequest("X-Foreman-On-Disconnect must be cancel or continue")
    return given == "cancel"
