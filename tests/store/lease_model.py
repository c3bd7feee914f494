"""The lease protocol of one job, small enough to walk through every order in which things can happen.

Modelled: claims, start, heartbeats, complete, fail, retry, release; the sweeper, who needs two looks; a caller who
cancels, and the end of the grace; a database whose commits are seen by the next transaction, reach the disk in order, and
until then are lost in a crash, of which there may be any number. Its clock never has to stop: rows hold the ticks left.

Workers and network are the worst there can be. Whoever was told of a lease may be heard with it from then on at any
moment, with any verb, any number of times: that is all that delay, repetition, a freeze and a late awakening come to.
Nobody has to be heard at all: that is loss, and death. Each claim is by a worker of its own, as far as leases go.
Observers (webhooks, streams, polls) miss nothing: they are told of each event as soon as anybody is told of its commit.

Not modelled: defer (to a lease, a release), deadlines, keys, progress, logs, revive, dismiss; late heartbeats, which change
nothing; more releases, late settlements and commits on their way to the disk than the bounds below.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from app.jobs.states import RUNNING, TERMINAL, TRANSITIONS, State, Verb, allows

MAX_ATTEMPTS = 2
LEASE_TICKS = 2
# A lease that ran out, and one that a look of the sweeper has found so: the next look takes it for lost.
RUN_OUT, FOUND = 0, -1
# Bounds of what could go on for ever.
MAX_RELEASES, MAX_LATE, MAX_PENDING = 1, 1, 2

CLAIM, HEARTBEAT, LATE, AGAIN = "claim", "heartbeat", "late settlement", "settlement once more"
LOOK, RESCUE, END_GRACE, CANCEL = "look of the sweeper", "rescue", "end of the grace", "cancel"
TICK, FLUSH, CRASH = "tick", "flush", "crash"
SETTLING = (Verb.COMPLETE, Verb.FAIL, Verb.RETRY, Verb.RELEASE, Verb.START)
# What happens in the end if nothing breaks any more, even if every worker dies as soon as it has claimed.
UNFAILING = frozenset({CLAIM, LOOK, RESCUE, TICK, FLUSH})


class Mutant(StrEnum):
    """Mistakes that the protocol is there to prevent: the checker has to find each of them."""

    SETTLES_BY_ID = "a settlement counts whatever its token, as long as the job runs"
    RENEWS_BY_ID = "so does a heartbeat"
    REUSES_TOKENS = "all claims of a job have one token"
    EVENT_FOLLOWS = "the event is written by a second commit"
    TELLS_EARLY = "a commit is told before it is on disk"
    RESCUES_EARLY = "the sweeper does not look at the lease"
    KEEPS_NO_FINGERPRINT = "a settlement that comes again is like any other"
    CANCELS_WHAT_ENDED = "a cancel does not look at the state"
    RETRIES_FOR_EVER = "attempts are not compared with their maximum"
    PASSES_OVER_CANCELS = "the sweeper leaves alone what is to be cancelled"


# -- what there is ---------------------------------------------------------------------------------------------------


class Event(NamedTuple):
    """An edge that was walked, or a note that is none; from which state, and by the worker of which claim, if by any."""

    type: Verb | str
    source: State
    claim: int = 0


class Log(NamedTuple):
    """What the log says, as far as anything depends on it. The columns of the row are checked against it."""

    length: int = 0
    state: State = State.QUEUED
    claims: int = 0
    releases: int = 0
    late: int = 0
    # The number of the latest claim.
    holder: int = 0

    def append(self, event: Event) -> "Log":
        return Log(
            self.length + 1,
            TRANSITIONS[event.type].target if isinstance(event.type, Verb) else self.state,
            self.claims + (event.type == Verb.CLAIM),
            self.releases + (event.type == Verb.RELEASE),
            self.late + (event.type == "late_settlement"),
            event.claim if event.type == Verb.CLAIM else self.holder,
        )


class Lease(NamedTuple):
    """What a worker is told by its claim. By its number the checker tells claims apart, whatever their tokens."""

    claim: int
    token: int


class Answer(NamedTuple):
    """To a settlement: the state that it led to, or None where the lease is lost."""

    lease: Lease
    verb: Verb
    state: State | None


class Row(NamedTuple):
    """The job. `seq` counts from the last event on disk: worlds that differ only in how long their past is are one."""

    state: State = State.QUEUED
    seq: int = 0
    attempt: int = 0
    token: int | None = None
    ticks: int = RUN_OUT
    cancelling: bool = False
    # The last one that counted. Its token and verb are its fingerprint.
    settlement: Answer | None = None
    log: Log = Log()

    def move(self, claim: int, *verbs: Verb) -> "Commit":
        """Along these edges, in one commit. Whether there are such edges is for the checker to say."""
        row, events = self, []
        for verb in verbs:
            events.append(Event(verb, row.state, claim))
            row = row._replace(state=TRANSITIONS[verb].target, seq=row.seq + 1)
        if row.state not in RUNNING:
            row = row._replace(token=None, ticks=RUN_OUT)
        return Commit(row, tuple(events))

    def note(self, claim: int, text: str) -> "Commit":
        return Commit(self._replace(seq=self.seq + 1), (Event(text, self.state, claim),))


class Commit(NamedTuple):
    """The row as it becomes, the events that come with it, and what is told to whoever asked for it."""

    row: Row
    events: tuple[Event, ...] = ()
    told: Lease | Answer | None = None

    @property
    def numbered_events(self) -> frozenset[tuple[int, Event]]:
        return frozenset(enumerate(self.events, self.row.seq - len(self.events) + 1))


class World(NamedTuple):
    durable: Row = Row()
    # Committed, and not on disk yet.
    pending: tuple[Commit, ...] = ()
    # Those that workers were told of.
    leases: frozenset[Lease] = frozenset()
    # The claim whose lease was acknowledged last, and for how many ticks its worker may still rely on that.
    promise: tuple[int, int] = (0, RUN_OUT)
    # What settlements were told since the last one of another claim counted.
    answers: frozenset[Answer] = frozenset()
    # What observers were told and is not on disk, by seq.
    told: frozenset[tuple[int, Event]] = frozenset()

    @property
    def row(self) -> Row:
        """As the next transaction sees it."""
        return self.pending[-1].row if self.pending else self.durable

    def in_each_row(self, change: Callable[[Row], Row]) -> "World":
        pending = tuple([each._replace(row=change(each.row)) for each in self.pending])
        return self._replace(durable=change(self.durable), pending=pending)


class Step(NamedTuple):
    what: str
    claim: int = 0
    verb: Verb | None = None

    def __str__(self) -> str:
        said = f": {self.verb}" if self.what in {LATE, AGAIN} else ""
        return f"{self.what}{said}" + (f" by worker {self.claim}" if self.claim else "")


# -- what can happen -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    mutant: Mutant | None = None
    max_pending: int = MAX_PENDING

    def steps(self, world: World) -> Iterator[tuple[Step, World]]:
        if len(world.pending) < self.max_pending:
            for step, commit in self._transactions(world):
                yield step, self._commit(world, commit)
        if world.pending:
            yield Step(FLUSH), self._flush(world)
            yield Step(CRASH), world._replace(pending=())
        yield Step(TICK), _tick(world)
        # By its moment, and so of all versions of the row: a crash may bring back an older one.
        yield Step(LOOK), world.in_each_row(_looked_at)

    def _transactions(self, world: World) -> Iterator[tuple[Step, Commit]]:
        row = world.row
        if row.state is State.QUEUED:
            # The number of a claim that a crash took back before anybody was told of it is as good as new.
            number = 1 + max([row.log.holder, *(lease.claim for lease in world.leases)])
            lease = Lease(number, 1 if self.mutant is Mutant.REUSES_TOKENS else number)
            leased = row._replace(attempt=row.attempt + 1, token=lease.token, ticks=LEASE_TICKS)
            yield Step(CLAIM, number), leased.move(number, Verb.CLAIM)._replace(told=lease)
        for lease in world.leases:
            if self.holds(row, lease, but_for=Mutant.RENEWS_BY_ID) and row.ticks < LEASE_TICKS:
                yield Step(HEARTBEAT, lease.claim), Commit(row._replace(ticks=LEASE_TICKS), told=lease)
            for verb in SETTLING:
                yield from self._settle(row, lease, verb)
        if row.state in RUNNING:
            is_passed_over = row.cancelling and self.mutant is Mutant.PASSES_OVER_CANCELS
            if (row.ticks == FOUND and not is_passed_over) or self.mutant is Mutant.RESCUES_EARLY:
                yield Step(RESCUE), row.move(0, self._edge(row, Verb.RESCUE))
            if row.cancelling and not is_passed_over:
                yield Step(END_GRACE), row.move(0, Verb.CANCEL)
            if not row.cancelling:
                yield Step(CANCEL), row._replace(cancelling=True).note(0, "cancel_requested")
        elif row.state is State.QUEUED or self.mutant is Mutant.CANCELS_WHAT_ENDED:
            yield Step(CANCEL), row.move(0, Verb.CANCEL)

    def holds(self, row: Row, lease: Lease, *, but_for: Mutant) -> bool:
        """The fence: whether what comes with this lease counts."""
        return row.state in RUNNING if self.mutant is but_for else row.token == lease.token

    def _settle(self, row: Row, lease: Lease, verb: Verb) -> Iterator[tuple[Step, Commit]]:
        last = None if self.mutant is Mutant.KEEPS_NO_FINGERPRINT else row.settlement
        if self.holds(row, lease, but_for=Mutant.SETTLES_BY_ID):
            # A start has no fingerprint: as long as the lease holds it is welcome twice. And releases have a bound.
            edge = self._edge(row, verb)
            if edge is Verb.START and row.state is State.LOADING:
                yield Step(verb, lease.claim, verb), row.move(lease.claim, edge)
            elif edge is not Verb.START and (edge is not Verb.RELEASE or row.log.releases < MAX_RELEASES):
                yield Step(verb, lease.claim, verb), self._settled(row, lease, verb, edge)
        elif last is not None and (last.lease.token, last.verb) == (lease.token, verb):
            yield Step(AGAIN, lease.claim, verb), Commit(row, told=last._replace(lease=lease))
        elif row.log.late < MAX_LATE:
            told = None if verb is Verb.START else Answer(lease, verb, None)
            noted = row.note(lease.claim, "late_settlement")
            yield Step(LATE, lease.claim, verb), noted._replace(told=told)

    def _settled(self, row: Row, lease: Lease, verb: Verb, edge: Verb) -> Commit:
        through = [Verb.START] if edge is Verb.COMPLETE and row.state is State.LOADING else []
        attempt = row.attempt - (edge is Verb.RELEASE)
        commit = row._replace(attempt=attempt).move(lease.claim, *through, edge)
        answer = Answer(lease, verb, commit.row.state)
        return commit._replace(row=commit.row._replace(settlement=answer), told=answer)

    def _edge(self, row: Row, verb: Verb) -> Verb:
        """What a verb comes to where the job stands."""
        if row.cancelling and verb not in {Verb.START, Verb.COMPLETE}:
            return Verb.CANCEL
        is_last = row.attempt >= MAX_ATTEMPTS and self.mutant is not Mutant.RETRIES_FOR_EVER
        return Verb.FAIL if is_last and verb in {Verb.RETRY, Verb.RESCUE} else verb

    def _commit(self, world: World, commit: Commit) -> World:
        row = commit.row
        for event in commit.events:
            row = row._replace(log=row.log.append(event))
        parts = [Commit(commit.row)] if self.mutant is Mutant.EVENT_FOLLOWS else []
        for part in [*parts, commit._replace(row=row)]:
            world = world._replace(pending=(*world.pending, part))
            if self.mutant is Mutant.TELLS_EARLY:
                world = _tell(world, part)
        return world

    def _flush(self, world: World) -> World:
        flushed, *pending = world.pending
        if self.mutant is not Mutant.TELLS_EARLY:
            world = _tell(world, flushed)
        last = flushed.row.seq

        def renumbered(row: Row) -> Row:
            return row._replace(seq=row.seq - last, log=row.log._replace(length=row.log.length - last))

        told = frozenset((seq - last, event) for seq, event in world.told - flushed.numbered_events)
        world = world._replace(durable=flushed.row, pending=tuple(pending), told=told)
        return world.in_each_row(renumbered)


def _tell(world: World, commit: Commit) -> World:
    """Tell whoever asked for this commit, and all observers."""
    row, events, told = commit
    world = world._replace(told=world.told | commit.numbered_events)
    if isinstance(told, Answer):
        counted = events and told.state is not None
        kept = [each for each in world.answers if each.lease == told.lease or not counted]
        world = world._replace(answers=frozenset({*kept, told}))
    elif isinstance(told, Lease):
        world = world._replace(leases=world.leases | {told}, promise=(told.claim, max(row.ticks, RUN_OUT)))
    return world if row.token else world._replace(promise=(0, RUN_OUT))


def _tick(world: World) -> World:
    claim, ticks = world.promise
    world = world._replace(promise=(claim, max(ticks - 1, RUN_OUT)))
    return world.in_each_row(lambda row: row._replace(ticks=row.ticks - 1) if row.ticks > RUN_OUT else row)


def _looked_at(row: Row) -> Row:
    return row._replace(ticks=FOUND) if row.token and row.ticks == RUN_OUT else row


# -- what must be true -----------------------------------------------------------------------------------------------


class Invariant(StrEnum):
    ONE_HOLDER = "only the latest claim can settle, or renew its lease"
    EDGES = "every transition is an edge of the table"
    TOLD_ONCE = "a seq that was told never means another event"
    GAPLESS = "each seq on disk has its event, and the row is where its events end"
    PROMISE = "no rescue while a worker may rely on its lease"
    ATTEMPTS = "attempts are claims without releases, and not more than the maximum"
    ALIKE = "a settlement that comes again is answered alike, until one of another claim counts"
    NO_DEAD_END = "the job can end, even if no worker is ever heard again"


def broken_by(model: Model, before: World, step: Step, after: World) -> Iterator[Invariant]:
    """All but the last, which is not about a single step."""
    row, disk, holder = after.row, after.durable, before.row.log.holder
    able = [lease for lease in after.leases if model.holds(row, lease, but_for=Mutant.SETTLES_BY_ID)]
    if len(able) > 1 or (step.what in {HEARTBEAT, *SETTLING} and step.claim != holder):
        yield Invariant.ONE_HOLDER
    if not all(allows(verb, source) for source, verb in edges(after)):
        yield Invariant.EDGES
    # What came to be on disk was taken out of it. So whatever is left up to there is told of something else.
    if any(seq <= disk.seq for seq, _ in after.told):
        yield Invariant.TOLD_ONCE
    if disk.seq != disk.log.length or disk.state != disk.log.state:
        yield Invariant.GAPLESS
    claim, ticks = before.promise
    if step.what == RESCUE and claim == holder and ticks > RUN_OUT:
        yield Invariant.PROMISE
    if row.attempt != row.log.claims - row.log.releases or row.attempt > MAX_ATTEMPTS:
        yield Invariant.ATTEMPTS
    if len({(answer.lease, answer.verb) for answer in after.answers}) < len(after.answers):
        yield Invariant.ALIKE


def edges(world: World) -> list[tuple[State, Verb]]:
    """Those of the commits that are not on disk yet."""
    events = [event for commit in world.pending for event in commit.events]
    return [(event.source, event.type) for event in events if isinstance(event.type, Verb)]


# -- the checker -----------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What was found, with a shortest way to what is broken, if anything is."""

    broken: Invariant | None = None
    trace: list[Step] = field(default_factory=list)
    worlds: int = 0
    taken: Counter[str] = field(default_factory=Counter)
    walked: set[tuple[State, Verb]] = field(default_factory=set)

    def __str__(self) -> str:
        steps = [f"{number:4}. {step}" for number, step in enumerate(self.trace, 1)]
        return "\n".join([f"{self.worlds} worlds, broken: {self.broken}", *steps])


def explore(model: Model, invariants: Collection[Invariant] = frozenset(Invariant)) -> Report:
    """Breadth first through all that can happen, until one of these invariants is broken."""
    report = Report()
    origins: dict[World, tuple[World, Step] | None] = {World(): None}
    before: dict[World, list[World]] = {}
    waiting = deque(origins)

    def broken(invariant: Invariant, world: World, *last: Step) -> Report:
        report.broken, report.worlds, trace = invariant, len(origins), deque(last)
        while (origin := origins[world]) is not None:
            world, step = origin
            trace.appendleft(step)
        report.trace = list(trace)
        return report

    while waiting:
        world = waiting.popleft()
        for step, after in model.steps(world):
            report.taken[step.what] += 1
            for invariant in broken_by(model, world, step, after):
                if invariant in invariants:
                    return broken(invariant, world, step)
            if step.what in UNFAILING:
                before.setdefault(after, []).append(world)
            if after not in origins:
                origins[after] = (world, step)
                waiting.append(after)
                report.walked.update(edges(after))

    report.worlds = len(origins)
    can_end = {world for world in origins if world.durable.state in TERMINAL}
    waiting.extend(can_end)
    while waiting:
        earlier = set(before.get(waiting.pop(), ())) - can_end
        can_end |= earlier
        waiting.extend(earlier)
    for world in origins:
        if world not in can_end and Invariant.NO_DEAD_END in invariants:
            return broken(Invariant.NO_DEAD_END, world)
    return report
