"""Foreman's own Python worker as a process: no-ops over HTTP, and claims that wait on another replica."""

import asyncio
import json
import time
from typing import cast

from benchmarks.http_client import ask, connect
from benchmarks.measuring import Numbers, percentile
from benchmarks.scripting import main
from foreman_client import Worker

KIND = "bench-noop"
WAITED_KIND = "bench-waited"


async def work(url: str, concurrency: int) -> None:
    worker = Worker(url, concurrency=concurrency)

    @worker.task(KIND)
    async def noop(_payload: object) -> None:
        return None

    await worker.serve(signals=True)


async def waiting_claims(submit_port: int, claim_port: int, jobs: int) -> Numbers:
    """A claim waits on one replica; from just before a job is handed in on the other until it is here."""
    submitter, claimer = await connect(submit_port), await connect(claim_port)
    wanted = json.dumps({"worker": "bench", "kinds": [WAITED_KIND], "wait_seconds": 30}).encode()
    job = json.dumps({"kind": WAITED_KIND}).encode()
    took = []
    for _ in range(jobs):
        claiming = asyncio.ensure_future(ask(claimer, "POST", "/claims", wanted, 200))
        # Let it arrive and wait.
        await asyncio.sleep(0.03)
        sent = time.perf_counter()
        await ask(submitter, "POST", "/jobs", job, 202)
        claimed = cast("dict[str, list[dict[str, str]]]", await claiming)["jobs"]
        took.append(time.perf_counter() - sent)
        body = json.dumps({"lease_token": claimed[0]["lease_token"]}).encode()
        await ask(claimer, "POST", f"/jobs/{claimed[0]['job_id']}/complete", body, 200)
    return {"claim_p50_ms": percentile(took, 0.5) * 1000, "claim_p99_ms": percentile(took, 0.99) * 1000}


if __name__ == "__main__":
    main(work, waiting_claims)
