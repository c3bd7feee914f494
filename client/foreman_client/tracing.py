"""OpenTelemetry, where the program that uses this client does: its current span goes along with what it
submits, and each handler of a worker runs in a span of its own.

Nothing is imported here. Who wants traces has set up a provider of tracers, and has thereby imported the
library; for everybody else there is nothing to be done.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from foreman_client.context import RunningJob, traceparent_parts

if TYPE_CHECKING:
    from foreman_client.worker.active import ActiveJob

SCOPE: Final = "foreman_client"


def trace_headers(running: RunningJob | None) -> dict[str, str]:
    """What a call says of its trace: the current span, or else the job whose handler makes it."""
    headers = _current_span()
    if not headers and running is not None:
        headers = running.trace_headers()
    return headers


def _current_span() -> dict[str, str]:
    api = _api()
    if api is None:
        return {}
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    flags = int(context.trace_flags)
    headers = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"}
    if state := context.trace_state.to_header():
        headers["tracestate"] = state
    return headers


def _api() -> Any | None:
    """The library, if a provider of tracers is set."""
    api: Any = sys.modules.get("opentelemetry.trace")
    # Half imported, by another thread, is as good as not at all.
    if api is None or not hasattr(api, "get_tracer_provider"):
        return None
    return None if isinstance(api.get_tracer_provider(), api.ProxyTracerProvider) else api


class WorkSpan:
    """The span in which a handler runs; told at the end how that was."""

    def __init__(self, api: Any, span: Any) -> None:
        self._api = api
        self._span = span

    def ended(self, verb: str, error: str | None) -> None:
        self._span.set_attribute("foreman.outcome", verb)
        if error is not None:
            # The code alone: the message may be anything, such as a part of the payload.
            self._span.set_attribute("error.type", error)
            self._span.set_status(self._api.Status(self._api.StatusCode.ERROR, error))


def work_span(job: "ActiveJob") -> AbstractContextManager[WorkSpan | None]:
    """Below the job's trace, and current while the handler runs: its own spans and submits hang below it."""
    api = _api()
    return nullcontext() if api is None else _work_span(api, job)


@contextmanager
def _work_span(api: Any, job: "ActiveJob") -> Iterator[WorkSpan]:
    attributes = {
        "foreman.job_id": job.job_id,
        "foreman.queue": job.queue,
        "foreman.kind": job.kind,
        "foreman.attempt": job.attempt,
        "messaging.system": "foreman",
        "messaging.operation.type": "process",
        "messaging.destination.name": job.queue,
        "messaging.message.id": job.job_id,
    }
    with api.get_tracer(SCOPE).start_as_current_span(
        f"foreman.work {job.kind}",
        context=_parent(api, job),
        kind=api.SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield WorkSpan(api, span)


def _parent(api: Any, job: "ActiveJob") -> Any | None:
    """The job's trace as a context; None where it has none that can be read, and a new trace begins."""
    running = job.running()
    parts = traceparent_parts(running.traceparent)
    if parts is None:
        return None
    _, trace_id, span_id, flags = parts
    try:
        context = api.SpanContext(
            int(trace_id, 16),
            int(span_id, 16),
            is_remote=True,
            trace_flags=api.TraceFlags(int(flags, 16)),
            trace_state=api.TraceState.from_header([running.tracestate]) if running.tracestate else None,
        )
    except ValueError:
        return None
    return api.set_span_in_context(api.NonRecordingSpan(context))
