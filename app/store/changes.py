"""What a verb of the store has changed: one value for all of them, told by one function (`Hub.announce`).

Whoever calls a verb announces what it returns, after the commit; it needs not know whom that concerns. Parts of it
cross the processes as a hint (see notices.py), so a `Changes` that is heard may have come from another replica.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from operator import iadd, ior
from typing import Any, Generic, NamedTuple, TypeVar

from prometheus_client import Counter as Metric

from app.jobs.states import RUNNING, TERMINAL
from app.store.job import BriefJob, ClaimedJob, LeasedJob

# (queue, lane): where jobs are claimed.
Place = tuple[str, str]
# (queue, concurrency key)
Key = tuple[str, str]
# (job, seq): one event of its log.
Seq = tuple[str, int]
# A metric and its labels.
Counted = tuple[Metric, tuple[str, ...]]

Answer = TypeVar("Answer")


class Failure(NamedTuple):
    """A job that failed for good. `error` is JSON text."""

    job_id: str
    kind: str
    queue: str
    attempt: int
    error: str | None


@dataclass(slots=True)
class Changes(Generic[Answer]):
    """`answers` are for the caller; all the rest is for those whom it concerns."""

    answers: list[Answer] = field(default_factory=list)
    # Jobs whose log moved, or that are gone.
    jobs: set[str] = field(default_factory=set)
    # Where there is something to claim now.
    work: set[Place] = field(default_factory=set)
    # Some jobs wait for a moment now.
    delayed: bool = False
    # Keys that may have a free place, and somebody who waits for it.
    keys: set[Key] = field(default_factory=set)
    # Jobs that have ended and that others wait for.
    ended: set[str] = field(default_factory=set)
    # Queues in which jobs stopped running; and those of them that ran all they may and have room now.
    stopped: set[str] = field(default_factory=set)
    room: set[str] = field(default_factory=set)
    # Running jobs whose workers are to stop.
    cancels: set[str] = field(default_factory=set)
    # Jobs with a webhook, and its URL; and receivers for whom an old delivery has become due.
    webhooks: list[tuple[str, str]] = field(default_factory=list)
    receivers: set[str] = field(default_factory=set)
    # Queues whose settings changed; whether schedules, or bulk operations, did.
    settings: set[str] = field(default_factory=set)
    schedules: bool = False
    operations: bool = False
    # Jobs that were accepted, by queue.
    accepted: Counter[str] = field(default_factory=Counter)
    failed: list[Failure] = field(default_factory=list)
    counts: Counter[Counted] = field(default_factory=Counter)
    # What a trace is made of (see app/tracing): jobs that were claimed, and by which events waits and runs ended.
    claimed: tuple[ClaimedJob | LeasedJob | BriefJob, ...] = field(default=(), compare=False)
    left: list[Seq] = field(default_factory=list, compare=False)

    def moved(self, job: Mapping[str, Any], *, ran: bool) -> None:
        """A row of `MOVED` (see effects.py) entered its state; `ran`: whether it was running before."""
        job_id, state, queue, key = job["id"], job["state"], job["queue"], job["key"]
        self.jobs.add(job_id)
        if state in RUNNING:
            return
        self.left.append((job_id, job["seq"]))
        if ran:
            self.stopped.add(queue)
        # Nearly always there is neither; this is on the way of every job.
        if key is not None:
            self.keys.add((queue, key))
        if job["has_dependents"] and state in TERMINAL:
            self.ended.add(job_id)
        if state == "queued":
            if job["ready"]:
                self.work.add((queue, job["lane"]))
            else:
                self.delayed = True

    def count(self, metric: Metric, *labels: str, by: int = 1) -> None:
        self.counts[metric, labels] += by

    def add(self, other: "Changes[Any]") -> None:
        """And what another verb changed. Answers stay those of this one."""
        for name in _TOLD:
            mine = getattr(self, name)
            merged: Callable[[Any, Any], Any] = ior if isinstance(mine, set | bool) else iadd
            setattr(self, name, merged(mine, getattr(other, name)))


_TOLD = [each.name for each in fields(Changes) if each.name != "answers"]
