"""The one sender of everything a worker reports: results, progress, logs, heartbeats.

Natural batching: one request is under way at a time, and the next takes all that has come meanwhile. So a
busy worker settles hundreds of jobs per request and an idle one a single job at once, with no timer. One
settlement per job in a request; what else a job reported waits its turn behind it. Logs have a route of their
own, one request per job, in the same round.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from foreman_client.client import AsyncForeman
from foreman_client.errors import Conflict, ForemanError, InvalidRequest, NotFound, PayloadTooLarge
from foreman_client.wire import JSON_TYPE, Reply, Request, encode, error_from
from foreman_client.worker.backoff import Backoff

log = logging.getLogger("foreman_client.worker")

MAX_SETTLEMENTS: Final = 1000
# Far below the server's limit for a body; a single larger result still goes, alone.
MAX_LOGS: Final = 20
MAX_ENTRIES: Final = 1000
MAX_BYTES: Final = 4 * 1024 * 1024
# After an outage the server leaves leases alone for a few seconds only, until they have been renewed.
LONGEST_PAUSE: Final = 1.0
FINAL: Final = frozenset({"complete", "fail", "release", "defer"})
COALESCED: Final = frozenset({"progress", "logs"})


class LeasedJob(Protocol):
    """What the sender needs to know of a job."""

    job_id: str
    lease_token: str
    # `{"job_id":…,"lease_token":…` without the closing brace: written once, in front of every settlement.
    head: bytes
    lease_ends: float

    def lease_lost(self, code: str) -> None: ...
    def answered(self, answer: Mapping[str, Any]) -> None: ...


class Settlement:
    """One verb for one job. `fields` are encoded late, so that progress and logs can still grow."""

    __slots__ = ("body", "done", "fields", "job", "sent", "verb")

    def __init__(
        self, job: LeasedJob, verb: str, fields: dict[str, Any] | None = None, result: bytes | None = None
    ) -> None:
        self.job = job
        self.verb = verb
        self.fields = fields
        self.body: bytes | None = None
        if result is not None:
            # As the server reads it quickest: in this order, and without a space.
            self.body = b'%b,"verb":"complete","result":%b}' % (job.head, result)
        # Called with whether the server took it.
        self.done: list[Callable[[bool], None]] = []
        self.sent = False

    def encoded(self) -> bytes:
        if self.body is None:
            if self.verb == "logs":
                # Addressed by its path, so without id and verb.
                self.body = encode({"lease_token": self.job.lease_token, **(self.fields or {})})
            else:
                said = encode({"verb": self.verb, **(self.fields or {})})
                self.body = b"%b,%b" % (self.job.head, said[1:])
        return self.body

    def finish(self, taken: bool) -> None:
        for call in self.done:
            call(taken)


class Settler:
    """Give it settlements from the event loop; `run` is its one task."""

    def __init__(self, client: AsyncForeman, *, patience_seconds: float) -> None:
        self._client = client
        self._patience = patience_seconds
        # By lease: a job that came back while a former run of it is still here has two.
        self._waiting: dict[str, list[Settlement]] = {}
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._most = MAX_SETTLEMENTS

    def __len__(self) -> int:
        """Leases that have something unsent."""
        return len(self._waiting)

    def put(self, settlement: Settlement) -> Settlement:
        """Queue it, or let it melt into one that has not left yet; answers the one that will be sent."""
        line = self._waiting.get(settlement.job.lease_token)
        if line is None:
            if not self._waiting:
                self._empty.clear()
                self._wake.set()
            self._waiting[settlement.job.lease_token] = [settlement]
            return settlement
        last = line[-1]
        if last.verb == settlement.verb and last.verb in COALESCED and not last.sent and _has_room(last):
            _melt(last, settlement)
            return last
        if settlement.verb in FINAL and not last.sent and last.verb in {"start", "heartbeat"}:
            # The end says it all: complete passes through working by itself.
            line.pop()
            last.finish(True)
        line.append(settlement)
        return settlement

    async def drained(self) -> None:
        """Until nothing is waiting."""
        await self._empty.wait()

    async def run(self) -> None:
        backoff = Backoff(LONGEST_PAUSE)
        while True:
            await self._wake.wait()
            # Handlers that are ready to finish do so first, and come along.
            await asyncio.sleep(0)
            if not (batch := self._take()):
                continue
            error = await self._round(batch)
            if error is not None:
                if backoff.failures == 0:
                    log.warning("cannot settle %d jobs, keeping on: %s", len(batch), error)
                self._give_up_on_the_hopeless()
                await asyncio.sleep(backoff.next(getattr(error, "retry_after", None)))
            elif backoff.failures:
                log.info("settling again after %d failed tries", backoff.failures)
                backoff.reset()

    async def _round(self, batch: list[Settlement]) -> ForemanError | None:
        """Send one of each job's; the error, if the server did not take its part in it."""
        logs = [each for each in batch if each.verb == "logs"]
        others = [each for each in batch if each.verb != "logs"] if logs else batch
        if not logs:
            return await self._settle(others)
        sent = [self._log(each) for each in logs] + ([self._settle(others)] if others else [])
        return next((error for error in await asyncio.gather(*sent) if error is not None), None)

    async def _settle(self, batch: list[Settlement]) -> ForemanError | None:
        try:
            answers = await self._send(batch)
        except (InvalidRequest, PayloadTooLarge) as error:
            self._divide(batch, error)
            return None
        except ForemanError as error:
            return error
        self._most = min(MAX_SETTLEMENTS, self._most * 2)
        for settlement, answer in zip(batch, answers, strict=True):
            self._conclude(settlement, answer)
        return None

    async def _log(self, settlement: Settlement) -> ForemanError | None:
        answer: dict[str, Any] = {"ok": True}
        try:
            await self._post(f"/jobs/{settlement.job.job_id}/logs", settlement.encoded())
        except (Conflict, NotFound, InvalidRequest, PayloadTooLarge) as error:
            answer = {"ok": False, "code": error.code, "detail": str(error)}
        except ForemanError as error:
            return error
        self._conclude(settlement, answer)
        return None

    def _take(self) -> list[Settlement]:
        batch: list[Settlement] = []
        size = logs = 0
        for line in self._waiting.values():
            settlement = line[0]
            if settlement.verb == "logs":
                logs += 1
                if logs > MAX_LOGS:
                    continue
            size += len(settlement.encoded())
            if batch and (size > MAX_BYTES or len(batch) >= self._most):
                break
            settlement.sent = True
            batch.append(settlement)
        return batch

    async def _send(self, batch: list[Settlement]) -> list[Mapping[str, Any]]:
        """The answers, in the order of the batch."""
        body = b'{"settlements":[%b]}' % b",".join([each.encoded() for each in batch])
        reply = await self._post("/settlements", body)
        answers: list[Mapping[str, Any]] = reply.having("settlements", foreign=_none)["settlements"]
        if [each.job.job_id for each in batch] != [answer["job_id"] for answer in answers]:
            raise ForemanError("the server did not answer for every job")
        return answers

    async def _post(self, path: str, body: bytes) -> Reply:
        request = Request("POST", path, headers={"Content-Type": JSON_TYPE}, content=body)
        reply = await self._client.transport.send(request)
        if reply.status >= 400:
            raise error_from(reply, path)
        return reply

    def _conclude(self, settlement: Settlement, answer: Mapping[str, Any]) -> None:
        job = settlement.job
        taken = answer.get("ok") is True
        self._remove(settlement)
        settlement.finish(taken)
        if taken:
            job.answered(answer)
            return
        code = str(answer.get("code"))
        if code in {"payload_too_large", "invalid_request"}:
            self._refused(settlement, code, str(answer.get("detail") or answer.get("message") or code))
        else:
            # lease_lost, job_terminal, invalid_transition, not_found: the job is not ours any more.
            self._forget(job)
            job.lease_lost(code)

    def _divide(self, batch: list[Settlement], error: InvalidRequest | PayloadTooLarge) -> None:
        """One of them spoils the request: the one the server names, else fewer at a time until it shows."""
        index = error.problem.get("index", 0 if len(batch) == 1 else None)
        if not isinstance(index, int) or not 0 <= index < len(batch):
            self._most = len(batch) // 2
            return
        spoiler = batch[index]
        self._remove(spoiler)
        spoiler.finish(False)
        self._refused(spoiler, error.code, str(error))

    def _refused(self, settlement: Settlement, code: str, message: str) -> None:
        """The lease still holds: a result that is not taken becomes a failure, anything else is dropped."""
        log.warning("%s of job %s was refused: %s", settlement.verb, settlement.job.job_id, message)
        if settlement.verb == "complete":
            error = {"code": code, "message": message[:2000]}
            self.put(Settlement(settlement.job, "fail", {"error": error, "retryable": False}))

    def _give_up_on_the_hopeless(self) -> None:
        """A lease that ended long ago has been taken over; before that, only the server can know."""
        too_late = time.monotonic() - self._patience
        for line in list(self._waiting.values()):
            job = line[0].job
            if job.lease_ends < too_late:
                log.error("giving up on job %s: the server has been away for too long", job.job_id)
                self._forget(job)
                job.lease_lost("lease_lost")

    def _remove(self, settlement: Settlement) -> None:
        token = settlement.job.lease_token
        line = self._waiting.get(token)
        if line and line[0] is settlement:
            del line[0]
            if not line:
                del self._waiting[token]
                self._rest_if_empty()

    def _forget(self, job: LeasedJob) -> None:
        """Drop all that waits under this lease."""
        for settlement in self._waiting.pop(job.lease_token, ()):
            settlement.finish(False)
        self._rest_if_empty()

    def _rest_if_empty(self) -> None:
        if not self._waiting:
            self._wake.clear()
            self._empty.set()


def _none(_answers: Any) -> None:
    """Answers to settlements are all the server's own words."""


def _has_room(settlement: Settlement) -> bool:
    return settlement.verb != "logs" or len((settlement.fields or {})["entries"]) < MAX_ENTRIES


def _melt(last: Settlement, new: Settlement) -> None:
    if last.verb == "logs" and last.fields and new.fields:
        last.fields["entries"].extend(new.fields["entries"])
    else:
        last.fields = new.fields
    last.body = None
    last.done += new.done
