"""The deliverer: claims what is due, sends it, records what became of it. Every process runs one.

A chain is one job's deliveries, one after the other: the next leaves once the one before is recorded as over.
A process that dies loses nothing: its leases run out and another takes over; what it had sent but not yet
recorded is sent again. Receivers are kept apart from the claim on (see circuit.py): a host that hangs, fails
or has a million deliveries waiting takes neither sends nor claims away from the others.
"""

import asyncio
import random
import re
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from app.config import Settings
from app.errors import Unavailable
from app.events.hub import Hub
from app.jobs.retry import jitter
from app.loops.batcher import Batcher
from app.loops.loop import Loop
from app.outbound.response import MAX_RETRY_AFTER_SECONDS
from app.store import outbox
from app.store.changes import Changes
from app.store.daily_counts import DailyTally
from app.store.database import Database
from app.store.kept import Kept
from app.store.outbox import DueDelivery, Try, Wanted
from app.telemetry import (
    LOOK_SECONDS,
    MAX_RECEIVERS,
    OTHER,
    WEBHOOK_CIRCUITS,
    WEBHOOK_SECONDS,
    WEBHOOK_TRIES,
    WEBHOOKS_IN_FLIGHT,
    WEBHOOKS_OLDEST,
    WEBHOOKS_PENDING,
    SparingLog,
    without_secrets,
)
from app.webhooks.circuit import OVERDUE_AT_ONCE, OVERDUE_SECONDS, Receiver
from app.webhooks.send import MAX_RESULT_BYTES, Sender, Verdict

if TYPE_CHECKING:
    from app.tracing.tracer import Tracer

log = structlog.get_logger()

# Short, so that a dead process's deliveries are soon another's; renewed while a receiver takes its time.
LEASE_SECONDS = 10.0
RENEW_SECONDS = 3.0
MAX_IN_FLIGHT = 384
# Receivers that have not shown yet that they answer share this part of it.
MAX_UNPROVEN = MAX_IN_FLIGHT // 2
MAX_CLAIM = 200
MAX_RECORD = 200
# Jobs with webhooks that this process has seen: a change of one is a hint. Others are found by polling.
MAX_JOBS = 20_000
FORGET_SECONDS = 600.0
# How long what is being sent may take when the server stops.
GRACE_SECONDS = 3.0
# When a delivery is tried again; after the last of these it is given up on.
LADDER_SECONDS: tuple[float, ...] = (5, 30, 120, 600, 1800, 7200, 28_800)

_HOST = re.compile(r"[^:]+://([^/?#]+)")
_OUTCOMES = {name: WEBHOOK_TRIES.labels(name) for name in ("delivered", "retried", "given_up", "refused")}


class Deliverer:
    def __init__(
        self,
        database: Database,
        hub: Hub,
        sender: Sender,
        settings: Settings,
        tally: DailyTally | None = None,
        tracer: "Tracer | None" = None,
    ) -> None:
        self._database = database
        self._sender = sender
        # By receiver; somebody else writes it down.
        self._tally = tally or DailyTally()
        self._tracer = tracer
        self._host_concurrency = settings.webhook_host_concurrency
        self._poll_seconds = settings.poll_seconds
        self._grace_seconds = min(GRACE_SECONDS, settings.shutdown_grace_seconds)
        self._receivers: dict[str, Receiver] = {}
        # Hosts that may have something due, in the order of their turn.
        self._due: dict[str, None] = {}
        self._jobs: dict[str, str] = {}
        self._chains: set[asyncio.Task[None]] = set()
        # Jobs whose chains run here, and whether something was written for them since they last looked.
        self._active: dict[str, bool] = {}
        self._held: dict[tuple[str, int], tuple[int, float]] = {}
        self._looked_at = 0.0
        self._stopping = False
        self._recorder: Batcher[Try, DueDelivery | None] = Batcher(
            "deliveries", self._flush, max_weight=MAX_RECORD
        )
        self._loop = Loop("webhooks", self._round, interval=self._poll_seconds)
        self._keeper = Loop("webhook-leases", self._renew, interval=RENEW_SECONDS)
        self._backlog = Kept(lambda: outbox.backlog(database, MAX_RECEIVERS, OTHER))
        # Receivers may be many, and what is wrong may be on our side.
        self._circuit_log = SparingLog(log)
        hub.subscribe(self._heard)

    async def start(self) -> None:
        await self._loop.start()
        await self._keeper.start()

    async def stop(self) -> None:
        """Begin nothing more; what is being sent may finish within the grace, the rest is let go of."""
        self._stopping = True
        await self._loop.stop()
        if self._chains:
            _, unfinished = await asyncio.wait(self._chains, timeout=self._grace_seconds)
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished)
        await self._keeper.stop()
        await self._recorder.drain()
        if self._held:
            await self._let_go([(job_id, seq, tries) for (job_id, seq), (tries, _) in self._held.items()])
        self._circuit_log.tell_the_rest()

    async def measure(self) -> None:
        """Bring the gauges of what is pending up to date, for whoever reads the metrics."""
        try:
            backlog = await self._backlog.take_within(LOOK_SECONDS)
        except Unavailable:
            backlog = []
        WEBHOOKS_PENDING.clear()
        WEBHOOKS_OLDEST.clear()
        WEBHOOK_CIRCUITS.set(sum(receiver.is_open for receiver in self._receivers.values()))
        for each in backlog:
            WEBHOOKS_PENDING.labels(each.receiver).set(each.pending)
            WEBHOOKS_OLDEST.labels(each.receiver).set(each.oldest_seconds)

    def open_circuits(self) -> frozenset[str]:
        """Receivers that this process leaves alone for now."""
        return frozenset(host for host, receiver in self._receivers.items() if receiver.is_open)

    def _hasten(self, host: str) -> None:
        """Something for this receiver has just become due."""
        self._due[host] = None
        self._loop.wake()

    # -- hints ---------------------------------------------------------------------------------------------

    def _heard(self, changes: Changes[Any]) -> None:
        for host in changes.receivers:
            self._hasten(host)
        for job_id, url in changes.webhooks:
            host = host_of(url)
            if job_id not in self._jobs and len(self._jobs) >= MAX_JOBS:
                del self._jobs[next(iter(self._jobs))]
            self._jobs[job_id] = host
            self._hint(job_id, host)
        if self._jobs:
            for job_id in changes.jobs:
                known = self._jobs.get(job_id)
                if known is not None:
                    self._hint(job_id, known)

    def _hint(self, job_id: str, host: str) -> None:
        """Something was written for this job. While its chain runs nothing can be claimed: a note will do."""
        if job_id in self._active:
            self._active[job_id] = True
        else:
            self._hasten(host)

    # -- claiming ------------------------------------------------------------------------------------------

    async def _round(self) -> float | None:
        if self._stopping:
            return None
        now = time.monotonic()
        rest: float | None = None
        overdue: list[str] = []
        if now - self._looked_at >= self._poll_seconds:
            self._looked_at = now
            rest, overdue = await self._look()
        wanted = self._wanted(time.monotonic(), overdue)
        if not wanted:
            return rest
        claimed = await outbox.claim(
            self._database, wanted, lease_seconds=LEASE_SECONDS, max_result_bytes=MAX_RESULT_BYTES
        )
        await self._take_up(wanted, claimed)
        return 0 if any(self._room(self._receiver(host), now) for host in self._due) else rest

    async def _look(self) -> tuple[float | None, list[str]]:
        """Note who has something due; returns the seconds until the next, and who is long overdue."""
        pending = await outbox.receivers(self._database)
        overdue = []
        rest = self._poll_seconds
        for host, seconds in pending.items():
            if seconds > 0:
                rest = min(rest, seconds)
                continue
            self._due[host] = None
            if -seconds >= OVERDUE_SECONDS and self._receiver(host).is_open:
                overdue.append(host)
        self._forget(pending)
        return max(rest, 0.01), overdue

    def _wanted(self, now: float, overdue: Sequence[str]) -> list[Wanted]:
        """Whose turn it is, for how many. They are no longer noted as due: a hint meanwhile is not lost."""
        wanted: list[Wanted] = []
        room = min(MAX_CLAIM, MAX_IN_FLIGHT - len(self._chains))
        unproven = MAX_UNPROVEN - sum(
            each.in_flight for each in self._receivers.values() if each.in_flight and not each.is_proven
        )
        for host in list(self._due):
            receiver = self._receiver(host)
            share = min(self._room(receiver, now), room, room if receiver.is_proven else unproven)
            if share > 0:
                room -= share
                unproven -= 0 if receiver.is_proven else share
                wanted.append(Wanted(host, share, 0.0, receiver.mark(now)))
                del self._due[host]
        asked = {each.host for each in wanted}
        wanted += [
            Wanted(host, OVERDUE_AT_ONCE, OVERDUE_SECONDS)
            for host in overdue
            if host not in asked and self._receiver(host).is_open
        ]
        return wanted

    def _room(self, receiver: Receiver, now: float) -> int:
        return receiver.free(now) if len(self._chains) < MAX_IN_FLIGHT else 0

    async def _take_up(self, wanted: Sequence[Wanted], claimed: Sequence[DueDelivery]) -> None:
        now = time.monotonic()
        overdue = {each.host for each in wanted if each.overdue_seconds}
        counts = dict.fromkeys((each.host for each in wanted), 0)
        unwanted: list[DueDelivery] = []
        for delivery in claimed:
            receiver = self._receiver(delivery.host)
            if counts[receiver.host] == 0 and receiver.host not in overdue:
                receiver.learn_mark(delivery.next_try_at)
            counts[receiver.host] += 1
            if receiver.host in overdue:
                self._begin(self._fail_untried(receiver, delivery))
            elif receiver.is_open and not receiver.free(now):
                # It opened while we were claiming. The ladder is not to be climbed for nothing.
                unwanted.append(delivery)
            else:
                receiver.began(now)
                self._active[delivery.job_id] = False
                self._begin(self._chain(receiver, delivery))
        for each in wanted:
            if counts[each.host] >= each.room and not each.overdue_seconds:
                self._due[each.host] = None
        if unwanted:
            await self._let_go([(each.job_id, each.seq, each.tries) for each in unwanted])

    def _receiver(self, host: str) -> Receiver:
        receiver = self._receivers.get(host)
        if receiver is None:
            receiver = self._receivers[host] = Receiver(host, self._host_concurrency)
            receiver.used_at = time.monotonic()
        return receiver

    def _forget(self, pending: Iterable[str]) -> None:
        long_ago = time.monotonic() - FORGET_SECONDS
        keep = set(pending)
        for host, receiver in list(self._receivers.items()):
            if not receiver.in_flight and receiver.used_at < long_ago and host not in keep:
                del self._receivers[host]

    # -- sending -------------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._chains.add(task)
        task.add_done_callback(self._chains.discard)

    async def _chain(self, receiver: Receiver, first: DueDelivery) -> None:
        """One job's deliveries in order, until there is none left or one has to be tried again later."""
        delivery: DueDelivery | None = first
        job_id = first.job_id
        try:
            while delivery is not None:
                tried = await self._try(receiver, delivery)
                self._active[job_id] = False
                delivery = await self._record(tried)
        except Exception as problem:
            # Its lease runs out and it is sent again.
            self._held = {key: held for key, held in self._held.items() if key[0] != job_id}
            if isinstance(problem, Unavailable):
                log.warning("webhooks.not_recorded", job_id=job_id)
            else:
                log.exception("webhooks.chain_failed", job_id=job_id)
        finally:
            receiver.ended()
            if self._active.pop(job_id, False):
                # The next delivery may have been written just after the recording looked for it.
                self._due[receiver.host] = None
            if receiver.host in self._due or len(self._chains) >= MAX_IN_FLIGHT:
                self._loop.wake()

    async def _try(self, receiver: Receiver, delivery: DueDelivery) -> Try:
        key = (delivery.job_id, delivery.seq)
        began, since = time.monotonic(), time.time_ns()
        self._held[key] = (delivery.tries, began)
        WEBHOOKS_IN_FLIGHT.inc()
        try:
            verdict = await self._sender.send(delivery)
        except Unavailable:
            raise
        except Exception as problem:
            log.exception("webhooks.could_not_send", job_id=delivery.job_id, seq=delivery.seq)
            verdict = Verdict("failed", error=f"the message could not be made: {type(problem).__name__}")
        finally:
            WEBHOOKS_IN_FLIGHT.dec()
        now = time.monotonic()
        self._judge(receiver, verdict, now)
        if self._tracer is not None:
            self._tracer.delivered(delivery, verdict.outcome, verdict.status, since)
        if verdict.outcome == "delivered":
            WEBHOOK_SECONDS.observe(delivery.age + now - began)
        return as_try(delivery, verdict, random.random())

    def _judge(self, receiver: Receiver, verdict: Verdict, now: float) -> None:
        """What a try says about the receiver; when its circuit opens or closes, that is told."""
        was_open = receiver.is_open
        if verdict.receiver_is_well:
            receiver.answered()
        elif verdict.receiver_is_well is False:
            receiver.failed(now, random.random(), verdict.error or "")
        if receiver.is_open is was_open:
            return
        if was_open:
            seconds = round(now - receiver.opened_at, 1)
            self._circuit_log.warning("webhooks.circuit_closed", receiver=receiver.host, seconds=seconds)
        else:
            error = without_secrets(receiver.last_error)
            self._circuit_log.warning("webhooks.circuit_opened", receiver=receiver.host, problem=error)

    async def _fail_untried(self, receiver: Receiver, delivery: DueDelivery) -> None:
        error = f"the receiver has failed {receiver.failures} times in a row ({receiver.last_error})"
        verdict = Verdict("failed", error=f"not sent: {error}")
        try:
            following = await self._record(as_try(delivery, verdict, random.random()))
        except Unavailable:
            return
        if following is not None:
            # Given up on; the next of its job gets a try of its own once the receiver is back.
            await self._let_go([(following.job_id, following.seq, following.tries)])

    # -- recording -----------------------------------------------------------------------------------------

    async def _record(self, tried: Try) -> DueDelivery | None:
        """Write it down, waiting for a database that is away as long as the lease can hold."""
        try:
            return await self._recorder.put_surely(tried, LEASE_SECONDS)
        finally:
            self._held.pop((tried.job_id, tried.seq), None)

    async def _flush(self, tries: Sequence[Try]) -> Sequence[DueDelivery | None]:
        following = await outbox.record(
            self._database,
            tries,
            lease_seconds=LEASE_SECONDS,
            max_result_bytes=MAX_RESULT_BYTES,
            take_next=not self._stopping,
        )
        for each in tries:
            outcome = "retried" if each.state == "pending" else each.state
            _OUTCOMES[outcome].inc()
            self._tally.count("receiver", each.host, outcome)
        return following

    async def _renew(self) -> float | None:
        long_ago = time.monotonic() - RENEW_SECONDS
        held = [
            (job_id, seq, tries) for (job_id, seq), (tries, began) in self._held.items() if began < long_ago
        ]
        if held:
            await outbox.renew(self._database, held, LEASE_SECONDS)
        return None

    async def _let_go(self, held: Sequence[tuple[str, int, int]]) -> None:
        try:
            await outbox.renew(self._database, held, 0.0)
        except Unavailable:
            log.warning("webhooks.leases_left_to_run_out", deliveries=len(held))


def host_of(url: str) -> str:
    """Host and port as they stand in the URL; the database's idea of it is in store/effects.py."""
    found = _HOST.match(url)
    return found[1].lower() if found else ""


def as_try(delivery: DueDelivery, verdict: Verdict, dice: float) -> Try:
    """What a verdict means for the delivery: over, or again at a later time, or given up on."""
    state, delay = str(verdict.outcome), 0.0
    if verdict.outcome == "failed":
        again = next_delay(delivery.tries + 1, dice, verdict.retry_after)
        state, delay = ("given_up", 0.0) if again is None else ("pending", again)
    return Try(
        delivery.job_id,
        delivery.seq,
        delivery.tries,
        state,
        verdict.status,
        verdict.error,
        delay,
        delivery.host,
    )


def next_delay(tries: int, dice: float, retry_after: float | None = None) -> float | None:
    """Seconds until the next try after `tries` of them have failed; None when that was the last.

    Pure: randomness comes in as a factor in [0, 1).
    """
    if tries > len(LADDER_SECONDS):
        return None
    delay = LADDER_SECONDS[max(tries, 1) - 1] * jitter(dice)
    # "Not before": the receiver may ask for more patience than the ladder has, never for less. And nobody may
    # push a delivery beyond the horizon.
    return max(delay, min(retry_after or 0.0, MAX_RETRY_AFTER_SECONDS))
