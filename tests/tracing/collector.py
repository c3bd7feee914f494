"""A collector for tests: takes in what is exported to it, and plays the target and the receiver of jobs as well."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.conftest import wait_until

ERROR = 2


@dataclass(frozen=True)
class Exported:
    """A span as it arrived; ids as in a traceparent, times in nanoseconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    error: str | None
    events: list[str]
    state: str
    resource: dict[str, Any]


@dataclass
class Collector:
    port: int = 0
    spans: list[Exported] = field(default_factory=list)
    # Requests of jobs and webhooks: path and headers.
    calls: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    _server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        handler = type("Handler", (_Handler,), {"collector": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def of_trace(self, trace_id: str) -> list[Exported]:
        return sorted((each for each in self.spans if each.trace_id == trace_id), key=lambda each: each.start)

    def trace(self, traceparent: str, **wanted: int) -> list[Exported]:
        """All spans of this trace, once there are so many of each name (`queued`, `run` …)."""
        trace_id = traceparent.split("-")[1]
        needed = Counter({f"foreman.{name}": number for name, number in wanted.items()})
        wait_until(
            lambda: Counter(each.name for each in self.of_trace(trace_id)) >= needed,
            30,
            lambda: f"of {wanted}: {self.of_trace(trace_id)}",
        )
        return self.of_trace(trace_id)


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    collector.open()
    try:
        yield collector
    finally:
        collector.close()


class _Handler(BaseHTTPRequestHandler):
    collector: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        status = 200
        if self.path == "/v1/traces":
            self.collector.spans += _spans(ExportTraceServiceRequest.FromString(body))
        else:
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen = [path for path, _ in self.collector.calls]
            # Broken when it is called for the first time.
            status = 500 if "flaky" in self.path and self.path not in seen else 200
            self.collector.calls.append((self.path, headers))
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


def _spans(request: Any) -> list[Exported]:
    return [
        Exported(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.kind,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            _values(span.attributes),
            span.status.message if span.status.code == ERROR else None,
            [event.name for event in span.events],
            span.trace_state,
            _values(of_process.resource.attributes),
        )
        for of_process in request.resource_spans
        for of_scope in of_process.scope_spans
        for span in of_scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
