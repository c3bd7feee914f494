"""What every job should be like, known from the answers of the API alone.

A job is the replay of its log. A request grants each job the events that it may bring, and how often: once for what was
acknowledged, up to once a try where a try was not answered. Whatever stands in a log without having been granted is wrong,
and so is what was granted for sure and does not stand there. Only two things come by themselves: the end of the grace of
a cancel, and the end of a job whose dependency has failed.
"""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.jobs.states import RUNNING, TERMINAL, State
from tests.store.invariants import Replay

Event = dict[str, Any]
CANCELLED = "cancelled/cancel"
CANCEL_REQUESTED = "cancel_requested/cancel"
ENQUEUED = "queued/enqueue"
CLAIMED = "loading/claim"
RELEASED = "queued/release"
LATE = "late_settlement/late_settlement"
# Settlements that are known again when they come twice.
REMEMBERED = {"complete", "fail", "release", "defer"}


def label(event: Event) -> str:
    """The kind of an event: its type, and for those that are Foreman's own the verb."""
    return event["type"] if event["reason"] is None else f"{event['type']}/{event['reason']}"


@dataclass(eq=False)
class Job:
    id: str
    # As it was submitted.
    body: dict[str, Any]
    key: str | None = None
    log: list[Event] = field(default_factory=list)
    replay: Replay = field(default_factory=Replay)
    # A cancel was asked for, and it runs still.
    cancelling: bool = False
    # None while it runs: the answer to its claim was lost.
    token: str | None = None
    old_tokens: list[str] = field(default_factory=list)
    # Not due while the test runs.
    delayed: bool = False
    # For other jobs.
    waiting: bool = False
    progress: Any = None
    result: Any = None
    # The last settlement that is remembered, and its answer.
    settled: tuple[str, bytes, Any] | None = None

    @property
    def seq(self) -> int:
        return len(self.log)

    @property
    def state(self) -> State | None:
        return self.replay.state

    @property
    def runs(self) -> bool:
        return self.state in RUNNING

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def needs(self) -> list[str]:
        return list(self.body.get("depends_on", ()))

    @property
    def is_last_attempt(self) -> bool:
        return self.replay.attempt >= int(self.body.get("max_attempts", 5))

    @property
    def last_claim(self) -> int:
        """The seq of the last claim."""
        return max(n for n, event in enumerate(self.log, 1) if event["type"] == "loading")

    def absorb(self, event: Event) -> None:
        """The next of its log: with the next number, and along the table of transitions."""
        assert event["seq"] == self.seq + 1, ("not gapless", event, self.story())
        self.log.append(event)
        self.replay.step(event, self.story())
        if event["type"] == "progress":
            self.progress = event["data"]
        elif event["type"] == "loading":
            self.progress = None
        elif event["type"] == "cancel_requested":
            self.cancelling = True
        if not self.runs:
            self.cancelling = False
            if self.token is not None:
                self.old_tokens.append(self.token)
                self.token = None
        if self.ended:
            self.waiting = False

    def check(self, document: dict[str, Any], etag: str | None) -> None:
        """The job as the API shows it; without an ETag, as it is shown in lists."""
        found = {name: document[name] for name in ("state", "attempt", "deferrals", "seq", "progress")}
        assert found == {
            "state": self.state,
            "attempt": self.replay.attempt,
            "deferrals": self.replay.deferrals,
            "seq": self.seq,
            "progress": self.progress,
        }, self.story()
        assert (document["completed_at"] is not None) is self.ended, (document, self.story())
        assert (document["started_at"] is not None) is self.replay.claimed, (document, self.story())
        assert (document["lease_expires_at"] is not None) is self.runs, (document, self.story())
        assert (document["concurrency_key"], document["created_at"] is not None) == (self.key, True)
        for name in self.body.keys() - {"payload", "delay_seconds", "depends_on", "on_dependency_failure"}:
            assert document[name] == self.body[name], (name, document, self.body)
        if etag is not None:
            assert etag == f'"{self.seq}"'
            assert document["payload"] == self.body["payload"]
            assert document["result"] == (self.result if self.state is State.DONE else None)

    def story(self) -> str:
        return f"{self.id}: " + " ".join(f"{event['seq']}:{label(event)}" for event in self.log)


@dataclass(frozen=True)
class Settlement:
    """What a worker says. `mark` makes it one of a kind."""

    verb: str
    delay: int
    retryable: bool
    mark: str = ""

    def body(self, token: str) -> dict[str, Any]:
        body: dict[str, Any] = {"lease_token": token}
        match self.verb:
            case "heartbeat":
                body["lease_seconds"] = 86_400
            case "progress":
                body["message"] = self.mark
            case "logs":
                body["entries"] = [{"message": f"{self.mark} {n}"} for n in range(2)]
            case "complete":
                body["result"] = self.result
            case "fail":
                error = {"code": "broken", "message": self.mark}
                body |= {"error": error, "retryable": self.retryable, "retry_in_seconds": self.delay}
            case "release" | "defer":
                body |= {"delay_seconds": self.delay, "reason": self.mark}
        return body

    @property
    def result(self) -> Any:
        return {"from": self.mark}

    def effect(self, job: Job) -> list[str]:
        """The events that it brings when it counts."""
        started = ["working/start"] if job.state is State.LOADING else []
        match self.verb:
            case "heartbeat":
                return []
            case "progress":
                return ["progress"]
            case "logs":
                return ["log", "log"]
            case "start":
                return started
            case "complete":
                return [*started, "done/complete"]
        if job.cancelling:
            return [CANCELLED]
        if self.verb == "fail":
            return ["queued/retry"] if self.retryable and not job.is_last_attempt else ["failed/fail"]
        return [f"queued/{self.verb}"]


@dataclass(frozen=True)
class Told:
    """What a settlement was answered: whether it counted, and the state that was named."""

    counted: bool
    state: str | None = None


class Grant:
    """Which events a request may bring, to which jobs and how often: at least, at most."""

    def __init__(self) -> None:
        self._bounds: dict[tuple[str, str], tuple[int, int]] = {}
        self._seen: Counter[tuple[str, str]] = Counter()

    def add(self, job: Job, kind: str, least: int, most: int) -> None:
        low, high = self._bounds.get((job.id, kind), (0, 0))
        self._bounds[job.id, kind] = low + least, high + most

    def once(self, job: Job, *kinds: str) -> None:
        for kind in kinds:
            self.add(job, kind, 1, 1)

    def takes(self, job: Job, kind: str) -> bool:
        if self._seen[job.id, kind] >= self._bounds.get((job.id, kind), (0, 0))[1]:
            return False
        self._seen[job.id, kind] += 1
        return True

    def settled(self, job: Job, said: Settlement, told: Sequence[Told], lost: int) -> None:
        """What these answers to one and the same settlement allow, and the job's future that it decides."""
        effect = said.effect(job)
        counted = sum(each.counted for each in told)
        late = len(told) - counted
        # Only a job that was asked to stop can lose its lease in between.
        assert job.cancelling or not late, (said, job.story())
        self.add(job, LATE, late, late + lost if job.cancelling else 0)
        for kind, number in Counter(effect).items():
            if said.verb in REMEMBERED:
                assert counted in {0, len(told)}, (said, told, job.story())
                self.add(job, kind, min(counted, 1), min(counted, 1))
            elif said.verb == "start":
                self.add(job, kind, min(counted, 1), min(counted + lost, 1))
            else:
                self.add(job, kind, number * counted, number * (counted + lost))
        ends_in = (
            effect[-1].split("/")[0] if said.verb in REMEMBERED | {"start"} and effect else str(job.state)
        )
        named = {each.state for each in told if each.counted and each.state is not None}
        assert named <= {ends_in}, (said, told, job.story())
        if said.verb == "complete":
            job.result = said.result
        if said.verb in REMEMBERED and counted and ends_in == "queued":
            job.delayed = said.delay > 0

    def missing(self) -> list[tuple[str, str]]:
        """What was acknowledged, and has not been seen."""
        return [what for what, (least, _) in self._bounds.items() if self._seen[what] < least]


class Model:
    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.deleted: dict[str, Job] = {}
        # What is to happen by itself, and soon: a job's next event.
        self.awaited: dict[str, str] = {}

    def pick(self, number: int, jobs: Iterable[Job]) -> Job | None:
        """One of these by a number that was drawn without knowing them: what is drawn must not depend on how it went."""
        chosen = list(jobs)
        return chosen[number % len(chosen)] if chosen else None

    def all(self) -> list[Job]:
        return [*self.jobs.values(), *self.deleted.values()]

    def held(self) -> list[Job]:
        """Those that run under a lease that we know."""
        return [job for job in self.jobs.values() if job.token is not None]

    def of_key(self, queue: str, key: str) -> list[Job]:
        """The live jobs of a key, oldest first."""
        live = [job for job in self.jobs.values() if not job.ended and job.key == key]
        return sorted((job for job in live if job.body["queue"] == queue), key=lambda job: job.id)

    def descendants(self, job: Job) -> list[Job]:
        """Its children and theirs. What is deleted leads nowhere."""
        children = [each for each in self.jobs.values() if each.body.get("parent_id") == job.id]
        return children + [each for child in children for each in self.descendants(child)]

    def cancels(self, job: Job) -> dict[str, str]:
        """What a cancel does to this job and its descendants: for each of them its next event."""
        live = [each for each in (job, *self.descendants(job)) if not each.ended and not each.cancelling]
        return {each.id: CANCEL_REQUESTED if each.runs else CANCELLED for each in live}

    def claimable(self, queues: Container[str], kinds: Container[str]) -> list[Job]:
        """Those that may be claimed, as far as anything but their keys is concerned."""
        return [
            job
            for job in self.jobs.values()
            if job.state is State.QUEUED
            and job.body["queue"] in queues
            and job.body["kind"] in kinds
            and not job.delayed
            and not job.waiting
        ]

    def is_held_back(self, job: Job) -> bool:
        """Another one of its key runs."""
        return job.key is not None and any(each.runs for each in self.of_key(job.body["queue"], job.key))

    def accept(self, job_id: str, body: dict[str, Any], grant: Grant) -> None:
        """It was submitted, and came in."""
        job = Job(job_id, body, key=body["payload"]["key"], delayed="delay_seconds" in body)
        needed = [self.jobs[each] for each in job.needs]
        runs_anyway = body.get("on_dependency_failure") == "run"
        job.waiting = any(
            each.state is not State.DONE and not (runs_anyway and each.ended) for each in needed
        )
        self.jobs[job_id] = job
        grant.once(job, ENQUEUED)

    def refusal(self, body: dict[str, Any]) -> tuple[int, str] | None:
        """Why a job cannot come in, whatever its queue says."""
        parent = body.get("parent_id")
        if parent in self.deleted:
            return 422, "invalid_request"
        if parent is not None and (self.jobs[parent].ended or self.jobs[parent].cancelling):
            return 409, "job_terminal"
        if any(needed in self.deleted for needed in body.get("depends_on", ())):
            return 422, "invalid_request"
        return None

    def check_keyed(
        self, body: dict[str, Any], rules: dict[str, Any], said: dict[str, Any], grant: Grant
    ) -> None:
        """What a job with a key was answered, as the key stands, give or take those that are being cancelled."""
        live = self.of_key(body["queue"], body["payload"]["key"])
        queued = [job for job in live if job.state is State.QUEUED]
        room, policy = 1 + rules["max_queued"], rules["when_full"]
        stories = [job.story() for job in live]
        if said.get("outcome") == "accepted":
            assert sum(not job.cancelling for job in live) < room, (said, stories)
            self.accept(said["job_id"], body, grant)
            return
        assert len(live) >= room, (said, stories)
        if said.get("code") == "key_busy":
            assert policy == "reject" or (policy == "replace-oldest" and not queued), (said, stories)
            assert said["existing_job_id"] in {job.id for job in live}, (said, stories)
        elif said["outcome"] == "coalesced":
            # Into one that has yet to begin, if there is one.
            assert policy == "coalesce"
            assert said["job_id"] in {job.id for job in queued or live}, (said, stories)
        else:
            assert (said["outcome"], policy) == ("replaced", "replace-oldest")
            grant.once(queued[0], "skipped/skip")
            self.accept(said["job_id"], body, grant)

    def foresee(self) -> list[Job]:
        """Await what follows from how jobs ended; those that are to be let through, all they needed having ended."""
        through = []
        for job in self.jobs.values():
            if not job.waiting or job.state is not State.QUEUED:
                continue
            needed = [self.jobs.get(each) or self.deleted[each] for each in job.needs]
            runs_anyway = job.body.get("on_dependency_failure") == "run"
            if not runs_anyway and any(each.ended and each.state is not State.DONE for each in needed):
                self.awaited |= self.cancels(job)
            elif all(each.ended for each in needed):
                through.append(job)
        return through

    def comes_by_itself(self, job: Job, kind: str) -> bool:
        self.foresee()
        if self.awaited.get(job.id) == kind:
            del self.awaited[job.id]
            return True
        return kind == CANCELLED and job.cancelling

    def check_keys(self, max_active: int) -> None:
        running = Counter((job.body["queue"], job.key) for job in self.jobs.values() if job.runs and job.key)
        assert all(number <= max_active for number in running.values()), running
