"""The checker: reads what is known of a run and names everything that must not be. One column for each promise.

Each column is a function from the evidence to sentences; none is a good answer. They rely on what callers, workers and
receivers were told and on the database at the end, and not on what the servers say of themselves; but for one column, which
is what they have logged with a trace.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from app.jobs.states import TERMINAL
from tests.chaos.evidence import STATES, Event, Evidence, Run
from tests.chaos.shape import MAX_RUNNING, QUEUES, RATE, SCHEDULE_SECONDS, TARGET_SLOTS
from tests.store.invariants import Replay

ENDS = frozenset(str(state) for state in TERMINAL)
# Receivers that never take anything.
HOPELESS = frozenset({"drip"})
LADDER_TRIES = 8
# Within so many seconds each tick is made up for; of those that nobody was there for before that, the last.
TICK_PATIENCE_SECONDS = 5.0
# How long after a fault runs may still lose the lease for it.
AFTERMATH_SECONDS = 5.0

Check = Callable[[Evidence], Iterator[str]]
COLUMNS: dict[str, Check] = {}


def column(title: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        COLUMNS[title] = check
        return check

    return add


@dataclass(frozen=True, slots=True)
class Score:
    """What was counted, and what was found in each column."""

    counts: dict[str, int]
    columns: dict[str, list[str]]

    @property
    def is_clean(self) -> bool:
        return not any(self.columns.values())

    @property
    def problems(self) -> list[str]:
        return [f"{title}: {each}" for title, found in self.columns.items() for each in found]


def check(evidence: Evidence) -> Score:
    columns = {title: list(check(evidence)) for title, check in COLUMNS.items()}
    for title, problem in evidence.found:
        columns.setdefault(title, []).append(problem)
    events = sum(len(story.events) for story in evidence.stories.values())
    counts = {
        "jobs acknowledged": len(evidence.acknowledged_jobs),
        "jobs in the database": len(evidence.stories),
        "events": events,
        "runs": sum(len(story.runs()) for story in evidence.stories.values()),
        "leases lost": sum(
            event.reason in {"rescue", "supersede"}
            for story in evidence.stories.values()
            for event in story.events
        ),
        "late settlements refused": sum(not each.ok for each in evidence.settlements),
        "webhooks received": len(evidence.arrivals),
        "events seen by streams and polls": len(evidence.sightings),
        "submissions refused or broken, and repeated": len(evidence.refusals),
    }
    return Score(counts, columns)


# -- what was promised to callers ------------------------------------------------------------------


@column("acknowledged jobs lost")
def _(evidence: Evidence) -> Iterator[str]:
    for each in evidence.acknowledged:
        if each.job not in evidence.stories:
            yield f"{each.job} ({each.flavour}) is not there"


@column("one key, two jobs")
def _(evidence: Evidence) -> Iterator[str]:
    """However often a submission was repeated, it made one job; and that is the one which was acknowledged."""
    made: dict[str, str] = {}
    for story in evidence.stories.values():
        if (mark := story.mark) is not None and made.setdefault(mark, story.id) != story.id:
            yield f"{mark} is both {made[mark]} and {story.id}"
    for each in evidence.acknowledged:
        if made.get(each.mark, each.job) != each.job:
            yield f"{each.mark} was acknowledged as {each.job} and is {made[each.mark]}"


@column("wrong answers")
def _(evidence: Evidence) -> Iterator[str]:
    yield from evidence.wrong


@column("errors that nobody foresaw")
def _(evidence: Evidence) -> Iterator[str]:
    yield from evidence.crashes


@column("stuck jobs")
def _(evidence: Evidence) -> Iterator[str]:
    for story in evidence.stories.values():
        if story.job["state"] not in ENDS:
            job = story.job
            yield f"{story.id} ({job['kind']} in {job['queue']}) is {job['state']}: {_told(story.events[-4:])}"


# -- the log ---------------------------------------------------------------------------------------


@column("gaps in seq")
def _(evidence: Evidence) -> Iterator[str]:
    for story in evidence.stories.values():
        seqs = [event.seq for event in story.events]
        if seqs != list(range(1, story.job["seq"] + 1)):
            yield f"{story.id}, whose last is {story.job['seq']}: {seqs}"


@column("illegal transitions")
def _(evidence: Evidence) -> Iterator[str]:
    for story in evidence.stories.values():
        replay = Replay()
        try:
            for event in story.events:
                replay.step(event._asdict(), [])
        except AssertionError as problem:
            yield f"{story.id}: {problem} in {_told(story.events)}"
            continue
        job = story.job
        if job["state"] != replay.state or job["attempt"] != replay.attempt:
            yield f"{story.id} is {job['state']} in attempt {job['attempt']} after {_told(story.events)}"
        if (job["completed_at"] is not None) != (job["state"] in ENDS):
            yield f"{story.id} is {job['state']} and completed at {job['completed_at']}"
        if (job["started_at"] is not None) != replay.claimed:
            yield f"{story.id} started at {job['started_at']} after {_told(story.events)}"


@column("a seq that meant two things")
def _(evidence: Evidence) -> Iterator[str]:
    log = {(story.id, event.seq): event for story in evidence.stories.values() for event in story.events}
    for each in evidence.sightings:
        event = log.get((each.job, each.seq))
        if each.job not in evidence.stories:
            continue
        if event is None:
            yield f"{each.how} saw {each.job}-{each.seq} as {each.type or each.state}: there is none"
        elif each.type is not None and (event.type, event.at) != (each.type, each.moment):
            yield (
                f"{each.how} saw {each.job}-{each.seq} as {each.type} at {each.moment}: it is {event.type} at {event.at}"
            )
        elif each.state is not None and event.state != each.state:
            yield f"{each.how} saw {each.job} {each.state} at {each.seq}: it is {event.state}"
    for arrival in evidence.arrivals:
        event = log.get((arrival.job, arrival.seq))
        if event is None or (event.type, event.at) != (arrival.type, arrival.moment):
            told = "none" if event is None else f"{event.type} at {event.at}"
            yield f"webhook {arrival.job}-{arrival.seq} was {arrival.type} at {arrival.moment}: there is {told}"


# -- leases ----------------------------------------------------------------------------------------


@column("two live leases at once")
def _(evidence: Evidence) -> Iterator[str]:
    tokens: dict[tuple[str, int], str] = {}
    for claim in evidence.claims:
        if tokens.setdefault((claim.job, claim.seq), claim.token) != claim.token:
            yield f"{claim.job}: the claim with seq {claim.seq} was told to two"
    by_claim = {(claim.job, claim.seq): claim.token for claim in evidence.claims}
    for story in evidence.stories.values():
        for run in story.runs():
            token = by_claim.get((story.id, run.claim.seq))
            if token is None or run.end is None or run.end.reason not in {"rescue", "supersede"}:
                continue
            until = evidence.renewals[token]
            if run.end.at < until - timedelta(milliseconds=1):
                yield f"{story.id}: {run.end.reason} at {run.end.at}, though the lease was to hold until {until}"


@column("late settlements accepted")
def _(evidence: Evidence) -> Iterator[str]:
    claims = {claim.token: claim for claim in evidence.claims}
    runs = {(story.id, run.claim.seq): run for story in evidence.stories.values() for run in story.runs()}
    for settled in evidence.settlements:
        claim = claims.get(settled.token)
        if settled.ok and claim is not None:
            run = runs.get((claim.job, claim.seq))
            if run is None or not _has_verb(run, settled.verb):
                told = "is none" if run is None else f"was {_told(run.events)}"
                yield f"{settled.job}: {settled.verb} was accepted for the claim with seq {claim.seq}, which {told}"
    for story in evidence.stories.values():
        claim = claims.get(story.token_of_result or "")
        if claim is not None and claim.seq != story.runs()[-1].claim.seq:
            yield f"{story.id} has the result of the claim with seq {claim.seq}, which was not the last"


def _has_verb(run: Run, verb: str) -> bool:
    """What the worker said is what became of it; a cancel that was on its way goes first."""
    reasons = {event.reason for event in run.events}
    wanted = {"fail": {"fail", "retry"}}.get(verb, {verb}) | {"cancel"}
    return bool(reasons & wanted)


@column("run again without a lost lease")
def _(evidence: Evidence) -> Iterator[str]:
    for story in evidence.stories.values():
        runs = story.runs()
        if evidence.calls[story.id] > len(runs):
            yield f"{story.id} ran {len(runs)} times and its target was called {evidence.calls[story.id]} times"
        if "complete late" in (story.job["payload"] or ""):
            continue
        for run in runs:
            lost = run.end is not None and run.end.reason in {"rescue", "supersede"}
            if lost and not _is_explained(evidence, run):
                yield f"{story.id} lost its lease, and nothing was wrong: {_told(story.events)}"


def _is_explained(evidence: Evidence, run: Run) -> bool:
    assert run.end is not None
    began, ended = run.claim.at.timestamp(), run.end.at.timestamp()
    return any(
        window.began <= ended and window.ended + AFTERMATH_SECONDS >= began for window in evidence.windows
    )


# -- queues ----------------------------------------------------------------------------------------


@column("limits and keys exceeded")
def _(evidence: Evidence) -> Iterator[str]:
    groups: dict[tuple[str, int], list[Run]] = defaultdict(list)
    claims: list[float] = []
    for story in evidence.stories.values():
        job = story.job
        if job["queue"] == "limited":
            groups["queue limited", MAX_RUNNING] += story.runs()
        if job["queue"] == "keyed":
            groups[f"key {job['concurrency_key']}", QUEUES["keyed"]["max_active"]] += story.runs()
        if job["queue"] == "rated":
            claims += [run.claim.at.timestamp() for run in story.runs()]
    for (name, allowed), runs in groups.items():
        most = _most_at_once(runs)
        if most > allowed:
            yield f"{name}: {most} ran at once, and {allowed} may"
    if evidence.target_peak > TARGET_SLOTS:
        yield f"the target had {evidence.target_peak} requests at once, and {TARGET_SLOTS} slots"
    yield from _too_fast(sorted(claims))


def _most_at_once(runs: list[Run]) -> int:
    """Ends before beginnings of the same moment: who saw the place free came after it was."""
    steps = [(run.claim.at, 1) for run in runs] + [(run.end.at, -1) for run in runs if run.end is not None]
    most = now = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


def _too_fast(claims: list[float]) -> Iterator[str]:
    """In no stretch of time more than the bucket holds and what flows in meanwhile."""
    per_second = RATE["limit"] / RATE["per_seconds"]
    for stretch in (1.0, 5.0):
        allowed = RATE["limit"] + per_second * stretch + 1
        first = 0
        for last, moment in enumerate(claims):
            while moment - claims[first] > stretch:
                first += 1
            if last - first + 1 > allowed:
                yield f"{last - first + 1} claims of the limited queue within {stretch} s; {allowed:.0f} may"
                return


@column("dependencies and ticks broken")
def _(evidence: Evidence) -> Iterator[str]:
    for each in evidence.acknowledged:
        story = evidence.stories.get(each.job)
        for needed in each.after if story else []:
            before = evidence.stories.get(needed)
            done = [event.at for event in before.events if event.type == "done"] if before else []
            ran = [run.claim.at for run in story.runs()] if story else []
            if ran and (not done or ran[0] < done[0]):
                yield f"{each.job} ran before {needed}, which it depends on, was done"
    ticks = [story for story in evidence.stories.values() if story.job["queue"] == "ticks"]
    yield from _more_than_ticks(sorted(story.job["created_at"].timestamp() for story in ticks))


def _more_than_ticks(made: list[float]) -> Iterator[str]:
    """Each job has a tick of its own, at most a few seconds before: after a hiccup several are made up for at once."""
    free = 0.0
    for moment in made:
        earliest = math.ceil((moment - TICK_PATIENCE_SECONDS) / SCHEDULE_SECONDS) * SCHEDULE_SECONDS
        tick = max(free, earliest)
        if tick > moment:
            yield f"a job at {moment} for which there is no tick"
        else:
            free = tick + SCHEDULE_SECONDS


# -- webhooks --------------------------------------------------------------------------------------


@column("state events never delivered")
def _(evidence: Evidence) -> Iterator[str]:
    accepted = {(each.job, each.seq) for each in evidence.arrivals if each.accepted}
    for story in evidence.stories.values():
        url = story.job["webhook_url"]
        if url is None or evidence.receivers.get(url) in HOPELESS:
            continue
        for event in story.events:
            if event.type not in STATES:
                continue
            state, tries = story.deliveries.get(event.seq, ("never written", 0))
            gave_up = state == "given_up" and tries >= LADDER_TRIES
            if state == "delivered" and (story.id, event.seq) not in accepted:
                yield f"{story.id}-{event.seq} ({event.type}) is said to be delivered, and was not"
            elif state != "delivered" and not gave_up:
                yield f"{story.id}-{event.seq} ({event.type}) is {state} after {tries} tries"


@column("deliveries out of order")
def _(evidence: Evidence) -> Iterator[str]:
    """The first arrival of each comes after the one before was accepted, or given up on. (A repetition may come late: by
    a sender that was frozen in the middle of it.)"""
    first: dict[tuple[str, int], int] = {}
    taken: dict[tuple[str, int], int] = {}
    told: dict[str, set[int]] = defaultdict(set)
    for place, each in enumerate(evidence.arrivals):
        first.setdefault((each.job, each.seq), place)
        if each.accepted:
            taken.setdefault((each.job, each.seq), place)
        told[each.job].add(each.seq)
    for job_id, seqs in told.items():
        story = evidence.stories.get(job_id)
        previous: int | None = None
        for seq in sorted(seqs):
            was = story.deliveries.get(previous) if story and previous is not None else None
            if previous is not None and not (was and was[0] == "given_up"):
                before = taken.get((job_id, previous))
                if before is None or before > first[job_id, seq]:
                    yield f"{job_id}: {seq} arrived before {previous} was taken"
            previous = seq


def _told(events: list[Event]) -> str:
    return " ".join(f"{event.seq}:{event.type}({event.reason})" for event in events)
