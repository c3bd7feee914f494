"""The lease protocol holds in whatever order things happen; and the checker that says so finds what would break it."""

from collections import deque
from collections.abc import Iterable

import pytest

from app.jobs.states import TERMINAL, TRANSITIONS, State, Transition, Verb
from app.store.control import cancel
from app.store.database import Database
from app.store.settle import Settlement, heartbeat, settle
from app.store.sweep import sweep
from tests.live_tables import write
from tests.store import lease_model as model
from tests.store.lease_model import Answer, Event, Invariant, Model, Mutant, Report, Step, World, explore
from tests.store.making import TENANT, backdate, claim_one, log_of, put_one, row_of

BY_WORKERS = {model.CLAIM, model.HEARTBEAT, model.LATE, model.AGAIN, *model.SETTLING}
BY_OTHERS = {model.LOOK, model.RESCUE, model.END_GRACE, model.CANCEL}
BY_NATURE = {model.TICK, model.FLUSH, model.CRASH}
# What each mistake breaks. To tell too early is to break every word that was given.
BREAKS = [
    (Mutant.SETTLES_BY_ID, Invariant.ONE_HOLDER),
    (Mutant.RENEWS_BY_ID, Invariant.ONE_HOLDER),
    (Mutant.REUSES_TOKENS, Invariant.ONE_HOLDER),
    (Mutant.EVENT_FOLLOWS, Invariant.GAPLESS),
    (Mutant.TELLS_EARLY, Invariant.TOLD_ONCE),
    (Mutant.TELLS_EARLY, Invariant.PROMISE),
    (Mutant.TELLS_EARLY, Invariant.ALIKE),
    (Mutant.RESCUES_EARLY, Invariant.PROMISE),
    (Mutant.KEEPS_NO_FINGERPRINT, Invariant.ALIKE),
    (Mutant.CANCELS_WHAT_ENDED, Invariant.EDGES),
    (Mutant.RETRIES_FOR_EVER, Invariant.ATTEMPTS),
    (Mutant.PASSES_OVER_CANCELS, Invariant.NO_DEAD_END),
]


@pytest.fixture(scope="module")
def report() -> Report:
    return explore(Model())


def after(steps: Iterable[Step], of: Model) -> World:
    world = World()
    for step in steps:
        world = dict(of.steps(world))[step]
    return world


def test_no_order_of_events_breaks_the_lease_protocol(report: Report) -> None:
    assert report.broken is None, str(report)


def test_the_model_is_not_trivial(report: Report) -> None:
    assert report.worlds > 40_000
    assert set(report.taken) == BY_WORKERS | BY_OTHERS | BY_NATURE


def test_the_verbs_of_the_model_walk_all_their_edges_of_the_table(report: Report) -> None:
    verbs = {*model.SETTLING, Verb.CLAIM, Verb.RESCUE, Verb.CANCEL}
    table = {(source, verb) for verb in verbs for source in TRANSITIONS[verb].sources}
    # From loading a completion passes through working.
    assert report.walked == table - {(State.LOADING, Verb.COMPLETE)}


def test_the_table_leaves_terminal_states_only_by_revive_and_dismiss() -> None:
    leaving = {verb for verb, transition in TRANSITIONS.items() if transition.sources & TERMINAL}
    assert leaving == {Verb.REVIVE, Verb.DISMISS}


@pytest.mark.parametrize(("mutant", "invariant"), BREAKS, ids=lambda each: each.name)
def test_the_checker_finds_each_mistake(mutant: Mutant, invariant: Invariant) -> None:
    # These two lie far off, and show already where each commit is on disk before the next.
    is_far = invariant in {Invariant.PROMISE, Invariant.NO_DEAD_END}
    mistaken = Model(mutant, max_pending=1 if is_far else model.MAX_PENDING)
    found = explore(mistaken, {invariant})
    assert found.broken is invariant, str(found)
    *way, last = found.trace
    assert last in dict(mistaken.steps(after(way, mistaken)))


def test_each_mutant_and_each_invariant_is_seen_at_fault() -> None:
    mutants, invariants = zip(*BREAKS, strict=True)
    assert (set(mutants), set(invariants)) == (set(Mutant), set(Invariant))


def test_the_trace_is_a_shortest_one_and_printed_step_by_step() -> None:
    found = explore(Model(Mutant.TELLS_EARLY, max_pending=1), {Invariant.PROMISE})
    assert str(found).splitlines()[1:] == [
        "   1. claim by worker 1",
        "   2. flush",
        "   3. tick",
        "   4. heartbeat by worker 1",
        "   5. crash",
        "   6. tick",
        "   7. look of the sweeper",
        "   8. rescue",
    ]


def test_an_edge_that_the_table_does_not_have_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRANSITIONS, Verb.RESCUE, Transition(frozenset({State.WORKING}), State.QUEUED))
    found = explore(Model())
    assert (found.broken, found.trace[-1]) == (Invariant.EDGES, Step(model.RESCUE))


def test_a_worker_that_wakes_up_after_its_lease_can_only_be_late() -> None:
    flush, tick, look, rescue = Step(model.FLUSH), Step(model.TICK), Step(model.LOOK), Step(model.RESCUE)
    slept = [Step(model.CLAIM, 1), flush, tick, tick, look, rescue, flush, Step(model.CLAIM, 2), flush]
    possible = dict(Model().steps(after(slept, Model())))
    assert {step.what for step in possible if step.claim == 1} == {model.LATE}
    assert {step.what for step in possible if step.claim == 2} == set(model.SETTLING)


# -- the same in the store -----------------------------------------------------------------------------------------

TICK_SECONDS = 1000.0
LEASE_SECONDS = model.LEASE_TICKS * TICK_SECONDS


def next_steps(world: World) -> list[tuple[Step, World]]:
    """With each commit on disk at once, as whoever calls the store sees it."""
    return [
        (step, dict(Model().steps(next_))[Step(model.FLUSH)] if next_.pending else next_)
        for step, next_ in Model().steps(world)
    ]


def ways() -> list[list[Step]]:
    """A shortest one to each step, from each kind of row from which it can be taken."""
    reached: dict[World, list[Step]] = {World(): []}
    found: dict[object, list[Step]] = {}
    waiting = deque(reached)
    while waiting:
        world = waiting.popleft()
        row = world.row
        for step, next_ in next_steps(world):
            if next_ not in reached:
                reached[next_] = [*reached[world], step]
                waiting.append(next_)
            is_holder = step.claim == row.log.holder
            kind = (row.state, row.attempt, row.cancelling, is_holder, step.what, step.verb)
            if step.what not in {model.TICK, model.LOOK}:
                found.setdefault(kind, [*reached[world], step])
    return list(found.values())


async def take(database: Database, job_id: str, step: Step, tokens: dict[int, str]) -> State | None:
    """Do the same to the job in the database; what a settlement is told. Who sweeps by hand needs no second look."""
    token = tokens.get(step.claim, "")
    if step.what == model.CLAIM:
        tokens[step.claim] = await claim_one(database, job_id, lease_seconds=LEASE_SECONDS)
    elif step.what == model.HEARTBEAT:
        assert job_id in await heartbeat(database, [(job_id, token)])
    elif step.what == model.TICK:
        passed = (
            "UPDATE jobs SET lease_expires_at = lease_expires_at - $2 * interval '1 second' WHERE id = $1"
        )
        await write(database, passed, job_id, TICK_SECONDS)
    elif step.what == model.RESCUE:
        await sweep(database, cancel_grace_seconds=LEASE_SECONDS)
    elif step.what == model.END_GRACE:
        await backdate(database, job_id, "cancel_requested_at")
        await sweep(database, cancel_grace_seconds=1)
    elif step.what == model.CANCEL:
        await cancel(database, [job_id], TENANT, None)
    elif step.verb is not None:
        said = Settlement(job_id, token, step.verb, error="{}", delay_seconds=0)
        if step.verb is not Verb.START:
            said.fingerprint = f"{token}:{step.verb}"
        [answer] = (await settle(database, [said])).answers
        return State(answer.state) if answer.ok and answer.state else None
    return None


def logged(event: Event) -> tuple[str, str]:
    """Its type and its reason."""
    if isinstance(event.type, Verb):
        return TRANSITIONS[event.type].target, event.type
    return event.type, "cancel" if event.type == "cancel_requested" else event.type


async def test_the_store_takes_each_step_as_the_model_does(database: Database) -> None:
    for number, way in enumerate(ways()):
        job_id = await put_one(database, lane=f"lane-{number}", max_attempts=model.MAX_ATTEMPTS)
        world, tokens, log = World(), dict[int, str](), [("queued", "enqueue")]
        for step in way:
            told = await take(database, job_id, step, tokens)
            for commit in dict(Model().steps(world))[step].pending:
                log += map(logged, commit.events)
                if isinstance(commit.told, Answer):
                    assert told == commit.told.state, way
            world = dict(next_steps(world))[step]
            row = await row_of(database, job_id)
            assert (row["state"], row["attempt"]) == (world.row.state, world.row.attempt), way
            assert row["lease_token"] == (tokens[world.row.token] if world.row.token else None), way
        assert await log_of(database, job_id) == [(seq, *each) for seq, each in enumerate(log, 1)], way
