"""Submits to Foreman at a fixed rate, in a process of its own, then asks each job when it began and ended."""

import asyncio
import time
from datetime import datetime
from typing import Any

from benchmarks.foreman import job_body
from benchmarks.http_client import AskingConnection, ask, connect
from benchmarks.measuring import Numbers, paced, payload_text, percentile
from benchmarks.scripting import main

SETTLE_SECONDS = 30
ASKERS = 4


class Submitter:
    """Takes an idle connection or opens one, so that no job waits behind another on the way in."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[AskingConnection] = []
        self.sent_at: dict[str, float] = {}

    async def send(self, number: int) -> None:
        sent_at = time.time()
        connection = self._idle.pop() if self._idle else await connect(self._port)
        body = job_body(number=number, text=payload_text())
        accepted: Any = await ask(connection, "POST", "/jobs", body, 202)
        self.sent_at[accepted["job_id"]] = sent_at
        self._idle.append(connection)

    async def finished(self) -> list[tuple[float, dict[str, Any]]]:
        """All that were sent: when, and how they ended."""
        left = iter(self.sent_at.items())
        found: list[tuple[float, dict[str, Any]]] = []

        async def keep_asking() -> None:
            connection = await connect(self._port)
            for job_id, sent_at in left:
                job: Any = await ask(connection, "GET", f"/jobs/{job_id}?wait={SETTLE_SECONDS}", b"", 200)
                if job["state"] != "done":
                    raise RuntimeError(f"job {job_id} is {job['state']}, not done")
                found.append((sent_at, job))
            connection.transport.close()

        await asyncio.gather(*(keep_asking() for _ in range(ASKERS)))
        return found


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


async def submit(port: int, rate: float, seconds: float) -> Numbers:
    warm = Submitter(port)
    await paced(warm.send, rate=rate, seconds=min(1.0, seconds))
    await warm.finished()

    submitter = Submitter(port)
    await paced(submitter.send, rate=rate, seconds=seconds)
    ended = await submitter.finished()
    started = [_seconds(job["started_at"]) - sent_at for sent_at, job in ended]
    done = [_seconds(job["completed_at"]) - sent_at for sent_at, job in ended]
    return {
        "p50_ms": percentile(started, 0.50) * 1000,
        "p99_ms": percentile(started, 0.99) * 1000,
        "done_p50_ms": percentile(done, 0.50) * 1000,
        "done_p99_ms": percentile(done, 0.99) * 1000,
    }


if __name__ == "__main__":
    main(submit)
