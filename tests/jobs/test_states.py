"""The transition table is the specification's, word for word."""

import pytest

from app.jobs.states import (
    EXTRA_EVENT_TYPES,
    LIVE,
    RESERVED_EVENT_TYPES,
    RUNNING,
    TERMINAL,
    TRANSITIONS,
    State,
    Verb,
    allows,
)

# Section 2 of the specification, retyped: verb, the states it leaves, the state it enters.
SPECIFIED: dict[str, tuple[list[str | None], str]] = {
    "enqueue": ([None], "queued"),
    "claim": (["queued"], "loading"),
    "start": (["loading"], "working"),
    "complete": (["working", "loading"], "done"),
    "fail": (["loading", "working"], "failed"),
    "retry": (["loading", "working"], "queued"),
    "defer": (["loading", "working"], "queued"),
    "release": (["loading", "working"], "queued"),
    "rescue": (["loading", "working"], "queued"),
    "cancel": (["queued", "loading", "working"], "cancelled"),
    "expire": (["queued", "loading", "working"], "expired"),
    "skip": (["queued"], "skipped"),
    "supersede": (["loading", "working"], "stale"),
    "revive": (["failed"], "queued"),
    "dismiss": (["failed"], "dismissed"),
}
STATES = [
    "queued",
    "loading",
    "working",
    "done",
    "failed",
    "cancelled",
    "expired",
    "skipped",
    "stale",
    "dismissed",
]


def test_the_states_are_those_of_the_specification_in_its_order() -> None:
    assert [str(state) for state in State] == STATES


def test_the_verbs_are_those_of_the_specification() -> None:
    assert {str(verb) for verb in Verb} == set(SPECIFIED)
    assert set(TRANSITIONS) == set(Verb)


@pytest.mark.parametrize("verb", list(Verb))
def test_each_verb_leaves_and_enters_the_states_that_the_specification_says(verb: Verb) -> None:
    sources, target = SPECIFIED[verb]
    assert {None if state is None else str(state) for state in TRANSITIONS[verb].sources} == set(
        sources or ()
    )
    assert str(TRANSITIONS[verb].target) == target


def test_all_states_but_the_first_three_are_terminal() -> None:
    assert {"queued", "loading", "working"} == LIVE
    assert {"loading", "working"} == RUNNING
    assert {str(state) for state in TERMINAL} == set(STATES[3:])


def test_terminal_states_are_left_only_by_revive_and_dismiss() -> None:
    leaving = {verb for verb, transition in TRANSITIONS.items() if transition.sources & TERMINAL}
    assert leaving == {Verb.REVIVE, Verb.DISMISS}


def test_every_state_can_be_reached_from_nothing() -> None:
    reached: set[State | None] = {None}
    while True:
        further = {transition.target for transition in TRANSITIONS.values() if transition.sources & reached}
        if further <= reached:
            break
        reached |= further
    assert reached == {None, *State}


@pytest.mark.parametrize(
    ("verb", "state", "allowed"),
    [
        (Verb.ENQUEUE, None, True),
        (Verb.ENQUEUE, State.QUEUED, False),
        (Verb.CLAIM, State.QUEUED, True),
        (Verb.CLAIM, State.LOADING, False),
        (Verb.COMPLETE, State.LOADING, True),
        (Verb.COMPLETE, State.CANCELLED, False),
        (Verb.REVIVE, State.FAILED, True),
        (Verb.REVIVE, State.CANCELLED, False),
    ],
)
def test_allows_answers_from_the_table(verb: Verb, state: State | None, allowed: bool) -> None:
    assert allows(verb, state) is allowed


def test_the_names_of_the_states_and_the_extra_types_are_reserved_as_event_types() -> None:
    assert {"progress", "log", "output", "cancel_requested", "late_settlement"} == EXTRA_EVENT_TYPES
    assert set(STATES) | EXTRA_EVENT_TYPES == RESERVED_EVENT_TYPES
