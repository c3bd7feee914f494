"""A worker to be stopped, frozen and killed: says when it begins, sleeps as long as the job says."""

import sys
from typing import Any

from foreman_client import ActiveJob, Worker
from tests.patience import pretend_to_work

url, kind, lease_seconds = sys.argv[1:4]
worker = Worker(url, lease_seconds=float(lease_seconds))


@worker.task(kind)
async def sleep(payload: dict[str, Any], job: ActiveJob) -> dict[str, Any]:
    sys.stdout.write(f"{job.job_id} {job.attempt}\n")
    sys.stdout.flush()
    await pretend_to_work(payload["seconds"])
    return {"worker": worker.name, "attempt": job.attempt}


worker.run()
