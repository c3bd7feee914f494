"""BlockingActiveJob: an ActiveJob for handlers that run in a thread."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelled
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from foreman_client.blocking import Foreman
from foreman_client.events import Event
from foreman_client.worker.active import ActiveJob, log_entry
from foreman_client.worker.outcomes import JobInterrupted

T = TypeVar("T")


class BlockingActiveJob:
    """The same job, for a plain `def`. A thread cannot be cancelled from outside: look at `cancelled`, or let
    `progress`, `log` and `recv_event` raise JobInterrupted once it is time to stop."""

    def __init__(self, job: ActiveJob, loop: asyncio.AbstractEventLoop, foreman: Foreman) -> None:
        self._job = job
        self._loop = loop
        self.foreman = foreman
        self.job_id = job.job_id
        self.kind = job.kind
        self.queue = job.queue
        self.payload = job.payload
        self.attempt = job.attempt
        self.max_attempts = job.max_attempts
        self.parent_id = job.parent_id

    def __repr__(self) -> str:
        return f"BlockingActiveJob({self.job_id!r}, kind={self.kind!r})"

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._job.metadata

    @property
    def deadline(self) -> datetime | None:
        return self._job.deadline

    @property
    def remaining_seconds(self) -> float | None:
        return self._job.remaining_seconds

    @property
    def cancelled(self) -> bool:
        return self._job.cancelled

    @property
    def stop_reason(self) -> str | None:
        return self._job.stop_reason

    def raise_if_cancelled(self) -> None:
        if self._job.stop_reason is not None:
            raise JobInterrupted(f"job {self.job_id} is to stop: {self._job.stop_reason}")

    def progress(
        self,
        current: float | None = None,
        total: float | None = None,
        *,
        message: str | None = None,
        step: str | None = None,
        fraction: float | None = None,
    ) -> None:
        self.raise_if_cancelled()
        self._loop.call_soon_threadsafe(
            lambda: self._job.progress(current, total, message=message, step=step, fraction=fraction)
        )

    def log(self, message: str, level: str = "info") -> None:
        self.raise_if_cancelled()
        # Checked here: an error raised in the event loop would not reach the handler.
        log_entry(message, level)
        self._loop.call_soon_threadsafe(self._job.log, message, level)

    def recv_event(
        self, types: str | Sequence[str] | None = None, timeout: float | None = None
    ) -> Event | None:
        return self._await(self._job.recv_event(types, timeout))

    def artifact(self, name: str, content: bytes | str | Path, content_type: str | None = None) -> None:
        self._await(self._job.artifact(name, content, content_type))

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for the event loop to do it; stopping the job ends the wait."""
        future = asyncio.run_coroutine_threadsafe(self._job.unless_stopped(coroutine), self._loop)
        try:
            return future.result()
        except (FutureCancelled, asyncio.CancelledError):
            self.raise_if_cancelled()
            raise
