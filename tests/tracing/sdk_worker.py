"""A worker whose program has set up OpenTelemetry, with a span of its own around what it submits."""

import sys
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from foreman_client import ActiveJob, BlockingActiveJob, Fail, Worker

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
worker = Worker(sys.argv[1])


@worker.task("traced.outer")
async def outer(payload: dict[str, Any], job: ActiveJob) -> str:
    with trace.get_tracer("mine").start_as_current_span("my own"):
        handle = await job.foreman.submit("traced.inner", {})
    return handle.job_id


@worker.task("traced.inner")
def inner(payload: dict[str, Any], job: BlockingActiveJob) -> str:
    """In a thread, where the span is current as well."""
    return f"{trace.get_current_span().get_span_context().span_id:016x}"


@worker.task("traced.failing")
async def failing(payload: dict[str, Any]) -> None:
    raise Fail("no_luck", "secret words of the payload")


worker.run()
