"""What a verb of the store has changed: one value for all of them, told by one function (`Hub.announce`).

Whoever calls a verb announces what it returns, after the commit; it needs not know whom that concerns. Parts of it
cross the processes as a hint (see notices.py), so a `Changes` that is heard may have come from another replica.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import iadd, ior
from typing import Any, Generic, NamedTuple, Self, TypeVar

import orjson
from prometheus_client import Counter as Metric

from app.jobs.outcomes import code_of
from app.jobs.states import RUNNING, TERMINAL, State, Verb
from app.store.job import BriefJob, ClaimedJob, LeasedJob
from app.telemetry import ENDED, JOB_RUN, OTHER, RETRIED, Counted

# (queue, lane): where jobs are claimed.
Place = tuple[str, str]
# (queue, concurrency key)
Key = tuple[str, str]
# (job, seq): one event of its log.
Seq = tuple[str, int]

Answer = TypeVar("Answer")

# The ends that nobody asked for.
BAD = frozenset({State.FAILED, State.EXPIRED, State.STALE})
# After these the job runs again, and has one attempt less.
AGAIN = frozenset({Verb.RETRY, Verb.RESCUE})


class Failure(NamedTuple):
    """A job that failed for good, was late or superseded. `error` is JSON text."""

    job_id: str
    kind: str
    queue: str
    state: str
    attempt: int
    error: str | None
    request_id: str | None

    @property
    def code(self) -> str | None:
        return _code(self.error)


def _code(error: str | None) -> str | None:
    return code_of(orjson.loads(error)) if error else None


class Durations(defaultdict[Counted, list[float]]):
    """Seconds, by the histogram that they belong to."""

    def __init__(self) -> None:
        super().__init__(list)

    def __iadd__(self, other: Mapping[Counted, list[float]]) -> Self:
        for counted, seconds in other.items():
            self[counted] += seconds
        return self


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
    # Running jobs whose workers are to stop: somebody cancels them, or they are over already.
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
    durations: Durations = field(default_factory=Durations)
    # What a trace is made of (see app/tracing): jobs that were claimed, and by which events waits and runs ended.
    claimed: tuple[ClaimedJob | LeasedJob | BriefJob, ...] = field(default=(), compare=False)
    left: list[Seq] = field(default_factory=list, compare=False)

    def moved(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows of `told` (see effects.py) entered their states. This is on the way of every job."""
        # Counted where they are all together, not one by one.
        stops: defaultdict[tuple[str, str, str, str], list[float | None]] = defaultdict(list)
        for job in rows:
            job_id, state, queue, key = job["id"], job["state"], job["queue"], job["key"]
            self.jobs.add(job_id)
            if state in RUNNING:
                continue
            self.left.append((job_id, job["seq"]))
            stops[queue, job["kind"], state, job["verb"]].append(job["ran"])
            # Nearly always there is neither.
            if key is not None:
                self.keys.add((queue, key))
            if state == "queued":
                self._waits_again(job)
                continue
            if job["has_dependents"]:
                self.ended.add(job_id)
            if state in BAD:
                failure = (job["kind"], queue, state, job["attempt"], job["error"], job["request_id"])
                self.failed.append(Failure(job_id, *failure))
        for (queue, kind, state, verb), ran in stops.items():
            seconds = [each for each in ran if each is not None]
            if seconds:
                self.stopped.add(queue)
                self.durations[JOB_RUN, (queue, kind, verb)] += seconds
            if state in TERMINAL:
                self.count(ENDED, queue, kind, state, by=len(ran))

    def _waits_again(self, job: Mapping[str, Any]) -> None:
        if job["ready"]:
            self.work.add((job["queue"], job["lane"]))
        else:
            self.delayed = True
        if job["verb"] in AGAIN:
            self.count(RETRIED, job["queue"], job["kind"], _code(job["error"]) or OTHER)

    def count(self, metric: Metric, *labels: str, by: int = 1) -> None:
        self.counts[metric, labels] += by

    def add(self, other: "Changes[Any]") -> None:
        """And what another verb changed. Answers stay those of this one."""
        for name in _TOLD:
            mine = getattr(self, name)
            merged: Callable[[Any, Any], Any] = ior if isinstance(mine, set | bool) else iadd
            setattr(self, name, merged(mine, getattr(other, name)))


_TOLD = [each.name for each in fields(Changes) if each.name != "answers"]
