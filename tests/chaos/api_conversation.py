"""The part of the machine that asks, and after each step looks at all jobs from the other replica."""

import itertools
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import httpx
from hypothesis.stateful import RuleBasedStateMachine

from app.jobs.states import State
from tests.chaos.api_fleet import Ask, Fleet, Outcome, Strike
from tests.chaos.api_model import Event, Grant, Job, Model, label
from tests.engine.fleet import check_invariants
from tests.patience import wait_until

log = logging.getLogger(__name__)


def written(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def codes(outcome: Outcome) -> set[tuple[int, str]]:
    """Of answers that are all refusals."""
    return {(answer.status_code, answer.json()["code"]) for answer in outcome.answers}


class Conversation(RuleBasedStateMachine):
    """Each example has kinds, a queue and keys of its own: all share one fleet, and see their own jobs only."""

    fleet: Fleet
    examples: ClassVar[Iterator[int]] = itertools.count(1)
    told: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self.example = next(self.examples)
        self.model = Model()
        self.step = 0
        self.story: list[str] = []

    # -- asking --------------------------------------------------------------------------------------------

    def ask(
        self,
        at: int,
        method: str,
        path: str,
        body: Any = None,
        strike: Strike | None = None,
        **headers: str,
    ) -> Outcome:
        content = body if isinstance(body, bytes) or body is None else written(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        ask = Ask(method, path, content, named | {"content-type": "application/json"})
        outcome = self.fleet.send(ask, at, strike)
        if method != "GET":
            struck = f" [{strike.value}]" if strike else ""
            answers = " and ".join(f"{each.status_code} {each.text[:200]}" for each in outcome.answers)
            lost = f", {outcome.lost} times no answer" if outcome.lost else ""
            sent = (content or b"").decode()
            self.story.append(f"{self.step}. {at}: {method} {path} {sent} {named}{struck} -> {answers}{lost}")
        return outcome

    def get(self, at: int, path: str, status: int = 200) -> Any:
        answer = self.ask(at, "GET", path).one
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer.json()

    def get_if_changed(self, at: int, job: Job, seq: int) -> httpx.Response:
        return self.ask(at, "GET", f"/jobs/{job.id}", if_none_match=f'"{seq}"').one

    def listed(self, at: int, which: str) -> list[Any]:
        """All pages of a list, newest first."""
        found: list[Any] = []
        following = ""
        while True:
            page = self.get(at, f"/jobs?{which}{following}")
            found += page["jobs"]
            if page["next_cursor"] is None:
                return found
            following = f"&cursor={page['next_cursor']}"

    # -- looking -------------------------------------------------------------------------------------------

    def look(self, asked: int, grant: Grant | None = None, *, strays: int = 0, body: Any = None) -> None:
        """What has become of all jobs: what was granted, and what comes by itself.

        `strays`: how many jobs with this body may be there whose submission was not answered.
        """
        at, grant = 1 - asked, grant or Grant()
        listed = self.list_all(at)
        for job_id in listed.keys() - self.model.jobs.keys():
            assert strays > 0, f"nobody submitted {listed[job_id]}"
            assert listed[job_id]["metadata"] == body["metadata"]
            strays -= 1
            self.model.accept(job_id, body, grant)
        self.read_on(at, listed, grant)
        assert not grant.missing(), ("acknowledged, and not there", grant.missing(), self.logs())
        wait_until(lambda: self.is_at_rest(at), 10, lambda: f"{self.model.awaited} never came\n{self.logs()}")
        self.model.check_keys(max_active=1)

    def list_all(self, at: int) -> dict[str, Any]:
        found = self.listed(at, f"metadata.example={self.example}&limit=200")
        ids = [document["job_id"] for document in found]
        assert ids == sorted(set(ids), reverse=True)
        return dict(zip(ids, found, strict=True))

    def read_on(self, at: int, listed: dict[str, Any], grant: Grant) -> None:
        assert set(listed) == set(self.model.jobs), ("gone", self.model.jobs.keys() - listed.keys())
        # What others follow from first: a job names only older ones.
        for job_id, document in sorted(listed.items()):
            job = self.model.jobs[job_id]
            if document["seq"] == job.seq:
                job.check(document, None)
            else:
                self.read_log(at, job, grant)
                assert job.seq >= document["seq"], ("listed, and not there", document, job.story())

    def read_log(self, at: int, job: Job, grant: Grant) -> None:
        """The log from where we know it; then the job, which may have gone on by itself."""
        while True:
            known = job.seq
            page = self.get(at, f"/jobs/{job.id}/events?after={known}")
            for event in page["events"]:
                granted = grant.takes(job, label(event)) or self.comes_by_itself(at, job, event, grant)
                assert granted, ("nobody asked for", event, job.story())
                job.absorb(event)
            assert page["next_after"] == job.seq
            answer = self.get_if_changed(at, job, known)
            if answer.status_code == 304:
                assert job.seq == known, ("it has changed since", answer.headers, job.story())
                return
            assert answer.json()["seq"] >= job.seq, ("not what was read before", answer.text, job.story())
            if answer.json()["seq"] == job.seq:
                job.check(answer.json(), answer.headers["etag"])
                return

    def comes_by_itself(self, at: int, job: Job, event: Event, grant: Grant) -> bool:
        if self.model.comes_by_itself(job, label(event)):
            return True
        # What it follows from may have happened since we looked there.
        for job_id, older in sorted(self.model.jobs.items()):
            if job_id < job.id and not older.ended:
                self.read_log(at, older, grant)
        return self.model.comes_by_itself(job, label(event))

    def is_at_rest(self, at: int) -> bool:
        """Nothing more is to come of how jobs have ended."""
        through = self.model.foresee()
        if not through and not self.model.awaited:
            return True
        self.read_on(at, self.list_all(at), Grant())
        for job in through:
            document = self.get(at, f"/jobs/{job.id}")
            job.waiting = document["state"] == "queued" and document["reason"] == "waiting_for"
        return False

    def logs(self) -> str:
        return "\n".join(job.story() for job in self.model.jobs.values())

    # -- the end -------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        problem = sys.exc_info()[1]
        if problem is not None:
            self.tell(problem)
            return
        try:
            self.check_at_the_end()
        except Exception as at_the_end:
            self.tell(at_the_end)
            raise

    def check_at_the_end(self) -> None:
        self.step += 1
        self.end_all()
        for job in self.model.jobs.values():
            for at in range(2):
                page = self.get(at, f"/jobs/{job.id}/events")
                assert page["events"] == job.log, ("what was seen once has changed", page, job.log)
        for queue in sorted({job.body["queue"] for job in self.model.jobs.values() if job.key is None}):
            wait_until(partial(self.is_counted, queue), 10, lambda: f"counts differ\n{self.logs()}")
        check_invariants(self.fleet.postgres.dsn)

    def tell(self, problem: BaseException) -> None:
        """The first failure, in case it was one that does not come again."""
        if isinstance(problem, Exception) and not self.told:
            self.told.append(repr(problem))
            log.error("It failed for the first time after\n%s", "\n".join(self.story), exc_info=problem)

    def end_all(self) -> None:
        """Complete what we can, and cancel the rest: also jobs whose lease nobody knows are over when the grace is."""
        self.complete_all()
        for job in list(self.model.jobs.values()):
            if not job.ended and not job.cancelling:
                self.cancel_one(self.step % 2, job)

        def ended() -> bool:
            self.look(1)
            return all(job.ended for job in self.model.jobs.values())

        wait_until(ended, 10, self.logs)

    def complete_all(self) -> None:
        raise NotImplementedError

    def cancel_one(self, at: int, job: Job, strike: Strike | None = None, reason: str | None = None) -> None:
        grant = Grant()
        if job.id in self.model.jobs:
            for job_id, kind in self.model.cancels(job).items():
                grant.once(self.model.jobs[job_id], kind)
        body = None if reason is None else {"reason": reason}
        outcome = self.ask(at, "POST", f"/jobs/{job.id}/cancel", body, strike)
        # One that runs may be over by the time at which it is asked for once more.
        may_be_over = job.cancelling or (job.runs and outcome.tries > 1)
        for answer in outcome.answers:
            if job.id in self.model.deleted:
                assert codes(outcome) == {(404, "not_found")}
            elif job.runs and (answer.status_code == 202 or may_be_over):
                assert answer.json()["state"] in {job.state, State.CANCELLED}
            else:
                expected = State.CANCELLED if job.state is State.QUEUED else job.state
                assert (answer.status_code, answer.json()["state"]) == (200, expected)
        self.look(at, grant)

    def is_counted(self, queue: str) -> bool:
        """A queue that took long to count is counted later."""
        states = Counter(job.state for job in self.model.jobs.values() if job.body["queue"] == queue)
        counts = self.get(0, f"/queues/{queue}")["counts"]
        return bool(counts == {str(state): states[state] for state in State})
