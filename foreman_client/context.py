"""What a running job hands down to the jobs it submits: parent, trace and the time that is left.

Set by the Worker around each handler, read by every client. A context variable, so it follows `await`, tasks
and `asyncio.to_thread`, and two handlers at once do not see each other's.
"""

import secrets
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Final

TRACEPARENT_PARTS: Final = 4


# Not frozen: one is made for every job, and that would cost three times as much.
@dataclass(slots=True)
class RunningJob:
    job_id: str
    deadline: datetime | None = None
    traceparent: str | None = None
    tracestate: str | None = None

    def trace_headers(self) -> dict[str, str]:
        """The same trace, a span of its own for each call (W3C Trace Context)."""
        parts = (self.traceparent or "").split("-")
        if len(parts) != TRACEPARENT_PARTS:
            return {}
        version, trace_id, _, flags = parts
        headers = {"traceparent": f"{version}-{trace_id}-{secrets.token_hex(8)}-{flags}"}
        if self.tracestate:
            headers["tracestate"] = self.tracestate
        return headers


running_job: ContextVar[RunningJob | None] = ContextVar("foreman_running_job", default=None)
