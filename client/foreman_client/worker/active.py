"""ActiveJob: the job in a handler's hands."""

import asyncio
import mimetypes
import time
from collections.abc import Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from foreman_client.client import AsyncForeman
from foreman_client.context import RunningJob
from foreman_client.events import Event
from foreman_client.wire import moment, quoted, timestamp
from foreman_client.worker.mailbox import Mailbox
from foreman_client.worker.settlements import Settlement, Settler

LEASE_TOKEN_HEADER: Final = "X-Foreman-Lease-Token"  # noqa: S105  # the name of a header, not a token

# What the server takes in one message.
MAX_TEXT: Final = 10_000

T = TypeVar("T")

# Why a handler is to stop.
CANCELLED: Final = "cancelled"
LEASE_LOST: Final = "lease_lost"
SHUTDOWN: Final = "shutdown"
MAX_DURATION: Final = "max_duration"


class ActiveJob:
    """A claimed job. Its lease is renewed all along; if it is lost or the job is cancelled, the handler is.

    `progress` and `log` return at once and are sent in the background; await them to know that the server has
    them.
    """

    # What most jobs never change is the class's: hundreds begin at once.
    # Why it should stop, if it should.
    stop_reason: str | None = None
    runner: "asyncio.Task[None] | None" = None
    # A blocking handler cannot be interrupted, only asked.
    interruptible = True
    _mailbox: Mailbox | None = None
    _announced = False
    _beating = False
    # Waits on behalf of a blocking handler.
    _waits: "frozenset[asyncio.Task[Any]]" = frozenset()

    def __init__(
        self, data: Mapping[str, Any], client: AsyncForeman, settler: Settler, lease_seconds: float
    ) -> None:
        self.data = data
        self.job_id: str = data["job_id"]
        self.kind: str = data["kind"]
        self.payload: Any = data.get("payload")
        self.lease_token: str = data["lease_token"]
        self.head = f'{{"job_id":{quoted(self.job_id)},"lease_token":{quoted(self.lease_token)}'.encode()
        self.claimed = time.monotonic()
        self.lease_ends = self.claimed + lease_seconds
        self._client = client
        self._settler = settler
        self._lease_seconds = lease_seconds
        self._deadline: str | None = data.get("deadline")

    def __repr__(self) -> str:
        return f"ActiveJob({self.job_id!r}, kind={self.kind!r})"

    # --- what it is ----------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        """1 on the first run."""
        return int(self.data.get("attempt", 1))

    @property
    def max_attempts(self) -> int | None:
        return self.data.get("max_attempts")

    @property
    def queue(self) -> str:
        return str(self.data.get("queue", "default"))

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.data.get("metadata") or {}

    @property
    def parent_id(self) -> str | None:
        return self.data.get("parent_id")

    @property
    def deadline(self) -> datetime | None:
        """When the whole job must be over, by the server's clock."""
        return moment(self._deadline)

    @property
    def remaining_seconds(self) -> float | None:
        """Until the deadline, by this machine's clock; None without one."""
        deadline = self.deadline
        return None if deadline is None else (deadline - datetime.now(UTC)).total_seconds()

    @property
    def cancelled(self) -> bool:
        """True once the handler should stop, whatever the reason; `stop_reason` says which."""
        return self.stop_reason is not None

    @property
    def foreman(self) -> AsyncForeman:
        """A client of the same server; what it submits becomes a child of this job."""
        return self._client

    # --- what a handler does -------------------------------------------------------------------------------

    def progress(
        self,
        current: float | None = None,
        total: float | None = None,
        *,
        message: str | None = None,
        step: str | None = None,
        fraction: float | None = None,
    ) -> "asyncio.Future[bool]":
        """Say how far it is; several calls in a row may be reported as the last one."""
        said = {
            "current": current,
            "total": total,
            "message": message[:MAX_TEXT] if message else message,
            "step": step,
            "fraction": fraction,
        }
        return self._report("progress", {name: value for name, value in said.items() if value is not None})

    def log(self, message: str, level: str = "info") -> "asyncio.Future[bool]":
        """A line in the job's log: level info, warn or error."""
        return self._report("logs", {"entries": [log_entry(message, level)]})

    async def recv_event(
        self, types: str | Sequence[str] | None = None, timeout: float | None = None
    ) -> Event | None:
        """The next event that somebody sent to this job, each once; None when `timeout` seconds are over.

        With `types`, the next one of these; others stay for a later call.
        """
        if self._mailbox is None:
            self._mailbox = Mailbox(self._client, self.job_id)
        return await self._mailbox.receive((types,) if isinstance(types, str) else types, timeout)

    async def artifact(self, name: str, content: bytes | str | Path, content_type: str | None = None) -> None:
        """Keep a file with the job: bytes, text, or a file to read."""
        if isinstance(content, Path):
            body = await asyncio.to_thread(content.read_bytes)
        elif isinstance(content, str):
            body = bytes(content, "utf-8")
        else:
            body = content
        usual = "text/plain; charset=utf-8" if isinstance(content, str) else "application/octet-stream"
        headers = {
            "Content-Type": content_type or mimetypes.guess_type(name)[0] or usual,
            LEASE_TOKEN_HEADER: self.lease_token,
        }
        await self._client.request(
            "PUT", f"/jobs/{self.job_id}/artifacts/{quote(name, safe='')}", content=body, headers=headers
        )

    def _report(self, verb: str, fields: dict[str, Any]) -> "asyncio.Future[bool]":
        self.announce()
        heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self.stop_reason == LEASE_LOST:
            heard.set_result(False)
            return heard
        settlement = Settlement(self, verb, fields)
        settlement.done.append(lambda taken: None if heard.done() else heard.set_result(taken))
        self._settler.put(settlement)
        return heard

    # --- what the worker does ------------------------------------------------------------------------------

    def running(self) -> RunningJob:
        """What is handed down to jobs submitted by the handler."""
        trace = self.data.get("trace") or {}
        return RunningJob(self.job_id, self.deadline, trace.get("traceparent"), trace.get("tracestate"))

    def announce(self) -> None:
        """Tell the server that it has begun, once. Short jobs end before that, and complete says it too."""
        if not self._announced and self.stop_reason is None:
            self._announced = True
            self._settler.put(Settlement(self, "start"))

    async def unless_stopped(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait on behalf of a blocking handler; ends with CancelledError when the job is to stop."""
        task = asyncio.current_task()
        if self.stop_reason is not None or task is None:
            coroutine.close()
            raise asyncio.CancelledError
        self._waits |= {task}
        try:
            return await coroutine
        finally:
            self._waits -= {task}

    def stop(self, reason: str) -> None:
        """Make the handler stop; the first reason stands, but for a lost lease, which outdoes the others."""
        if self.stop_reason is not None and (reason != LEASE_LOST or self.stop_reason == LEASE_LOST):
            return
        first = self.stop_reason is None
        self.stop_reason = reason
        for wait in self._waits:
            wait.cancel()
        if self.runner is not None and first and (self.interruptible or reason in {SHUTDOWN, MAX_DURATION}):
            self.runner.cancel()

    def lease_lost(self, code: str) -> None:
        self.stop(LEASE_LOST)

    def answered(self, answer: Mapping[str, Any]) -> None:
        """The server took a settlement of this job, and may have had something to say."""
        if "lease_expires_at" in answer:
            self.lease_ends = time.monotonic() + self._lease_seconds
            self._deadline = answer.get("deadline") or self._deadline
        if answer.get("cancel_requested"):
            self.stop(CANCELLED)

    def heartbeat(self) -> None:
        """Renew the lease and hear whether the job was cancelled; not twice while the server is away."""
        if self._beating:
            return
        self._beating = True
        settlement = Settlement(self, "heartbeat")
        settlement.done.append(self._beaten)
        self._settler.put(settlement)

    def _beaten(self, _taken: bool) -> None:
        self._beating = False


def log_entry(message: str, level: str) -> dict[str, str]:
    if level not in {"info", "warn", "error"}:
        raise ValueError(f"level is info, warn or error, not {level!r}")
    return {"level": level, "message": str(message)[:MAX_TEXT], "at": timestamp(datetime.now(UTC))}
