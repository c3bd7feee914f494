"""A worker made with `foreman_client`, as a user of the library would write it.

python -m tests.chaos.client_worker URL LEASE_SECONDS RECORDS
"""

import sys
from pathlib import Path
from typing import Any

from foreman_client import ActiveJob, Worker
from tests.chaos.records import Recorder
from tests.patience import pretend_to_work

url, lease_seconds, records = sys.argv[1:4]
recorder = Recorder(Path(records))
worker = Worker(url, queues=["work"], lease_seconds=float(lease_seconds), concurrency=8)


@worker.task("chaos.client")
async def work(payload: dict[str, Any], job: ActiveJob) -> dict[str, Any]:
    recorder.write("began", job=job.job_id, attempt=job.attempt)
    await pretend_to_work(payload["seconds"])
    return {"attempt": job.attempt}


worker.run()
