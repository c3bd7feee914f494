"""The way to the collector: a bounded queue, and a thread that empties it by OTLP (http/protobuf).

Whoever has a span puts it there and goes on. A collector that is away or slow costs spans and nothing else:
they wait, up to a limit, and what there is no room for is dropped and counted. That it is gone, and that it
is back, is said once.

Where it is, how it is spoken to and which traces are wanted stands in the variables that OpenTelemetry has
for that; its library reads them.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence

import structlog
from opentelemetry.context import Context as Surroundings
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision, SamplingResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from app import __version__
from app.telemetry import SPANS
from app.tracing.spans import Context, Span

log = structlog.get_logger()

DEFAULT_SERVICE = "foreman"
MAX_QUEUED = 20_000
MAX_BATCH = 512
# How long spans are gathered before they leave, unless they are enough for a batch.
GATHER_SECONDS = 1.0

_KINDS = {
    "internal": SpanKind.INTERNAL,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_NOWHERE = Surroundings()
_EXPORTED = SPANS.labels("exported")
_DROPPED = SPANS.labels("dropped")


class SpanExporter:
    def __init__(self, role: str) -> None:
        self._resource = _resource(role)
        self._scope = InstrumentationScope("foreman", __version__)
        # Nothing is traced by it: it knows which traces are wanted (OTEL_TRACES_SAMPLER).
        self._sampler = TracerProvider(shutdown_on_exit=False, resource=self._resource).sampler
        self._queue: deque[Span] = deque()
        self._exporter: OTLPSpanExporter | None = None
        self._wake = threading.Event()
        self._closing = False
        self._is_away = False
        self._complaints = _Complaints()
        # A daemon: what hangs on the network does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()

    def put(self, span: Span | None) -> None:
        """Never waits. From the event loop alone."""
        if span is None:
            return
        if len(self._queue) >= MAX_QUEUED:
            _DROPPED.inc()
            return
        self._queue.append(span)
        if len(self._queue) >= MAX_BATCH:
            self._wake.set()

    @property
    def has_room(self) -> bool:
        """For a good many spans."""
        return len(self._queue) < MAX_QUEUED // 2

    def begins(self, trace_id: int) -> bool:
        """Whether a trace that begins here is wanted."""
        return _is_wanted(self._sampler.should_sample(_NOWHERE, trace_id, "foreman.submit"))

    def continues(self, context: Context) -> bool:
        """The same of one that began elsewhere."""
        parent = set_span_in_context(NonRecordingSpan(_span_context(context, context.span_id)), _NOWHERE)
        return _is_wanted(self._sampler.should_sample(parent, context.trace_id, "foreman"))

    def close(self, seconds: float) -> None:
        """Export what is there, for so long at most; to be called in a thread of its own."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        if self._exporter is not None:
            # Also ends its waiting for a collector that is away.
            self._exporter.shutdown()  # type: ignore[no-untyped-call]
        _DROPPED.inc(len(self._queue))
        self._queue.clear()

    # -- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        with self._complaints:
            while not self._closing:
                self._wake.wait(GATHER_SECONDS)
                self._wake.clear()
                while self._queue:
                    self._export(self._take())

    def _take(self) -> list[Span]:
        return [self._queue.popleft() for _ in range(min(MAX_BATCH, len(self._queue)))]

    def _export(self, spans: Sequence[Span]) -> None:
        wanted = self._wanted(spans)
        if not wanted:
            return
        try:
            if self._exporter is None:
                self._exporter = OTLPSpanExporter()
            done = self._exporter.export([self._readable(span) for span in wanted])
            problem = None if done is SpanExportResult.SUCCESS else self._complaints.last
        except Exception as error:
            # A variable that makes no sense, or a bug of ours or theirs. It must not end the thread.
            problem = f"{type(error).__name__}: {error}"
        if problem is None:
            _EXPORTED.inc(len(wanted))
        else:
            _DROPPED.inc(len(wanted))
        self._tell(problem)

    def _tell(self, problem: str | None) -> None:
        if problem is not None and not self._is_away:
            log.warning("traces.collector_gone", problem=problem)
        elif problem is None and self._is_away:
            log.info("traces.collector_back")
        self._is_away = problem is not None

    def _wanted(self, spans: Sequence[Span]) -> list[Span]:
        """Those of traces that are recorded: as who began them decided, unless OTEL_TRACES_SAMPLER does."""
        decided: dict[Context, bool] = {}
        for span in spans:
            if span.parent_id is None:
                # Decided when it began.
                decided[span.context] = bool(span.context.flags & 1)
            elif span.context not in decided:
                decided[span.context] = self.continues(span.context)
        return [span for span in spans if decided[span.context]]

    def _readable(self, span: Span) -> ReadableSpan:
        context = span.context
        parent = None if span.parent_id is None else _span_context(context, span.parent_id)
        return ReadableSpan(
            span.name,
            SpanContext(
                context.trace_id, span.span_id, False, TraceFlags(context.flags | _SAMPLED), _state(context)
            ),
            parent,
            self._resource,
            span.attributes,
            [Event(note.name, note.attributes, note.at) for note in span.notes],
            kind=_KINDS[span.kind],
            status=Status() if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=self._scope,
        )


def _resource(role: str) -> Resource:
    """Who we are: as the variables say, and what they leave open."""
    said = Resource.create()
    ours = {"service.version": __version__, "foreman.role": role}
    name = str(said.attributes.get(SERVICE_NAME, ""))
    named = {} if name and not name.startswith("unknown_service") else {SERVICE_NAME: DEFAULT_SERVICE}
    return Resource({**ours, **said.attributes, **named}, said.schema_url)


def _is_wanted(verdict: SamplingResult) -> bool:
    return verdict.decision is Decision.RECORD_AND_SAMPLE


def _span_context(context: Context, span_id: int) -> SpanContext:
    return SpanContext(context.trace_id, span_id, True, TraceFlags(context.flags), _state(context))


def _state(context: Context) -> TraceState | None:
    """What callers send there may be anything; what is no trace state counts as none."""
    return None if context.state is None else TraceState.from_header([context.state])


class _Complaints(logging.Handler):
    """What the library says of exports that fail, which it does of each: the last of it is kept, and told
    with the one line that we write."""

    last = "unknown"

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def __enter__(self) -> None:
        for name in ("opentelemetry.exporter", "opentelemetry.trace"):
            logger = logging.getLogger(name)
            logger.addHandler(self)
            logger.propagate = False

    def __exit__(self, *_: object) -> None:
        for name in ("opentelemetry.exporter", "opentelemetry.trace"):
            logger = logging.getLogger(name)
            logger.removeHandler(self)
            logger.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("opentelemetry.exporter"):
            self.last = record.getMessage()
