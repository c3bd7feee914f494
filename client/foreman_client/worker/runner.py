"""From a claimed job to its settlement: call the handler, make one verb of whatever comes of it."""

import asyncio
import logging
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from foreman_client.blocking import Foreman
from foreman_client.context import running
from foreman_client.tracing import work_span
from foreman_client.worker.active import LEASE_LOST, MAX_DURATION, SHUTDOWN, ActiveJob
from foreman_client.worker.blocking_job import BlockingActiveJob
from foreman_client.worker.outcomes import Defer, Fail, Retry
from foreman_client.worker.settlements import Settlement, Settler
from foreman_client.worker.tasks import Task
from foreman_client.worker.threads import DaemonThreads

log = logging.getLogger("foreman_client.worker")

MAX_MESSAGE = 2000


class Runner:
    def __init__(self, settler: Settler, foreman: Callable[[], Foreman]) -> None:
        self._settler = settler
        self._foreman = foreman
        self._threads = DaemonThreads("foreman-task")

    async def run(self, task: Task, job: ActiveJob, ended: Callable[[ActiveJob], None]) -> None:
        """Runs as a task of its own, so the context variable is this handler's alone."""
        running.set(job.running)
        thread: asyncio.Future[Any] | None = None
        timer = None
        if task.max_duration is not None:
            timer = asyncio.get_running_loop().call_later(task.max_duration, job.stop, MAX_DURATION)
        try:
            with work_span(job) as span:
                try:
                    arguments = task.arguments(job.payload, job)
                    if task.blocking:
                        thread = self._in_thread(task, job, arguments)
                        result = await asyncio.shield(thread)
                    else:
                        result = await task.handler(*arguments)
                    settlement = self._returned(task, job, result)
                except (Exception, SystemExit, asyncio.CancelledError) as error:
                    settlement = self._raised(task, job, error)
                if span is not None:
                    span.ended(*_ending(settlement))
        finally:
            if timer is not None:
                timer.cancel()
        if settlement is not None:
            self._settler.put(settlement)
        ended(job)
        if thread is not None and not thread.done():
            # The job is settled, but the thread still occupies its slot.
            await asyncio.wait({thread})

    def _in_thread(self, task: Task, job: ActiveJob, arguments: tuple[Any, ...]) -> "asyncio.Future[Any]":
        if len(arguments) == 2:
            blocking_job = BlockingActiveJob(job, asyncio.get_running_loop(), self._foreman())
            arguments = (arguments[0], blocking_job)
        thread = self._threads.run(partial(copy_context().run, task.handler, *arguments))
        # Asked for once, or asyncio complains about what an abandoned handler raised later.
        thread.add_done_callback(lambda done: done.cancelled() or done.exception())
        return thread

    def _returned(self, task: Task, job: ActiveJob, result: Any) -> Settlement | None:
        if job.stop_reason is None or job.stop_reason == SHUTDOWN:
            return Settlement(job, "complete", result=task.encoded(result))
        return self._stopped(job, task)

    def _raised(self, task: Task, job: ActiveJob, error: BaseException) -> Settlement | None:
        current = asyncio.current_task()
        if (
            isinstance(error, asyncio.CancelledError)
            and job.stop_reason is None
            and current
            and current.cancelling()
        ):
            # Not the job is cancelled but the whole worker: nobody is left to settle anything.
            raise error
        if job.stop_reason is not None:
            return self._stopped(job, task)
        if isinstance(error, Defer):
            return Settlement(job, "defer", {"delay_seconds": error.delay_seconds})
        if isinstance(error, Retry):
            return _failure(job, error.code, str(error), retryable=True, retry_in=error.in_seconds)
        if isinstance(error, Fail):
            return _failure(job, error.code, str(error), retryable=False)
        retryable = isinstance(error, task.retry_on)
        # The traceback stays here: a job's error is shown to callers.
        log.log(
            logging.WARNING if retryable else logging.ERROR,
            "%s %s failed%s",
            job.kind,
            job.job_id,
            " and will be retried" if retryable else "",
            exc_info=error,
        )
        return _failure(job, type(error).__name__, str(error), retryable=retryable)

    def _stopped(self, job: ActiveJob, task: Task) -> Settlement | None:
        if job.stop_reason == LEASE_LOST:
            log.warning("%s %s was stopped: its lease is lost", job.kind, job.job_id)
            return None
        if job.stop_reason == MAX_DURATION:
            message = f"ran longer than {task.max_duration:g} s"
            return _failure(job, "max_duration_exceeded", message, retryable=True)
        # A release of a job that was asked to stop confirms the cancel.
        return Settlement(job, "release", {})


def _ending(settlement: Settlement | None) -> tuple[str, str | None]:
    """What is said of it in a trace: the verb, and the code of an error."""
    if settlement is None:
        return LEASE_LOST, LEASE_LOST
    return settlement.verb, (settlement.fields or {}).get("error", {}).get("code")


def _failure(
    job: ActiveJob, code: str, message: str, *, retryable: bool, retry_in: float | None = None
) -> Settlement:
    # Lone surrogates (from file names, say) have no place in JSON.
    said = (message or code)[:MAX_MESSAGE].encode(errors="replace").decode()
    fields: dict[str, Any] = {"error": {"code": code, "message": said}, "retryable": retryable}
    if retry_in is not None:
        fields["retry_in_seconds"] = retry_in
    return Settlement(job, "fail", fields)
