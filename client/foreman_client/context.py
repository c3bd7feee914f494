"""What a running job hands down to the jobs it submits: parent, trace and the time that is left.

Set by the Worker around each handler, read by every client. A context variable, so it follows `await`, tasks
and `asyncio.to_thread`, and two handlers at once do not see each other's.
"""

import secrets
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Final

TRACEPARENT_PARTS: Final = 4


@dataclass(frozen=True, slots=True)
class RunningJob:
    job_id: str
    deadline: datetime | None = None
    traceparent: str | None = None
    tracestate: str | None = None

    def trace_headers(self) -> dict[str, str]:
        """The same trace, a span of its own for each call (W3C Trace Context)."""
        parts = traceparent_parts(self.traceparent)
        if parts is None:
            return {}
        version, trace_id, _, flags = parts
        headers = {"traceparent": f"{version}-{trace_id}-{secrets.token_hex(8)}-{flags}"}
        if self.tracestate:
            headers["tracestate"] = self.tracestate
        return headers


def traceparent_parts(traceparent: str | None) -> list[str] | None:
    """Version, trace, span and flags; later versions may have more. None for what has less."""
    parts = (traceparent or "").split("-")[:TRACEPARENT_PARTS]
    return parts if len(parts) == TRACEPARENT_PARTS else None


# What tells of it: most handlers submit nothing, and then nobody asks.
running: ContextVar[Callable[[], RunningJob] | None] = ContextVar("foreman_running_job", default=None)


def running_job() -> RunningJob | None:
    """The job whose handler calls this, as it is now; None outside of handlers."""
    told = running.get()
    return None if told is None else told()
