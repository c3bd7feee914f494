"""Workers over HTTP, in a process of their own: claim, run, renew, settle; some of them too late, on purpose.

python -m tests.chaos.workers CONFIG    (JSON: see Config)

Written without the client, as somebody would in any other language. A settlement is repeated as it was until it is
answered, here or at another replica. What they claimed and what they were told is written down before anything else is done
with it. SIGTERM ends it.
"""

import asyncio
import json
import random
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from tests.chaos.calls import Answer, Broken, Endpoint
from tests.chaos.records import Recorder
from tests.patience import pace, pretend_to_work

# As many as a worker has in hand at once: one that takes whatever there is falls behind after a stall, loses the leases
# of all it has, and never catches up.
IN_HAND = 100
LIMIT = 8
WAIT_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Config:
    name: str
    ports: list[int]
    records: str
    seed: int
    loops: int
    lease_seconds: float
    # Empty: whatever there is for a worker.
    kinds: list[str]
    queues: list[str]


class Workers:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._dice = random.Random(config.seed)
        self._replicas = [Endpoint(port) for port in config.ports]
        self._recorder = Recorder(Path(config.records))
        self._stopping = asyncio.Event()
        self._runs: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stopping.set)
        claims = [asyncio.create_task(self._claim()) for _ in range(self._config.loops)]
        await self._stopping.wait()
        for task in [*claims, *self._runs]:
            task.cancel()
        await asyncio.gather(*claims, *self._runs, return_exceptions=True)

    def _replica(self) -> Endpoint:
        return self._dice.choice(self._replicas)

    async def _claim(self) -> None:
        asked: dict[str, Any] = {
            "worker": self._config.name,
            "queues": self._config.queues,
            "limit": LIMIT,
            "wait_seconds": WAIT_SECONDS,
        }
        if self._config.kinds:
            asked["kinds"] = self._config.kinds
        while True:
            while len(self._runs) >= IN_HAND:
                await pace(0.05)
            try:
                answer = await self._replica().ask("POST", "/claims", asked, timeout=WAIT_SECONDS + 10)
            except Broken:
                await pace(0.2)
                continue
            if answer.status != 200:
                self._note_refusal("/claims", answer)
                await pace(0.3)
                continue
            for job in answer.json()["jobs"]:
                self._recorder.write(
                    "claimed",
                    job=job["job_id"],
                    seq=job["seq"],
                    attempt=job["attempt"],
                    token=job["lease_token"],
                    until=job["lease_expires_at"],
                )
                task = asyncio.create_task(self._run(job))
                self._runs.add(task)
                task.add_done_callback(self._runs.discard)

    async def _run(self, job: dict[str, Any]) -> None:
        wanted = job.get("payload") or {}
        does, seconds = wanted.get("do", "complete"), wanted.get("seconds", 0)
        # Once is enough: the second time it ends.
        again = job["attempt"] > 1 or job["deferrals"] > 0
        if does == "complete late":
            if not again:
                await pretend_to_work(self._config.lease_seconds * self._dice.uniform(1.5, 3))
                await self._settle(job, "complete", result=_result(job))
                return
            # For as long as the one before may come back.
            seconds = self._config.lease_seconds * 1.5
        if self._dice.random() < 0.5:
            await self._settle(job, "start")
        if not await self._work(job, seconds):
            return
        if does == "retry" and not again:
            error = {"code": "broken", "message": "It broke."}
            await self._settle(job, "fail", error=error, retryable=True, retry_in_seconds=0.1)
        elif does == "fail":
            await self._settle(
                job, "fail", error={"code": "wrong", "message": "It is wrong."}, retryable=False
            )
        elif does == "release" and not again and job["seq"] < 6:
            await self._settle(job, "release", delay_seconds=0.1)
        elif does == "defer" and not again:
            await self._settle(job, "defer", delay_seconds=0.1)
        else:
            await self._settle(job, "complete", result=_result(job))

    async def _work(self, job: dict[str, Any], seconds: float) -> bool:
        """Pretend to, and keep the lease; False when it was lost."""
        beat = self._config.lease_seconds / 3
        while seconds > beat:
            await pretend_to_work(beat)
            seconds -= beat
            try:
                answer = await self._replica().ask(
                    "POST",
                    f"/jobs/{job['job_id']}/heartbeat",
                    {"lease_token": job["lease_token"]},
                    timeout=beat,
                )
            except Broken:
                continue
            if answer.status == 200:
                told = answer.json()
                self._recorder.write(
                    "renewed", job=job["job_id"], token=job["lease_token"], until=told["lease_expires_at"]
                )
                if told["cancel_requested"]:
                    seconds = 0
            elif answer.status in {404, 409}:
                return False
        await pretend_to_work(seconds)
        return True

    async def _settle(self, job: dict[str, Any], verb: str, **fields: Any) -> None:
        job_id, token = job["job_id"], job["lease_token"]
        settlement = {"lease_token": token, **fields}
        one_of_many = self._dice.random() < 0.5
        path = "/settlements" if one_of_many else f"/jobs/{job_id}/{verb}"
        many = {"settlements": [{"job_id": job_id, "verb": verb, **settlement}]}
        while True:
            try:
                answer = await self._replica().ask("POST", path, many if one_of_many else settlement)
            except Broken:
                await pace(0.2)
                continue
            if answer.status == 503:
                self._note_refusal(path, answer)
                await pace(0.2)
                continue
            break
        if one_of_many and answer.status == 200:
            [told] = answer.json()["settlements"]
            ok, code = told["ok"], told.get("code")
        else:
            ok, code = answer.status == 200, answer.code
        if not ok and code not in {"lease_lost", "not_found"}:
            self._recorder.write("wrong", path=path, status=answer.status, code=code)
        self._recorder.write("settled", job=job_id, token=token, verb=verb, ok=ok, code=code)

    def _note_refusal(self, path: str, answer: Answer) -> None:
        expected = (answer.status, answer.code) == (503, "unavailable") and "retry-after" in answer.headers
        what = "refused" if expected else "wrong"
        self._recorder.write(what, path=path, status=answer.status, code=answer.code)


def _result(job: dict[str, Any]) -> dict[str, Any]:
    """Says whose it is: a result that is not of the last claim was taken from somebody who came too late."""
    return {"token": job["lease_token"], "attempt": job["attempt"]}


if __name__ == "__main__":
    uvloop.run(Workers(Config(**json.loads(sys.argv[1]))).run())
