"""Random verbs against the real store, compared after each step with a model made from the transition table."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.jobs.states import LIVE, RUNNING, TERMINAL, TRANSITIONS, State, Verb, allows
from app.store.claims import Claims
from app.store.control import cancel, delete, revive
from app.store.database import Database
from app.store.enqueue import enqueue
from app.store.history import ALL_EVENTS
from app.store.idempotency import Receipt, Submission
from app.store.promote import promote
from app.store.settle import Settlement, heartbeat, settle
from app.store.sweep import sweep
from tests.live_tables import write
from tests.store import invariants
from tests.store.making import TENANT, claim, job

Answer = TypeVar("Answer")
ERROR = '{"code":"broken","message":"It broke.","retryable":true}'
LANES = ["noop", "other"]
LONG = 3600.0


@dataclass
class Model:
    """What a job should be like by now."""

    id: str
    rank: int
    lane: str
    max_attempts: int
    # The step in which it became claimable; None while it waits for its moment.
    ready: int | None
    state: State = State.QUEUED
    attempt: int = 0
    deferrals: int = 0
    started: bool = False
    error: bool = False
    cancelling: bool = False
    token: str | None = None
    old_tokens: list[str] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=lambda: [("queued", "enqueue")])

    def move(self, verb: Verb) -> None:
        """Along the table, with what every such move brings along."""
        transition = TRANSITIONS[verb]
        assert self.state in transition.sources, (verb, self.state)
        if verb is Verb.COMPLETE and self.state is State.LOADING:
            self.move(Verb.START)
        self.state = transition.target
        self.events.append((str(self.state), str(verb)))
        if self.state not in RUNNING and self.token is not None:
            self.old_tokens.append(self.token)
            self.token = None

    def settle(self, verb: Verb, step: int, delay: float) -> None:
        """What the worker said, and what it comes to."""
        if verb is Verb.START:
            if self.state is State.LOADING:
                self.move(Verb.START)
            return
        if verb in {Verb.FAIL, Verb.RETRY}:
            self.error = True
        if verb is Verb.COMPLETE:
            self.error = False
            self.move(Verb.COMPLETE)
        elif verb is Verb.CANCEL or self.cancelling:
            self.move(Verb.CANCEL)
        elif verb is Verb.FAIL or (verb is Verb.RETRY and self.attempt >= self.max_attempts):
            self.move(Verb.FAIL)
        else:
            self.move(verb)
            self.ready = step if delay <= 0 else None
            if verb in {Verb.DEFER, Verb.RELEASE}:
                self.attempt -= 1
            self.deferrals += verb is Verb.DEFER


class Machine(RuleBasedStateMachine):
    """Every rule is one verb, or one way of coming too late."""

    runner: asyncio.Runner
    database: Database

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, Model] = {}
        self.step = 0
        self.claims = Claims(self.database)

    def run(self, work: Awaitable[Answer]) -> Answer:
        async def awaited() -> Answer:
            return await work

        return self.runner.run(awaited())

    def some(self, data: st.DataObject, states: Any) -> Model | None:
        chosen = [each for each in self.jobs.values() if each.state in states]
        return data.draw(st.sampled_from(chosen)) if chosen else None

    def teardown(self) -> None:
        self.run(
            self.database.execute(
                "TRUNCATE jobs, queued, running, endings, events, outbox, deliveries, idempotency_keys"
            )
        )

    # -- callers -------------------------------------------------------------------------------------------

    @initialize(count=st.integers(1, 4))
    def some_jobs_to_begin_with(self, count: int) -> None:
        self.put([(0, False, "noop", 2, False)] * count)

    @rule(
        wanted=st.lists(
            st.tuples(
                st.integers(-2, 2),
                st.booleans(),
                st.sampled_from(LANES),
                st.integers(1, 3),
                st.sampled_from([False, False, True]),
            ),
            min_size=1,
            max_size=3,
        )
    )
    def enqueue(self, wanted: list[tuple[int, bool, str, int, bool]]) -> None:
        self.put(wanted)

    def put(self, wanted: list[tuple[int, bool, str, int, bool]]) -> None:
        self.step += 1
        jobs = [
            job(
                # Made ids are random, and hypothesis must be able to repeat a story exactly.
                id=f"{self.step * 10 + n:026}",
                priority=priority,
                interactive=interactive,
                lane=lane,
                max_attempts=max_attempts,
                delay_seconds=LONG if delayed else None,
                webhook_url="https://example.org/" if priority else None,
                webhook_events=["done", "cancel_requested"] if priority > 0 else None,
            )
            for n, (priority, interactive, lane, max_attempts, delayed) in enumerate(wanted)
        ]
        receipts = self.run(enqueue(self.database, [Submission(jobs)])).answers
        assert receipts == [Receipt([each.id for each in jobs])]
        for each, (priority, interactive, lane, max_attempts, delayed) in zip(jobs, wanted, strict=True):
            self.jobs[each.id] = Model(
                each.id, priority * 2 + interactive, lane, max_attempts, None if delayed else self.step
            )

    @rule(data=st.data(), reason=st.sampled_from([None, "why not"]))
    @precondition(lambda self: self.jobs)
    def cancel(self, data: st.DataObject, reason: str | None) -> None:
        model = self.some(data, set(State))
        assert model is not None
        controlled = self.run(cancel(self.database, [model.id], TENANT, reason)).answers
        assert [each.job_id for each in controlled] == [model.id]
        if model.state is State.QUEUED:
            model.cancelling = True
            model.move(Verb.CANCEL)
            assert (controlled[0].changed, controlled[0].requested) == (True, False)
        elif model.state in RUNNING:
            assert controlled[0].requested
            assert controlled[0].changed is not model.cancelling
            if not model.cancelling:
                model.cancelling = True
                model.events.append(("cancel_requested", "cancel"))
        else:
            assert (controlled[0].changed, controlled[0].requested) == (False, False)

    @rule(data=st.data())
    @precondition(lambda self: self.jobs)
    def revive(self, data: st.DataObject) -> None:
        model = self.some(data, {State.FAILED}) or self.some(data, set(State))
        assert model is not None
        self.step += 1
        revived = self.run(revive(self.database, [model.id], TENANT)).answers
        assert (revived == [model.id]) is allows(Verb.REVIVE, model.state)
        if revived:
            model.move(Verb.REVIVE)
            model.attempt = model.deferrals = 0
            model.error = False
            model.ready = self.step

    @rule(data=st.data())
    @precondition(lambda self: self.jobs)
    def delete(self, data: st.DataObject) -> None:
        model = self.some(data, set(State))
        assert model is not None
        gone = self.run(delete(self.database, [model.id], TENANT)).answers
        assert (gone == [model.id]) is (model.state in TERMINAL)
        if gone:
            del self.jobs[model.id]

    # -- workers -------------------------------------------------------------------------------------------

    @rule(limit=st.integers(1, 4), lane=st.sampled_from(LANES))
    def claim(self, limit: int, lane: str) -> None:
        # Best rank first, then first come first served.
        waiting = sorted(
            (-each.rank, each.ready, each.id)
            for each in self.jobs.values()
            if each.state is State.QUEUED and each.ready is not None and each.lane == lane
        )
        claimed = self.run(claim(self.database, [lane], limit, lease_seconds=LONG, claims=self.claims))
        assert {record.id for record in claimed} == {each[-1] for each in waiting[:limit]}
        for record in claimed:
            model = self.jobs[record.id]
            model.move(Verb.CLAIM)
            model.attempt += 1
            model.started = True
            model.token = record.lease_token
            assert model.token not in model.old_tokens

    settlements = st.lists(
        st.tuples(
            st.sampled_from(
                [
                    Verb.START,
                    Verb.START,
                    Verb.COMPLETE,
                    Verb.FAIL,
                    Verb.RETRY,
                    Verb.DEFER,
                    Verb.RELEASE,
                    Verb.CANCEL,
                ]
            ),
            st.sampled_from([0.0, LONG]),
        ),
        min_size=1,
        max_size=4,
    )

    @rule(data=st.data(), said=settlements)
    @precondition(lambda self: any(each.state in RUNNING for each in self.jobs.values()))
    def settle(self, data: st.DataObject, said: list[tuple[Verb, float]]) -> None:
        """A batch of mixed verbs, each with its current token."""
        held = [each for each in self.jobs.values() if each.state in RUNNING]
        chosen = data.draw(
            st.lists(st.sampled_from(held), min_size=1, max_size=len(said), unique_by=lambda each: each.id)
        )
        self.step += 1
        pairs = list(zip(chosen, said, strict=False))
        answers = self.run(
            settle(self.database, [_settlement(model.id, model.token or "", *what) for model, what in pairs])
        ).answers
        for (model, (verb, delay)), answer in zip(pairs, answers, strict=True):
            model.settle(verb, self.step, delay)
            assert (answer.job_id, answer.ok, answer.state) == (model.id, True, model.state)

    @rule(data=st.data(), said=settlements)
    @precondition(lambda self: self.jobs)
    def settle_too_late(self, data: st.DataObject, said: list[tuple[Verb, float]]) -> None:
        """With the token of an earlier run, or one that never was."""
        model = self.some(data, set(State))
        assert model is not None
        token = data.draw(st.sampled_from([*model.old_tokens, "never-was"]))
        verb, delay = said[0]
        answers = self.run(settle(self.database, [_settlement(model.id, token, verb, delay)])).answers
        assert [(each.ok, each.state) for each in answers] == [(False, model.state)]
        model.events.append(("late_settlement", "late_settlement"))

    @rule(data=st.data())
    @precondition(lambda self: self.jobs)
    def heartbeat(self, data: st.DataObject) -> None:
        model = self.some(data, set(State))
        assert model is not None
        token = data.draw(st.sampled_from([*model.old_tokens, "never-was", model.token or "none"]))
        leases = self.run(heartbeat(self.database, [(model.id, token)], [LONG]))
        if token == model.token:
            assert leases[model.id].cancel_requested is model.cancelling
        else:
            assert leases == {}

    # -- time ----------------------------------------------------------------------------------------------

    def let_pass(self, model: Model, column: str) -> None:
        self.step += 1
        self.run(
            write(
                self.database,
                f"UPDATE jobs SET {column} = now() - $2::interval WHERE id = $1",
                model.id,
                timedelta(seconds=LONG),
            )
        )

    def sweep(self) -> None:
        assert self.run(sweep(self.database, cancel_grace_seconds=10)) is not None

    @rule(data=st.data())
    @precondition(lambda self: any(each.state in RUNNING for each in self.jobs.values()))
    def rescue(self, data: st.DataObject) -> None:
        model = self.some(data, RUNNING)
        assert model is not None
        self.let_pass(model, "lease_expires_at")
        self.sweep()
        model.error = True
        if model.cancelling:
            model.move(Verb.CANCEL)
        elif model.attempt >= model.max_attempts:
            model.move(Verb.FAIL)
        else:
            model.move(Verb.RESCUE)
            model.ready = self.step

    @rule(data=st.data())
    @precondition(lambda self: any(each.state in LIVE for each in self.jobs.values()))
    def expire(self, data: st.DataObject) -> None:
        model = self.some(data, LIVE)
        assert model is not None
        self.let_pass(model, "deadline")
        self.sweep()
        model.move(Verb.EXPIRE)

    @rule(data=st.data())
    @precondition(lambda self: any(each.state in RUNNING and each.cancelling for each in self.jobs.values()))
    def end_of_grace(self, data: st.DataObject) -> None:
        model = data.draw(
            st.sampled_from([e for e in self.jobs.values() if e.state in RUNNING and e.cancelling])
        )
        self.let_pass(model, "cancel_requested_at")
        self.sweep()
        model.move(Verb.CANCEL)

    @rule(data=st.data())
    @precondition(
        lambda self: any(each.state is State.QUEUED and each.ready is None for each in self.jobs.values())
    )
    def promote(self, data: st.DataObject) -> None:
        model = data.draw(
            st.sampled_from([e for e in self.jobs.values() if e.state is State.QUEUED and e.ready is None])
        )
        self.let_pass(model, "run_at")
        assert self.run(promote(self.database)).work == {("default", model.lane)}
        model.ready = self.step

    @rule()
    def nothing_is_due(self) -> None:
        self.sweep()
        assert not self.run(promote(self.database)).work

    # -- after each step -----------------------------------------------------------------------------------

    @invariant()
    def the_tables_say_what_the_model_says(self) -> None:
        rows = {row["id"]: row for row in self.run(self.database.fetch("SELECT * FROM jobs"))}
        assert set(rows) == set(self.jobs)
        events: dict[str, list[tuple[str, str]]] = {job_id: [] for job_id in self.jobs}
        for row in self.run(
            self.database.fetch(
                f"SELECT job_id, type, reason FROM {ALL_EVENTS} AS events ORDER BY job_id, seq"
            )
        ):
            events[row["job_id"]].append((row["type"], row["reason"]))
        for job_id, model in self.jobs.items():
            row = rows[job_id]
            assert events[job_id] == model.events
            assert row["state"] == model.state
            assert (row["attempt"], row["deferrals"]) == (model.attempt, model.deferrals)
            assert row["lease_token"] == model.token
            assert (row["error"] is not None) is model.error
            assert (row["started_at"] is not None) is model.started
            assert (row["cancel_requested_at"] is not None) is model.cancelling
            if model.state is State.QUEUED:
                assert (row["ready_at"] is not None) is (model.ready is not None)
        assert self.run(invariants.check_all(self.database)) == len(self.jobs)


def _settlement(job_id: str, token: str, verb: Verb, delay: float) -> Settlement:
    return Settlement(
        job_id,
        token,
        verb,
        result="null" if verb is Verb.COMPLETE else None,
        error=ERROR if verb in {Verb.FAIL, Verb.RETRY} else None,
        delay_seconds=delay if verb in {Verb.RETRY, Verb.DEFER, Verb.RELEASE} else None,
    )


def test_any_order_of_verbs_follows_the_transition_table(database_url: str) -> None:
    database = Database(database_url, size=2)
    with asyncio.Runner() as runner:
        runner.run(database.open())
        bound = type("BoundMachine", (Machine,), {"runner": runner, "database": database})
        try:
            run_state_machine_as_test(
                bound,
                settings=hypothesis.settings(
                    max_examples=60,
                    stateful_step_count=30,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
                ),
            )
        finally:
            runner.run(database.close())
