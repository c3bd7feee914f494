"""Traces of jobs, for an OpenTelemetry collector: submission, each wait and run, each try of a webhook.

`spans.py` says what is told of a job, and needs no library; `tracer.py` is what the other rooms call;
`exporter.py` brings spans to the collector, from a thread of its own. The library is imported only
where traces are exported (but for its bare interface, which FastAPI brings along). A span is written by the
process in which it ends, whoever began it. Payloads, results and messages of errors never get in here.
"""

from typing import TYPE_CHECKING

from app.config import Settings
from app.store.database import Database

if TYPE_CHECKING:
    from app.tracing.tracer import Tracer


def make_tracer(settings: Settings, database: Database) -> "Tracer | None":
    """None where no traces are exported."""
    if settings.traces != "on":
        return None
    # Half a second and 20 MB that nobody else has to pay for.
    from app.tracing.exporter import SpanExporter  # noqa: PLC0415
    from app.tracing.tracer import Tracer  # noqa: PLC0415

    return Tracer(database, SpanExporter(role=settings.role), settings.shutdown_grace_seconds)
