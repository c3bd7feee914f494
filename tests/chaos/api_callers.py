"""What callers and operators do to jobs: the first half of the machine's rules (see test_api_machine.py)."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from app.jobs.states import LIVE, TERMINAL, State
from tests.chaos.api_conversation import Conversation, codes, written
from tests.chaos.api_fleet import Strike
from tests.chaos.api_model import Grant, Job

# Longer than any test runs: nothing here waits for a clock.
LONG = 86_400
OWN_EVENT = "nudge"
# The queues with a key, which all examples share; each has keys of its own.
KEYED: dict[str, dict[str, Any]] = {
    "reject": {"max_queued": 1, "when_full": "reject"},
    "coalesce": {"max_queued": 1, "when_full": "coalesce"},
    "replace": {"max_queued": 2, "when_full": "replace-oldest"},
}
PLAIN = {
    "queue": "plain",
    "kind": "a",
    "key": "x",
    "priority": 0,
    "delay": 0,
    "max_attempts": 2,
    "parent": None,
}


def seldom(is_one: list[bool], strike: Strike) -> Strike | None:
    return strike if all(is_one) else None


replicas = st.integers(0, 1)
# Which of the jobs that a rule can be about.
numbers = st.integers(0, 63)
strikes = st.builds(seldom, st.lists(st.booleans(), min_size=3, max_size=3), st.sampled_from(Strike))
submissions = st.fixed_dictionaries(
    {
        "queue": st.sampled_from(["plain", "plain", "plain", *KEYED]),
        "kind": st.sampled_from(["a", "b"]),
        "key": st.sampled_from(["x", "y"]),
        "priority": st.sampled_from([0, 0, 7, -7]),
        "delay": st.sampled_from([0, 0, 0, LONG]),
        "max_attempts": st.sampled_from([None, 1, 2]),
        "parent": st.sampled_from([None, None, None, *range(4)]),
        "needs": st.just([]) | st.just([]) | st.lists(numbers, min_size=1, max_size=2),
        "runs_anyway": st.booleans(),
    }
)


class Callers(Conversation):
    def __init__(self) -> None:
        super().__init__()
        # What was accepted under an idempotency key: where, the key, the body, the answer.
        self.accepted: list[tuple[str, str, bytes, Any]] = []

    def queue(self, name: str) -> str:
        return f"plain-{self.example}" if name == "plain" else name

    def kind(self, name: str) -> str:
        return f"{name}-{self.example}"

    @property
    def idempotency_key(self) -> str:
        return f"{self.example}-{self.step}"

    def one_of(self, number: int, *states: State) -> Job | None:
        """Mostly one in these states, and sometimes any other."""
        liked = [job for job in self.model.jobs.values() if job.state in states]
        return self.model.pick(number // 2, self.model.all() if number % 8 == 7 else liked)

    def have_failed(self, at: int) -> None:
        """One that runs fails."""
        raise NotImplementedError

    # -- submitting ----------------------------------------------------------------------------------------

    @initialize(count=st.integers(1, 4), at=replicas)
    def some_jobs_to_begin_with(self, count: int, at: int) -> None:
        self.submit_many(at, [PLAIN] * count)

    def body_of(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Those with a key have a kind of their own, and wait for nothing but their key."""
        is_keyed = wanted["queue"] in KEYED
        body: dict[str, Any] = {
            "kind": self.kind("keyed" if is_keyed else wanted["kind"]),
            "queue": self.queue(wanted["queue"]),
            "priority": wanted["priority"],
            "payload": {"key": f"{self.example}-{wanted['key']}" if is_keyed else None, "step": self.step},
            "metadata": {"example": str(self.example), "step": str(self.step)},
        }
        if wanted["max_attempts"] is not None:
            body["max_attempts"] = wanted["max_attempts"]
        if wanted["parent"] is not None:
            # The newest first, so that children have children.
            living = [job for job in reversed(self.model.jobs.values()) if job.state in LIVE]
            parent = self.model.pick(wanted["parent"], living if wanted["parent"] < 3 else self.model.all())
            body |= {"parent_id": parent.id} if parent else {}
        if is_keyed:
            return body
        if wanted["delay"]:
            body["delay_seconds"] = wanted["delay"]
        needed = [self.model.pick(number, self.model.all()) for number in wanted.get("needs", ())]
        if any(needed):
            ids = sorted({each.id for each in needed if each})
            # Whether one of several that failed still counts when it is revived is a matter of moments.
            body["depends_on"] = ids[:1] if wanted["runs_anyway"] else ids
            body["on_dependency_failure"] = "run" if wanted["runs_anyway"] else "cancel"
        return body

    @rule(at=replicas, wanted=submissions, is_bare=st.booleans(), strike=strikes)
    def submit(self, at: int, wanted: dict[str, Any], is_bare: bool, strike: Strike | None) -> None:
        self.step += 1
        body, grant = self.body_of(wanted), Grant()
        is_keyed = wanted["queue"] in KEYED
        # What is sent again without a key comes in again: of that, only a queue without rules makes no difference.
        is_bare = is_bare and not is_keyed
        headers = {} if is_bare else {"idempotency_key": self.idempotency_key}
        outcome = self.ask(at, "POST", "/jobs", body, strike, **headers)
        accepted = [answer for answer in outcome.answers if answer.status_code in {200, 202}]
        refusal = self.model.refusal(body)
        if refusal is not None:
            assert codes(outcome) == {refusal}
        elif is_keyed:
            assert len(accepted) in {0, len(outcome.answers)} or any(
                each.cancelling for each in self.model.all()
            )
            self.model.check_keyed(
                body, KEYED[wanted["queue"]], (accepted or outcome.answers)[0].json(), grant
            )
        else:
            assert set(outcome.statuses) == {202}, outcome.one.text
            for job_id in {answer.json()["job_id"] for answer in accepted}:
                self.model.accept(job_id, body, grant)
        for answer in accepted:
            assert answer.headers["location"] == f"/jobs/{answer.json()['job_id']}"
            assert (answer.status_code == 200) is (answer.json()["outcome"] == "coalesced")
        if accepted and not is_bare:
            self.remember("/jobs", written(body), accepted, outcome.lost)
        self.look(at, grant, strays=outcome.lost if is_bare and refusal is None else 0, body=body)

    @rule(
        at=replicas,
        queue=st.sampled_from([*KEYED]),
        many=st.lists(st.tuples(submissions, strikes), min_size=2, max_size=4),
    )
    def crowd_a_key(self, at: int, queue: str, many: list[tuple[dict[str, Any], Strike | None]]) -> None:
        for n, (wanted, strike) in enumerate(many):
            self.submit((at + n) % 2, wanted | {"queue": queue, "key": "x"}, False, strike)

    def remember(self, path: str, content: bytes, accepted: list[Any], lost: int) -> None:
        """One of them came in; all others were told so."""
        answer = accepted[0].json()
        assert all(each.json() == answer for each in accepted)
        replayed = sum(each.headers.get("idempotency-replayed") == "true" for each in accepted)
        assert replayed == len(accepted) - 1 or (lost and replayed == len(accepted)), accepted
        self.accepted.append((path, self.idempotency_key, content, answer))

    @rule(
        at=replicas,
        wanted=st.lists(submissions, min_size=1, max_size=3),
        spoiled=st.sampled_from([None, None, None, 0, 1]),
        strike=strikes,
    )
    def submit_batch(
        self, at: int, wanted: list[dict[str, Any]], spoiled: int | None, strike: Strike | None
    ) -> None:
        self.submit_many(at, [each | {"queue": "plain"} for each in wanted], spoiled, strike)

    def submit_many(
        self,
        at: int,
        wanted: list[dict[str, Any]],
        spoiled: int | None = None,
        strike: Strike | None = None,
    ) -> None:
        """All of them or none."""
        self.step += 1
        bodies, grant = [self.body_of(each) for each in wanted], Grant()
        refusals = {refusal for body in bodies if (refusal := self.model.refusal(body)) is not None}
        if spoiled is not None:
            bodies.insert(spoiled, {**bodies[0], "priority": 1000})
            refusals = {(422, "invalid_request")}
        content = written({"jobs": bodies})
        outcome = self.ask(at, "POST", "/jobs/batch", content, strike, idempotency_key=self.idempotency_key)
        if refusals:
            assert codes(outcome) <= refusals
            assert all(0 <= answer.json()["index"] < len(bodies) for answer in outcome.answers)
        else:
            assert set(outcome.statuses) == {202}, outcome.one.text
            for body, entry in zip(bodies, outcome.one.json()["jobs"], strict=True):
                assert (entry["state"], entry["outcome"]) == ("queued", "accepted")
                self.model.accept(entry["job_id"], body, grant)
            self.remember("/jobs/batch", content, outcome.answers, outcome.lost)
        self.look(at, grant)

    @rule(at=replicas, again=st.lists(st.tuples(numbers, st.booleans(), strikes), min_size=1, max_size=4))
    def submit_again(self, at: int, again: list[tuple[int, bool, Strike | None]]) -> None:
        """Under a key that was used before: the same is answered alike, anything else is refused."""
        self.step += 1
        for number, is_same, strike in again:
            path, key, content, said = self.accepted[number % len(self.accepted)]
            sent = content if is_same else content.replace(b'"priority":', b'"priority": ')
            outcome = self.ask(at, "POST", path, sent, strike, idempotency_key=key)
            ids = {each["job_id"] for each in said.get("jobs", [said])}
            if not is_same:
                assert codes(outcome) == {(422, "idempotency_mismatch")}
            elif ids & self.model.deleted.keys():
                assert codes(outcome) == {(404, "not_found")}
            else:
                for answer in outcome.answers:
                    assert answer.json() == said
                    assert answer.headers["idempotency-replayed"] == "true"
        self.look(at)

    # -- what is done to a job -----------------------------------------------------------------------------

    @rule(at=replicas, number=numbers, strike=strikes, reason=st.sampled_from([None, "why not"]))
    def cancel(self, at: int, number: int, strike: Strike | None, reason: str | None) -> None:
        self.step += 1
        liked = [State.QUEUED] if number % 2 else [State.LOADING, State.WORKING]
        job = self.one_of(number, *liked)
        if job is not None:
            self.cancel_one(at, job, strike, reason)

    @rule(at=replicas, number=numbers, strike=strikes, way=st.sampled_from(["retry", "replay", "dismiss"]))
    def revive_or_dismiss(self, at: int, number: int, strike: Strike | None, way: str) -> None:
        self.step += 1
        job = self.one_of(number, State.FAILED)
        if job is None:
            self.have_failed(at)
            return
        path = f"/jobs/{job.id}/retry" if way == "retry" else f"/dead-letters/{job.id}/{way}"
        outcome, grant = self.ask(at, "POST", path, None, strike), Grant()
        if job.id in self.model.deleted:
            assert codes(outcome) == {(404, "not_found")}
        elif job.state is not State.FAILED:
            assert codes(outcome) == {(409, "invalid_transition")}
        else:
            # Whoever comes second finds it moved.
            moved = outcome.statuses.count(200)
            assert set(outcome.statuses) <= {200, 409}
            assert moved == 1 or (moved == 0 and outcome.lost), outcome
            grant.once(job, "dismissed/dismiss" if way == "dismiss" else "queued/revive")
            job.delayed = False
        self.look(at, grant)

    @rule(at=replicas, number=numbers, strike=strikes)
    def delete(self, at: int, number: int, strike: Strike | None) -> None:
        self.step += 1
        job = self.one_of(number, *TERMINAL)
        if job is None or job.cancelling:
            return
        outcome = self.ask(at, "DELETE", f"/jobs/{job.id}", None, strike)
        if job.id in self.model.deleted:
            assert codes(outcome) == {(404, "not_found")}
        elif job.ended:
            assert set(outcome.statuses) <= {204, 404}
            assert outcome.statuses.count(204) == 1 or (204 not in outcome.statuses and outcome.lost), outcome
            self.model.deleted[job.id] = self.model.jobs.pop(job.id)
        else:
            assert codes(outcome) == {(409, "invalid_transition")}
        self.look(at)

    @rule(at=replicas, number=numbers, strike=strikes)
    def post_event(self, at: int, number: int, strike: Strike | None) -> None:
        self.step += 1
        job = self.model.pick(number, self.model.all())
        assert job is not None
        body = {"type": OWN_EVENT, "payload": {"step": self.step}}
        outcome, grant = self.ask(at, "POST", f"/jobs/{job.id}/events", body, strike), Grant()
        posted = [answer.json()["seq"] for answer in outcome.answers if answer.status_code == 201]
        if job.id in self.model.deleted:
            assert codes(outcome) == {(404, "not_found")}
        elif job.ended:
            assert codes(outcome) == {(409, "job_terminal")}
        else:
            assert job.cancelling or set(outcome.statuses) == {201}
            grant.add(job, OWN_EVENT, len(posted), len(posted) + outcome.lost)
        self.look(at, grant)
        for seq in posted:
            assert (job.log[seq - 1]["type"], job.log[seq - 1]["data"]) == (OWN_EVENT, body["payload"])
