"""The states of a job and the one table of transitions that everything else is checked against."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    QUEUED = "queued"
    LOADING = "loading"
    WORKING = "working"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"
    STALE = "stale"
    DISMISSED = "dismissed"


class Verb(StrEnum):
    ENQUEUE = "enqueue"
    CLAIM = "claim"
    START = "start"
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"
    DEFER = "defer"
    RELEASE = "release"
    RESCUE = "rescue"
    CANCEL = "cancel"
    EXPIRE = "expire"
    SKIP = "skip"
    SUPERSEDE = "supersede"
    REVIVE = "revive"
    DISMISS = "dismiss"


LIVE = frozenset({State.QUEUED, State.LOADING, State.WORKING})
RUNNING = frozenset({State.LOADING, State.WORKING})
TERMINAL = frozenset(State) - LIVE

EXTRA_EVENT_TYPES = frozenset({"progress", "log", "output", "cancel_requested", "late_settlement"})
RESERVED_EVENT_TYPES = frozenset(str(state) for state in State) | EXTRA_EVENT_TYPES


@dataclass(frozen=True, slots=True)
class Transition:
    """One verb: the states it may leave and the state it enters."""

    sources: frozenset[State | None]
    target: State


TRANSITIONS: dict[Verb, Transition] = {
    Verb.ENQUEUE: Transition(frozenset({None}), State.QUEUED),
    Verb.CLAIM: Transition(frozenset({State.QUEUED}), State.LOADING),
    Verb.START: Transition(frozenset({State.LOADING}), State.WORKING),
    # From loading it passes through working in the same commit, so that every history reads alike.
    Verb.COMPLETE: Transition(frozenset(RUNNING), State.DONE),
    Verb.FAIL: Transition(frozenset(RUNNING), State.FAILED),
    Verb.RETRY: Transition(frozenset(RUNNING), State.QUEUED),
    Verb.DEFER: Transition(frozenset(RUNNING), State.QUEUED),
    Verb.RELEASE: Transition(frozenset(RUNNING), State.QUEUED),
    Verb.RESCUE: Transition(frozenset(RUNNING), State.QUEUED),
    Verb.CANCEL: Transition(frozenset(LIVE), State.CANCELLED),
    Verb.EXPIRE: Transition(frozenset(LIVE), State.EXPIRED),
    Verb.SKIP: Transition(frozenset({State.QUEUED}), State.SKIPPED),
    Verb.SUPERSEDE: Transition(frozenset(RUNNING), State.STALE),
    Verb.REVIVE: Transition(frozenset({State.FAILED}), State.QUEUED),
    Verb.DISMISS: Transition(frozenset({State.FAILED}), State.DISMISSED),
}


def allows(verb: Verb, state: State | None) -> bool:
    """Whether the verb may leave this state (None: the job does not exist yet)."""
    return state in TRANSITIONS[verb].sources
