"""Any order of requests to two replicas, while replicas and PostgreSQL die, freeze and come back: the API keeps its word.

Every rule is one request (or one strike at a quiet fleet), most of them with a strike in the middle of it now and then.
After each of them all jobs are read back from the other replica and must be what the answers said (see api_model.py).
What is drawn never depends on how a request ended: hypothesis can then repeat a story whose strikes ended otherwise.

CHAOS_EXAMPLES=200 looks for longer. A story that failed is kept by hypothesis and tried first the next time; with
CHAOS_SHRINK=1 it is made as short as possible, which takes minutes.
"""

import itertools
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from app.jobs.states import EXTRA_EVENT_TYPES, State
from tests.chaos.api_callers import KEYED, LONG, OWN_EVENT, PLAIN, Callers, numbers, replicas, seldom, strikes
from tests.chaos.api_conversation import codes, written
from tests.chaos.api_fleet import Ask, Fleet, Outcome, Strike
from tests.chaos.api_model import CLAIMED, LATE, RELEASED, REMEMBERED, Grant, Job, Settlement, Told
from tests.patience import wait_until
from tests.store import invariants

SEARCHES = "CHAOS_EXAMPLES" in os.environ
EXAMPLES = int(os.environ.get("CHAOS_EXAMPLES", "12"))
STEPS = 40
SHRINKS = "CHAOS_SHRINK" in os.environ
NOBODY = "0" * 26

strikes_at_rest = st.builds(
    seldom,
    st.lists(st.booleans(), min_size=2, max_size=2),
    st.sampled_from([Strike.KILL, Strike.TERM, Strike.CUT, Strike.CRASH]),
)
settlements = st.builds(
    Settlement,
    st.sampled_from(
        ["start", "heartbeat", "progress", "logs", "complete", "fail", "fail", "release", "defer"]
    ),
    st.sampled_from([0, 0, 0, LONG]),
    st.booleans(),
)


class Machine(Callers):
    def __init__(self) -> None:
        super().__init__()
        self.is_paused = False

    # -- workers -------------------------------------------------------------------------------------------

    @rule(
        at=replicas,
        names=st.sampled_from([["plain", *KEYED], ["plain"], ["plain"], [*KEYED]]),
        kinds=st.sampled_from([["a", "b", "keyed"], ["a", "keyed"], None]),
        limit=st.integers(1, 4),
        is_brief=st.booleans(),
        strike=strikes,
    )
    def claim(
        self,
        at: int,
        names: list[str],
        kinds: list[str] | None,
        limit: int,
        is_brief: bool,
        strike: Strike | None,
    ) -> None:
        self.step += 1
        queues = [self.queue(name) for name in names]
        wanted = [self.kind(name) for name in kinds or ["a", "b", "keyed"]]
        body: dict[str, Any] = {
            "worker": f"worker-{self.example}-{self.step}",
            "queues": queues,
            "limit": limit,
            "lease_seconds": LONG,
        }
        # In queues that are shared, whoever names no kinds would be given what others have left there.
        if kinds is not None or names != ["plain"]:
            body["kinds"] = wanted
        claimable = self.claimable(queues, wanted)
        if not claimable:
            self.submit_many(at, [PLAIN, PLAIN])
            claimable = self.claimable(queues, wanted)
        # It does not say by which claim it was claimed, which there is only one of without a strike.
        headers = {"prefer": "return=minimal"} if is_brief and strike is None else {}
        outcome = self.ask(at, "POST", "/claims", body, strike, **headers)
        # A strike may hit the part of a claim that is about one of its queues: what that gave out is given to nobody,
        # and the rest is answered as if there had been nothing.
        is_whole = strike is None or len(queues) == 1
        if is_whole and not all(self.model.is_held_back(job) for job in claimable):
            self.wait_for_claim(at, body, outcome)
        claimed = self.claimed(outcome)
        assert len(claimed) <= limit * len(outcome.answers)
        grant = Grant()
        for job in claimable:
            grant.add(job, CLAIMED, int(job.id in claimed), outcome.tries)
            # What was claimed for somebody who cannot be answered any more may go back to its queue.
            grant.add(job, RELEASED, 0, outcome.lost)
        self.look(at, grant)
        for job_id, document in claimed.items():
            job = self.model.jobs[job_id]
            if job.runs and document.get("seq", job.last_claim) == job.last_claim:
                job.token = document["lease_token"]
                assert job.token not in job.old_tokens
                assert document["attempt"] == job.replay.attempt
            else:
                job.old_tokens.append(document["lease_token"])

    def claimable(self, queues: list[str], kinds: list[str]) -> list[Job]:
        paused = {self.queue("plain")} if self.is_paused else set()
        return self.model.claimable(set(queues) - paused, kinds)

    def wait_for_claim(self, at: int, body: dict[str, Any], outcome: Outcome) -> None:
        """There is something to be had. What it waited for (a key, another job, a pause) may just have ended."""

        def is_served() -> bool:
            if self.claimed(outcome) or outcome.lost:
                return True
            more = self.ask(at, "POST", "/claims", body | {"wait_seconds": 1})
            outcome.answers += more.answers
            outcome.lost += more.lost
            return False

        wait_until(is_served, 20, lambda: f"nobody is given any of\n{self.logs()}")

    @staticmethod
    def claimed(outcome: Outcome) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for answer in outcome.answers:
            assert answer.status_code == 200, answer.text
            jobs = answer.json()["jobs"]
            assert not found.keys() & {document["job_id"] for document in jobs}, "given to two"
            if len({document["queue"] for document in jobs}) == 1 and "priority" in jobs[0]:
                priorities = [document["priority"] for document in jobs]
                assert priorities == sorted(priorities, reverse=True)
            found |= {document["job_id"]: document for document in jobs}
        return found

    def marked(self, said: Settlement) -> Settlement:
        return Settlement(said.verb, said.delay, said.retryable, f"step {self.step}")

    def have_failed(self, at: int) -> None:
        self.settle(at, 0, Settlement("fail", 0, False), None)

    def have_held(self, at: int) -> list[Job]:
        """Jobs that run under a lease that we know: if there is none yet, there is one then."""
        if not self.model.held():
            if self.is_paused:
                self.pause_or_resume(at, False, None)
            self.submit_many(at, [PLAIN])
            self.claim(at, ["plain", *KEYED], ["a", "b", "keyed"], 3, False, None)
        return self.model.held()

    @rule(at=replicas, number=numbers, said=settlements, strike=strikes)
    def settle(self, at: int, number: int, said: Settlement, strike: Strike | None) -> None:
        job = self.model.pick(number, self.have_held(at))
        self.step += 1
        # All of them may have been lost on the way.
        if job is None:
            return
        said = self.marked(said)
        path, content = f"/jobs/{job.id}/{said.verb}", written(said.body(job.token or ""))
        outcome, grant = self.ask(at, "POST", path, content, strike), Grant()
        told = []
        for answer in outcome.answers:
            document = answer.json()
            assert answer.status_code == 200 or document["code"] == "lease_lost", answer.text
            told.append(Told(answer.status_code == 200, document.get("state")))
            assert document.get("cancel_requested", job.cancelling) is job.cancelling
        grant.settled(job, said, told, outcome.lost)
        if said.verb in REMEMBERED and told[0].counted:
            job.settled = (path, content, outcome.one.json())
        self.look(at, grant)

    @rule(
        at=replicas,
        wanted=st.lists(st.tuples(numbers, settlements, st.booleans()), min_size=1, max_size=4),
        strike=strikes,
    )
    def settle_many(self, at: int, wanted: list[tuple[int, Settlement, bool]], strike: Strike | None) -> None:
        """Several jobs at once: with their current leases, or too late."""
        held = self.have_held(at)
        self.step += 1
        chosen: dict[Job, tuple[Settlement, bool]] = {}
        for number, said, is_late in wanted:
            job = self.model.pick(number, self.model.jobs.values() if is_late else held)
            # There is no bulk of logs.
            if job is not None and job not in chosen and said.verb != "logs":
                chosen[job] = self.marked(said), is_late
        if chosen:
            self.settle_chosen(at, chosen, strike)

    def complete_all(self) -> None:
        said = self.marked(Settlement("complete", 0, False))
        if self.model.held():
            self.settle_chosen(0, dict.fromkeys(self.model.held(), (said, False)), None)

    def settle_chosen(
        self, at: int, chosen: dict[Job, tuple[Settlement, bool]], strike: Strike | None
    ) -> None:
        entries = []
        for job, (said, is_late) in chosen.items():
            body = said.body("neverwas" if is_late else job.token or "")
            # In the order in which our own client writes them, for which there is a short way.
            entries.append(
                {"job_id": job.id, "lease_token": body.pop("lease_token"), "verb": said.verb, **body}
            )
        outcome, grant = self.ask(at, "POST", "/settlements", {"settlements": entries}, strike), Grant()
        assert set(outcome.statuses) == {200}, outcome.one.text
        for n, (job, (said, is_late)) in enumerate(chosen.items()):
            answers = [answer.json()["settlements"][n] for answer in outcome.answers]
            assert all(each["job_id"] == job.id for each in answers)
            assert all(each["ok"] or each["code"] == "lease_lost" for each in answers), answers
            if is_late:
                assert not any(each["ok"] for each in answers)
                grant.add(job, LATE, len(answers), outcome.tries)
                continue
            told = [Told(each["ok"], each.get("state")) for each in answers]
            grant.settled(job, said, told, outcome.lost)
            if said.verb in REMEMBERED and told[0].counted:
                alone = written({"settlements": [entries[n]]})
                job.settled = ("/settlements", alone, {"settlements": answers[:1]})
        self.look(at, grant)

    @rule(at=replicas, number=numbers, said=settlements, strike=strikes)
    def settle_too_late(self, at: int, number: int, said: Settlement, strike: Strike | None) -> None:
        """With the lease of an earlier run, or one that never was."""
        self.step += 1
        job = self.model.pick(number, self.model.all())
        assert job is not None
        token = [*job.old_tokens, "neverwas"][number % (len(job.old_tokens) + 1)]
        body = self.marked(said).body(token)
        outcome, grant = self.ask(at, "POST", f"/jobs/{job.id}/{said.verb}", body, strike), Grant()
        if job.id in self.model.deleted:
            assert codes(outcome) == {(404, "not_found")}
        else:
            assert codes(outcome) == {(409, "lease_lost")}
            grant.add(job, LATE, len(outcome.answers), outcome.tries)
        self.look(at, grant)

    @rule(at=replicas, number=numbers, strike=strikes)
    def settle_twice(self, at: int, number: int, strike: Strike | None) -> None:
        """The very same once more: the same answer, and nothing happens."""
        self.step += 1
        job = self.model.pick(number, (job for job in self.model.jobs.values() if job.settled))
        if job is None or job.settled is None:
            self.settle(at, number, Settlement("complete", 0, False), None)
            return
        path, content, said = job.settled
        for answer in self.ask(at, "POST", path, content, strike).answers:
            assert (answer.status_code, answer.json()) == (200, said), job.story()
        self.look(at)

    # -- operators and readers -----------------------------------------------------------------------------

    @rule(at=replicas, is_paused=st.booleans(), strike=strikes)
    def pause_or_resume(self, at: int, is_paused: bool, strike: Strike | None) -> None:
        self.step += 1
        verb = "pause" if is_paused else "resume"
        for answer in self.ask(at, "POST", f"/queues/{self.queue('plain')}/{verb}", None, strike).answers:
            assert (answer.status_code, answer.json()["paused"]) == (200, is_paused)
        self.is_paused = is_paused
        self.look(at)

    @rule(at=replicas, number=numbers)
    def read_with_etag(self, at: int, number: int) -> None:
        job = self.model.pick(number, self.model.all())
        assert job is not None
        if job.id in self.model.deleted:
            self.get(at, f"/jobs/{job.id}", 404)
            self.get(at, f"/jobs/{job.id}/events", 404)
            return
        assert self.get_if_changed(at, job, job.seq).status_code == 304 or job.cancelling
        answer = self.get_if_changed(at, job, job.seq - 1)
        assert answer.status_code == 200
        if not job.cancelling:
            job.check(answer.json(), answer.headers["etag"])

    @rule(at=replicas, number=numbers, after=numbers, types=st.sampled_from([None, "queued,done", "log"]))
    def read_log_from_a_cursor(self, at: int, number: int, after: int, types: str | None) -> None:
        job = self.model.pick(number, self.model.jobs.values())
        if job is None:
            return
        after %= job.seq + 1
        page = self.get(at, f"/jobs/{job.id}/events?after={after}" + (f"&types={types}" if types else ""))
        known = [event for event in page["events"] if event["seq"] <= job.seq]
        assert known == [e for e in job.log[after:] if types is None or e["type"] in types.split(",")]
        assert page["next_after"] == job.seq or (job.cancelling and page["next_after"] > job.seq)

    @rule(at=replicas, limit=st.integers(1, 5), name=st.sampled_from(["a", "b", "keyed"]))
    def list_in_pages(self, at: int, limit: int, name: str) -> None:
        kind = self.kind(name)
        of_kind = sorted(
            (job for job in self.model.jobs.values() if job.body["kind"] == kind), key=lambda job: job.id
        )
        newest_first = [job.id for job in reversed(of_kind)]
        assert [each["job_id"] for each in self.listed(at, f"kind={kind}&limit={limit}")] == newest_first
        dead = self.get(at, f"/dead-letters?kind={kind}&limit=200")["dead_letters"]
        failed = [job_id for job_id in newest_first if self.model.jobs[job_id].state is State.FAILED]
        assert [each["job_id"] for each in dead] == failed

    # -- strikes at a fleet at rest ------------------------------------------------------------------------

    @rule(at=replicas, strike=strikes_at_rest)
    def strike_at_rest(self, at: int, strike: Strike | None) -> None:
        self.step += 1
        if strike is not None:
            self.story.append(f"{self.step}. {at}: {strike.value}")
            self.fleet.strike(strike, self.fleet.replicas[at])
            self.look(at)


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("postgres"), tmp_path_factory.mktemp("replicas")) as fleet:
        for name, rules in KEYED.items():
            answer = fleet.send(Ask("PUT", f"/queues/{name}", written({"key": ["/key"], **rules})), 0).one
            assert answer.status_code == 201, answer.text
        for at, name in itertools.product(range(2), KEYED):
            wait_until(partial(knows_the_key, fleet, at, name))
        yield fleet


def knows_the_key(fleet: Fleet, at: int, name: str) -> bool:
    """Settings count on the other replica a moment later. A job that nobody could take tells, and leaves nothing."""
    body = written({"kind": "probe", "queue": name, "payload": {}, "depends_on": [NOBODY]})
    answer = fleet.send(Ask("POST", "/jobs", body), at).one
    assert answer.status_code == 422, answer.text
    return "pointer" in answer.json()


def test_the_api_keeps_its_word_whatever_fails(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "EXTRA_EVENT_TYPES", EXTRA_EVENT_TYPES | {OWN_EVENT})
    bound = type("BoundMachine", (Machine,), {"fleet": fleet})
    run_state_machine_as_test(
        bound,
        settings=hypothesis.settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            # In the suite the same stories each time. Whoever asks for more is given others, each as random as the first:
            # hypothesis' own way of making new ones out of old ones needs hundreds of them.
            derandomize=not SEARCHES,
            backend="hypothesis-urandom" if SEARCHES else "hypothesis",
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.reuse, Phase.generate, *([Phase.shrink] if SHRINKS else [])],
        ),
    )
