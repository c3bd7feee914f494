"""One run: a cluster under load, faults one after the other, and then the checker.

What goes wrong, where and for how long is drawn from the seed before each fault; the moments are the machine's.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from tests.chaos.checker import HOPELESS, Score, check
from tests.chaos.cluster import Cluster, ask
from tests.chaos.evidence import Evidence, Window, gather
from tests.chaos.faults import FAULTS, HARMLESS_TO_LEASES, NotHere
from tests.chaos.shape import Shape
from tests.patience import PATIENCE, outlast, wait_until

WEIGHTS = {
    "noop": 50,
    "rare": 5,
    "http": 4,
    "chat": 6,
    "work": 14,
    "any-kind": 4,
    "client": 4,
    "keyed": 5,
    "limited": 4,
    "rated": 4,
    "delayed": 3,
    "expiring": 1,
    "cancelled": 2,
}
# What is logged with its trace is a bug, in whichever process.
SIGNS_OF_A_CRASH = ("Traceback", '"exception":')
# Receivers that take nothing are tried for days.
UNFINISHED = """
SELECT (SELECT count(*) FROM jobs WHERE completed_at IS NULL), (SELECT count(*) FROM outbox WHERE host <> ALL ($1::text[]))
"""
# Makes the ladder's time pass quickly. What a sender holds is its own for ten seconds: that is left alone.
HASTEN = "UPDATE outbox SET next_try_at = now() WHERE next_try_at > now() + interval '11 seconds'"


@dataclass(frozen=True)
class Plan:
    seed: int
    # Faults go on for so long at least, each has its turn, and so many jobs are acknowledged.
    seconds: float
    jobs: int
    faults: tuple[str, ...] = tuple(FAULTS)
    shape: Shape = field(default_factory=Shape)
    # Between two faults, so that each is seen by itself.
    pause: tuple[float, float] = (1.0, 4.0)
    callers: int = 24
    caller_pause: float = 0.1
    timeout: float = 10.0
    batch: int = 25
    flavours: dict[str, int] = field(default_factory=lambda: dict(WEIGHTS))
    # In the end: without any progress for so long, what is left is stuck.
    stuck_seconds: float = 45.0


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault, and how it went."""

    name: str
    began: float
    ended: float
    # From its end until a job through every replica was done.
    recovery: float


@dataclass(frozen=True, slots=True)
class Rolled:
    """What callers and jobs noticed of a rolling restart."""

    seconds: float
    requests: int
    failed: int
    longest_wait: float


@dataclass
class Report:
    plan: Plan
    score: Score
    struck: list[Struck]
    not_here: dict[str, str]
    rolled: list[Rolled]
    seconds: float
    named_full: int

    @property
    def slowest(self) -> Struck | None:
        return max(self.struck, key=lambda each: each.recovery, default=None)


Say = Callable[[str], object]


def run(plan: Plan, folder: Path, say: Say = lambda _: None) -> Report:
    began = time.monotonic()
    cluster = Cluster(
        folder,
        plan.shape,
        plan.seed,
        {
            "callers": plan.callers,
            "pause": plan.caller_pause,
            "timeout": plan.timeout,
            "batch": plan.batch,
            "flavours": plan.flavours,
        },
    )
    struck: list[Struck] = []
    not_here: dict[str, str] = {}
    stalls, ladder = Stalls(), Ladder(cluster)
    try:
        cluster.start()
        cluster.start_callers()
        stalls.start()
        ladder.start()
        wait_until(lambda: _acknowledged(cluster) > 100, 30, cluster.log)
        say(f"seed {plan.seed}: {len(cluster.replicas)} replicas are up and under load")
        _strike(plan, cluster, struck, not_here, say)
        _finish(plan, cluster, say)
        evidence = _evidence(cluster)
    finally:
        stalls.stop()
        ladder.stop()
        cluster.stop()
    evidence.windows = [Window(*each) for each in stalls.windows] + [
        Window(each.name, each.began, each.ended + each.recovery)
        for each in struck
        if each.name not in HARMLESS_TO_LEASES
    ]
    say("checking …")
    return Report(
        plan,
        check(evidence),
        struck,
        not_here,
        [_rolled(evidence, *window) for window in cluster.rolled],
        time.monotonic() - began,
        cluster.refusals_that_name("disk"),
    )


def _acknowledged(cluster: Cluster) -> int:
    cluster.hear_callers()
    return cluster.acknowledged


def _strike(plan: Plan, cluster: Cluster, struck: list[Struck], not_here: dict[str, str], say: Say) -> None:
    began = time.monotonic()
    for number, (name, dice) in enumerate(_sequence(plan)):
        is_over = time.monotonic() - began >= plan.seconds and _acknowledged(cluster) >= plan.jobs
        if number >= len(plan.faults) and is_over:
            return
        outlast(dice.uniform(*plan.pause))
        if name in not_here:
            continue
        at = time.time()
        try:
            FAULTS[name](cluster, dice)
        except NotHere as why:
            not_here[name] = str(why)
            say(f"{name}: not here ({why})")
            continue
        ended, since = time.time(), time.monotonic()
        wait_until(lambda: probe(cluster), 60, cluster.log)
        struck.append(Struck(name, at, ended, time.monotonic() - since))
        cluster.clear_up()
        last = struck[-1]
        say(
            f"{_acknowledged(cluster):>7} acknowledged · {name}: {last.ended - last.began:.1f} s, "
            f"recovered after {last.recovery:.2f} s"
        )


def _sequence(plan: Plan) -> Iterator[tuple[str, random.Random]]:
    """Each once, in any order, and then all over; each with dice of its own, so that one more draw in a fault does not
    change what comes after it."""
    order, place = random.Random(plan.seed), 0
    while True:
        names = list(plan.faults)
        order.shuffle(names)
        for name in names:
            place += 1
            yield name, random.Random(f"{plan.seed} {place} {name}")


# One that the server runs itself, and one for workers over HTTP, before all that waits there.
PROBES = (
    {"kind": "noop", "queue": "probes"},
    {"kind": "chaos.work", "queue": "work", "priority": 100, "payload": {"do": "complete", "seconds": 0}},
)


def probe(cluster: Cluster) -> bool:
    """Jobs through each API replica, and they are done."""
    for replica in cluster.apis:
        port = replica.from_callers.port
        for body in PROBES:
            status, told = ask(port, "POST", "/jobs", body, 5)
            if status != 202:
                return False
            status, job = ask(port, "GET", f"/jobs/{told['job_id']}?wait=2", timeout=5)
            if status != 200 or job["state"] != "done":
                return False
    return True


def _finish(plan: Plan, cluster: Cluster, say: Say) -> None:
    """Nothing goes wrong any more: callers get their last answers, and whatever is left ends. Or it is stuck."""
    say("no more faults; what is left is finished …")
    cluster.callers.terminate(60 * PATIENCE)
    cluster.hear_callers()
    ask(cluster.apis[0].port, "DELETE", "/schedules/ticks")
    hopeless = [each.host for each in cluster.receivers if each.temper in HOPELESS]
    left: Any = None
    since = time.monotonic()
    while (now := cluster.postgres.primary.row(UNFINISHED, hopeless)) != (0, 0):
        if now != left:
            left, since = now, time.monotonic()
        elif time.monotonic() - since > plan.stuck_seconds:
            return
        outlast(0.5)


def _evidence(cluster: Cluster) -> Evidence:
    """All that is known, once the replicas have ended."""
    peak = int(cluster.ollama.stats()["max_running"])
    for replica in cluster.replicas:
        cluster.stop_politely(replica)
    evidence = gather(cluster.records, cluster.postgres.primary.dsn)
    evidence.target_peak = peak
    evidence.receivers = {each.url: each.temper for each in cluster.receivers}
    evidence.found = cluster.found
    evidence.crashes = [
        f"{each.name}: {line[:500]}"
        for each in cluster.processes
        for line in each.log_path.read_text(errors="replace").splitlines()
        if any(sign in line for sign in SIGNS_OF_A_CRASH)
    ]
    return evidence


def _rolled(evidence: Evidence, began: float, ended: float) -> Rolled:
    plain = {each.job for each in evidence.acknowledged if each.flavour == "noop" and not each.after}
    waits = [
        (story.runs()[0].claim.at - story.job["created_at"]).total_seconds()
        for job_id in plain
        if (story := evidence.stories.get(job_id)) is not None
        and began <= story.job["created_at"].timestamp() <= ended
        and story.runs()
    ]
    failed = sum(began <= each["at"] <= ended for each in evidence.refusals)
    return Rolled(ended - began, len(waits), failed, max(waits, default=0.0))


class Stalls(threading.Thread):
    """Notices when this machine itself stood still: then leases are lost for a reason, too."""

    EVERY = 0.25
    LONG = 1.5

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.windows: list[tuple[str, float, float]] = []
        self._over = threading.Event()

    def run(self) -> None:
        last = time.time()
        while not self._over.wait(self.EVERY):
            now = time.time()
            if now - last > self.LONG:
                self.windows.append(("the machine stood still", last, now))
            last = now

    def stop(self) -> None:
        self._over.set()
        if self.is_alive():
            self.join()


class Ladder(threading.Thread):
    """Webhooks that failed are tried again soon, and not in minutes or hours."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(1):
            try:
                asyncio.run(self._hasten())
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                continue  # it is being killed just now

    async def _hasten(self) -> None:
        connection = await asyncpg.connect(self._cluster.postgres.primary.dsn, timeout=5, command_timeout=5)
        try:
            # What is waited for here must not hide that a server did not wait for it.
            await connection.execute("SET synchronous_commit = off")
            await connection.execute(HASTEN)
        finally:
            await connection.close(timeout=5)

    def stop(self) -> None:
        self._over.set()
        if self.is_alive():
            self.join()
