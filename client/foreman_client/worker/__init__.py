"""Do jobs: `Worker` claims them over HTTP, runs your handlers and reports back. See docs/workers.md."""

from foreman_client.worker.active import ActiveJob
from foreman_client.worker.blocking_job import BlockingActiveJob
from foreman_client.worker.outcomes import Defer, Fail, JobInterrupted, Retry
from foreman_client.worker.worker import Worker

__all__ = ["ActiveJob", "BlockingActiveJob", "Defer", "Fail", "JobInterrupted", "Retry", "Worker"]
