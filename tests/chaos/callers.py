"""The callers, in a process of their own: submit, cancel, watch, poll; and write down every acknowledgement.

python -m tests.chaos.callers CONFIG    (JSON: see Config)

Each submission has an idempotency key and is repeated until somebody has answered it: the first try at one replica, then,
if the connection broke, once more at another at once, as a sensible client does. SIGUSR1 sends a herd; SIGTERM ends it,
after what was begun has been answered.
"""

import asyncio
import itertools
import json
import random
import signal
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from tests.chaos.calls import Answer, Broken, Endpoint
from tests.chaos.flavours import FLAVOURS
from tests.chaos.records import Recorder
from tests.patience import pace

# The metadata that tells a job apart, however often it was submitted.
MARK = "of"
MAX_WATCHED = 40
MAX_POLLED = 20
HERD = 1500
HERD_WATCHERS = 200


@dataclass(frozen=True, slots=True)
class Config:
    # Of the API replicas.
    ports: list[int]
    # Where webhooks go, by the receiver's temper.
    receivers: dict[str, str]
    # Where jobs of kind `http` call.
    target: str
    records: str
    seed: int
    # So many of them, each pausing for so long between two jobs.
    callers: int
    pause: float
    batch: int
    # Which kinds of work there are, with their weights.
    flavours: dict[str, int]
    lease_seconds: float
    # How long an answer is waited for.
    timeout: float


class Callers:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._dice = random.Random(config.seed)
        self._replicas = [Endpoint(port) for port in config.ports]
        self._recorder = Recorder(Path(config.records))
        self._numbers = itertools.count()
        self._stopping = asyncio.Event()
        self._aside: set[asyncio.Task[None]] = set()
        self._watched = self._polled = 0
        self._latest: str | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
        loop.add_signal_handler(signal.SIGUSR1, self._herd)
        async with asyncio.TaskGroup() as callers:
            for _ in range(self._config.callers):
                callers.create_task(self._call())
        for task in self._aside:
            task.cancel()
        await asyncio.gather(*self._aside, return_exceptions=True)

    async def _call(self) -> None:
        names, weights = zip(*self._config.flavours.items(), strict=True)
        while not self._stopping.is_set():
            flavour = self._dice.choices(names, weights)[0]
            size = self._config.batch if self._dice.random() < 0.15 and flavour == "noop" else 1
            make, target, lease = FLAVOURS[flavour], self._config.target, self._config.lease_seconds
            bodies = [self._dressed(make(self._dice, target, lease)) for _ in range(size)]
            for job_id in await self._submit(flavour, bodies):
                self._look_at(flavour, job_id)
            await pace(self._config.pause * self._dice.uniform(0.5, 1.5))

    def _dressed(self, body: dict[str, Any]) -> dict[str, Any]:
        """With what any job may have beside."""
        if self._config.receivers and self._dice.random() < 0.15:
            body["state_webhook_url"] = self._config.receivers[self._temper()]
        if self._latest is not None and body.get("kind") == "noop" and self._dice.random() < 0.02:
            body["depends_on"] = [self._latest]
        return body

    def _temper(self) -> str:
        receivers = self._config.receivers
        weights = [{"ok": 80, "flaky": 18}.get(temper, 1) for temper in receivers]
        return self._dice.choices(list(receivers), weights)[0]

    # -- submitting --------------------------------------------------------------------------------

    async def _submit(self, flavour: str, bodies: list[dict[str, Any]]) -> list[str]:
        """Until they are acknowledged, or refused for good."""
        key = f"chaos-{self._config.seed}-{next(self._numbers)}"
        marks = [f"{key}/{n}" for n in range(len(bodies))]
        bodies = [{**each, "metadata": {MARK: mark}} for each, mark in zip(bodies, marks, strict=True)]
        path, body = ("/jobs", bodies[0]) if len(bodies) == 1 else ("/jobs/batch", {"jobs": bodies})
        last: int | None = None
        while True:
            try:
                answer, last = await self._ask_once_more("POST", path, body, {"idempotency-key": key}, last)
            except Broken as problem:
                self._recorder.write("failed", path=path, problem=str(problem))
                if self._stopping.is_set():
                    # Not acknowledged, so nothing was promised.
                    return []
                await pace(0.2)
                continue
            if answer.status in {200, 202}:
                told = answer.json()
                job_ids = [each["job_id"] for each in told["jobs"]] if "jobs" in told else [told["job_id"]]
                after = [each.get("depends_on", []) for each in bodies]
                self._recorder.write(
                    "acknowledged", jobs=job_ids, marks=marks, flavour=flavour, after=after, by=last
                )
                self._latest = job_ids[0]
                return job_ids
            self._note_refusal(path, answer)
            if answer.status == 503 and not self._stopping.is_set():
                await pace(0.2)
                continue
            return []

    async def _ask_once_more(
        self, method: str, path: str, body: Any, headers: dict[str, str], avoid: int | None
    ) -> tuple[Answer, int]:
        """At one replica; if the connection breaks, at once at another."""
        first, timeout = self._choose(avoid), self._config.timeout
        try:
            return await self._replicas[first].ask(method, path, body, headers, timeout), first
        except Broken as problem:
            self._recorder.write("broken", path=path, problem=str(problem), by=first)
            second = self._choose(first)
            return await self._replicas[second].ask(method, path, body, headers, timeout), second

    def _choose(self, avoid: int | None) -> int:
        others = [n for n in range(len(self._replicas)) if n != avoid] or [0]
        return self._dice.choice(others)

    def _note_refusal(self, path: str, answer: Answer) -> None:
        """A 503 says so, why and when to come back; a full key or queue is a refusal, too. Anything else is wrong."""
        code = answer.code
        said = answer.json().get("detail") if code else answer.body[:200].decode(errors="replace")
        expected = (answer.status, code) in {(409, "key_busy"), (429, "queue_full")} or (
            (answer.status, code) == (503, "unavailable") and "retry-after" in answer.headers
        )
        what = "refused" if expected else "wrong"
        self._recorder.write(what, path=path, status=answer.status, code=code, said=said)

    # -- beside ------------------------------------------------------------------------------------

    def _look_at(self, flavour: str, job_id: str) -> None:
        if flavour == "cancelled":
            self._beside(self._cancel(job_id))
        elif self._watched < MAX_WATCHED and self._dice.random() < 0.1:
            self._beside(self._watch(job_id))
        elif self._polled < MAX_POLLED and self._dice.random() < 0.1:
            self._beside(self._poll(job_id))

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def _cancel(self, job_id: str) -> None:
        await pace(self._dice.choice([0, 0.1, 1]))
        while True:
            try:
                answer, _ = await self._ask_once_more("POST", f"/jobs/{job_id}/cancel", {}, {}, None)
            except Broken:
                await pace(0.2)
                continue
            if answer.status != 503:
                self._recorder.write("cancelled", job=job_id, status=answer.status)
                return
            await pace(0.2)

    async def _watch(self, job_id: str) -> None:
        """All its events, on whichever replica, to the end."""
        self._watched += 1
        seen, ended = 0, False
        try:
            while not ended:
                try:
                    async for seq, event in self._replicas[self._choose(None)].events(
                        f"/jobs/{job_id}/events", seen
                    ):
                        self._saw("stream", job_id, seq, event)
                        seen = seq
                        ended = event["type"] in ENDS
                except Broken:
                    await pace(0.2)
                else:
                    # A stream that ended properly has told the end, or its server is stopping.
                    await pace(0.05)
        finally:
            self._watched -= 1

    async def _poll(self, job_id: str) -> None:
        """The job itself by its ETag, and its page of events."""
        self._polled += 1
        try:
            state, seen = "", 0
            while state not in ENDS:
                await pace(0.1)
                replica = self._replicas[self._choose(None)]
                try:
                    answer = await replica.ask("GET", f"/jobs/{job_id}?wait=2")
                    page = await replica.ask("GET", f"/jobs/{job_id}/events?after={seen}")
                except Broken:
                    continue
                if answer.status == 200:
                    state = answer.json()["state"]
                    seq = int(answer.headers["etag"].strip('"'))
                    self._recorder.write("saw", how="etag", job=job_id, seq=seq, state=state)
                elif answer.status not in {503, 304}:
                    self._recorder.write("wrong", path="/jobs/{id}", status=answer.status, job=job_id)
                    return
                if page.status == 200:
                    for event in page.json()["events"]:
                        self._saw("page", job_id, event["seq"], event)
                    seen = page.json()["next_after"]
        finally:
            self._polled -= 1

    def _saw(self, how: str, job_id: str, seq: int, event: dict[str, Any]) -> None:
        self._recorder.write("saw", how=how, job=job_id, seq=seq, type=event["type"], moment=event["at"])

    def _herd(self) -> None:
        for number in range(HERD):
            self._beside(self._one_of_the_herd(watches=number < HERD_WATCHERS))

    async def _one_of_the_herd(self, *, watches: bool) -> None:
        for job_id in await self._submit("noop", [{"kind": "noop"}]):
            if watches:
                await self._watch(job_id)


ENDS = frozenset({"done", "failed", "cancelled", "expired", "skipped", "stale", "dismissed"})

if __name__ == "__main__":
    uvloop.run(Callers(Config(**json.loads(sys.argv[1]))).run())
