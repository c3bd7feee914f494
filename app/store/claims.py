"""claim: queued → loading, and start with it where nothing has to be loaded. Each statement names one queue.

The index is walked lane by lane, and in each by ranges of ranks with the moment at which the scan begins (see
low_water.py), so that a claim costs the same on the first day and the last.
"""

import math
import secrets
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from msgspec import Struct

from app.errors import Unavailable
from app.jobs.lanes import ALL_LANES
from app.jobs.queue_settings import QueueRules
from app.jobs.states import Verb
from app.store import fair, limits
from app.store.changes import Changes
from app.store.database import Database, Runner, in_transaction
from app.store.effects import DELIVERIES, RANK_IS_KEPT, announced, logged
from app.store.heads import Head, heads_of
from app.store.history import line
from app.store.job import BriefJob, ClaimedJob, LeasedJob
from app.store.live import HELD, enter_run
from app.store.low_water import LowWater, trusted_seconds
from app.store.queues import QueueBook
from app.store.remembered import Remembered
from app.store.rows import arrays, as_rows, columns, looked_up
from app.store.tables.live import IN_LANES
from app.telemetry import CLAIM_SECONDS, CLAIMED, JOB_WAIT, SETTLEMENTS

# The order of the ranges is the array's order, and the LIMITs make the walk lazy: rows beyond the limit are
# neither read nor locked. MATERIALIZED is a fence; without it the plan may update more than the limit. What is locked is
# the job's own row, which says whether it is still as it was found: its row in `queued` may be gone, or another, by now.
# The commit waits for the disk, once for the whole batch: a claim has a seq, and a seq that somebody has seen must
# not be given to another event after a crash (docs/decisions/0011).
_DUE = f"""
WITH due AS MATERIALIZED (
    SELECT found.id, found.logs_itself
    FROM unnest($2::text[], $3::smallint[], $4::smallint[], $5::timestamptz[]) AS span (lane, low, high, mark)
    CROSS JOIN LATERAL (
        SELECT q.id, held.logs_itself FROM queued q CROSS JOIN LATERAL ({HELD}
        ) AS held
        WHERE q.queue = $1 AND q.lane = span.lane AND {IN_LANES}
          AND q.rank BETWEEN span.low AND span.high AND q.ready_at >= span.mark
          AND (q.deadline IS NULL OR q.deadline > statement_timestamp())
        ORDER BY q.rank DESC, q.ready_at, q.id
        LIMIT $6
    ) AS found
    WHERE NOT EXISTS (SELECT 1 FROM queues WHERE name = $1 AND paused_at IS NOT NULL)
    LIMIT $6
)
"""
# The lease never outlasts the attempt: see HEARTBEAT. It counts from
# this statement, not from the transaction, which may have waited for a queue's lock for longer than a lease lasts.
# Each lease has a secret of its own: hashes of one secret with each job's id, so that no claimer can make another's
# token out of its own. (The server's own random numbers cost eight times as much where it reads them from a device.)
_ASSIGNED = """
, assigned AS (
    SELECT due.id, due.logs_itself, ($7::text[])[least(claimant, cardinality($7::text[]))] AS worker,
           ($8::float8[])[least(claimant, cardinality($8::float8[]))] AS lease_seconds
    FROM (SELECT id, logs_itself, row_number() OVER () AS claimant FROM due) AS due
)
"""


# What a claimed job's rows elsewhere are made of, beside all that its claimer is told.
_BESIDE = (
    "seq",
    "attempt",
    "worker",
    "runs_on",
    "concurrency_key",
    "deadline",
    "key_number",
    "webhook_events",
)

# Whose events are rows, in the log or in the outbox; of most jobs they are lines of their history, and nothing else.
_TELLS = "(NOT logs_itself OR webhook_url IS NOT NULL)"


def _claiming(row: type[Struct], *, starts: bool = False) -> str:
    """What is done with the jobs that are due, and told of them. `starts`: → working in the same commit, each edge with
    its event."""
    made = {
        "started": str(starts).lower(),
        "stored_artifacts": "NULL::text",
        "waited_seconds": "greatest(0, date_part('epoch', statement_timestamp() - ready_at))",
    }
    # No more than is needed of a wide row: what is returned is copied.
    needed = dict.fromkeys((*row.__struct_fields__, *_BESIDE)).keys() - made
    data = """'{"attempt":' || (j.attempt + 1) || ',"worker":' || to_json(assigned.worker) || '}'"""
    lines = line("(j.seq + 1)", "claim", data) + (" || " + line("(j.seq + 2)", "start") if starts else "")
    told = "id, {seq} AS seq, '{state}' AS type, '{state}' AS state, webhook_url, webhook_events, logs_itself"
    loading = told.format(seq="seq - 1" if starts else "seq", state="loading")
    working = f" UNION ALL SELECT {told.format(seq='seq', state='working')}, 'start', NULL FROM claimed WHERE {_TELLS}"
    return (
        _ASSIGNED
        + f"""
, claimed AS (
    UPDATE jobs AS j SET
        state = '{"working" if starts else "loading"}', reason = NULL, worker = assigned.worker, runs_on = $9,
        lease_token = encode(substring(sha256($10::bytea || convert_to(j.id, 'UTF8')) FROM 1 FOR 18), 'hex'),
        lease_seconds = assigned.lease_seconds,
        lease_expires_at = statement_timestamp()
            + least(assigned.lease_seconds, j.max_duration_seconds) * interval '1 second',
        attempt_expires_at = statement_timestamp() + j.max_duration_seconds * interval '1 second',
        attempt = j.attempt + 1, seq = j.seq + {2 if starts else 1}, progress = NULL,
        started_at = coalesce(j.started_at, statement_timestamp()),
        queued_seconds = j.queued_seconds + greatest(0, date_part('epoch', statement_timestamp() - j.entered_at)),
        entered_at = statement_timestamp(), updated_at = statement_timestamp(),
        history = CASE WHEN assigned.logs_itself THEN j.history || {lines} ELSE j.history END, {RANK_IS_KEPT}
    FROM assigned WHERE {looked_up("j.id", "assigned.id")}
    RETURNING {", ".join(f"j.{each}" for each in sorted(needed))}, assigned.logs_itself
)
, moved AS (
    SELECT {loading}, 'claim' AS verb, CASE WHEN NOT logs_itself
        THEN '{{"attempt":' || attempt || ',"worker":' || to_json(worker) || '}}' END AS data
    FROM claimed WHERE {_TELLS}{working if starts else ""}
)
, left_queue AS (DELETE FROM queued WHERE id = ANY (ARRAY(SELECT id FROM claimed)))
"""
        + enter_run("claimed")
        + logged("moved WHERE NOT logs_itself")
        + DELIVERIES
        + announced("claimed", "2" if starts else "1")
        + f"SELECT {columns(row, **made, seq='seq - 1' if starts else 'seq')} FROM claimed ORDER BY rank DESC, ready_at, id"
    )


_TO_RUN = _claiming(ClaimedJob)
_STARTED = _claiming(ClaimedJob, starts=True)
_WHOLE = _claiming(LeasedJob)
_BRIEF = _claiming(BriefJob)
CLAIM_TO_RUN = _DUE + _TO_RUN
CLAIM_AND_START = _DUE + _STARTED
CLAIM_WHOLE = _DUE + _WHOLE
CLAIM_BRIEF = _DUE + _BRIEF
CLAIM_FAIRLY_TO_RUN = fair.DUE + _TO_RUN
CLAIM_FAIRLY_AND_START = fair.DUE + _STARTED
CLAIM_FAIRLY = fair.DUE + _WHOLE
CLAIM_FAIRLY_BRIEF = fair.DUE + _BRIEF
# By how much of the jobs is wanted, and whether they start.
_PLAIN: dict[tuple[type[Any], bool], str] = {
    (ClaimedJob, False): CLAIM_TO_RUN,
    (ClaimedJob, True): CLAIM_AND_START,
    (LeasedJob, False): CLAIM_WHOLE,
    (BriefJob, False): CLAIM_BRIEF,
}
_FAIR: dict[tuple[type[Any], bool], str] = {
    (ClaimedJob, False): CLAIM_FAIRLY_TO_RUN,
    (ClaimedJob, True): CLAIM_FAIRLY_AND_START,
    (LeasedJob, False): CLAIM_FAIRLY,
    (BriefJob, False): CLAIM_FAIRLY_BRIEF,
}
# How much of the jobs a claimer gets.
Claimed = TypeVar("Claimed", ClaimedJob, LeasedJob, BriefJob)

# How long a queue that runs all it may is left alone when nobody says that a place was freed.
FULL_SECONDS = 1.0
# How long it is believed at least that all jobs of a fair queue have a value.
VALUED_SECONDS = 1.0
# A queue whose claim failed, other than by the database being away, is left alone for growing times.
FAILURE = "failure"
FAILURE_SECONDS = 0.25
LONGEST_FAILURE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims, how many, and for how long each lease holds (0: as the queue has it)."""

    worker: str
    limit: int
    lease_seconds: float


@dataclass(slots=True)
class _Request(Generic[Claimed]):
    """A claim: how much of the jobs, where, for whom; and the target they will run on, where that is known."""

    row: type[Claimed]
    queue: str
    lanes: Sequence[str]
    claimants: Sequence[Claimant]
    runs_on: str | None = None
    # Nothing has to be made ready: they start at once.
    starts: bool = False

    @property
    def limit(self) -> int:
        return sum(claimant.limit for claimant in self.claimants)

    def for_claimants(self) -> list[object]:
        """How many, the names and leases by number, the target, and the secret that the tokens are made of."""
        # The last claimant takes all that is left, so that a single claimer sends one name and not a thousand.
        *others, last = self.claimants
        numbered = [claimant for claimant in others for _ in range(claimant.limit)] + [last]
        workers = [each.worker for each in numbered]
        leases = [each.lease_seconds for each in numbered]
        return [self.limit, workers, leases, self.runs_on, secrets.token_bytes(24)]


class Claims:
    """Claims of one process; holds nothing but hints: the marks, whose turn it is, which queues are held back."""

    def __init__(self, database: Database, book: QueueBook | None = None) -> None:
        self._database = database
        # Without a book no queue has rules of its own.
        self._book = QueueBook(database) if book is None else book
        self.low_water = LowWater()
        self._turns = fair.Turns()
        self._oldest_runs = limits.OldestRuns()
        self._closed: Remembered[str, tuple[str, float]] = Remembered()
        self._failures: Remembered[str, int] = Remembered()
        # Fair queues, and until when it is believed that all their jobs have a value.
        self._valued_until: Remembered[str, float] = Remembered()
        self._book.on_change(self.open)

    async def claim(
        self,
        queue: str,
        lanes: Sequence[str],
        claimants: Sequence[Claimant],
        *,
        runs_on: str | None = None,
        starts: bool = False,
    ) -> Changes[ClaimedJob]:
        """queued → loading, best priority first, then oldest; the n-th job goes to the n-th claimant.

        `starts`: and → working in the same commit, because nothing has to be made ready for them.
        """
        request = _Request(ClaimedJob, queue, lanes, claimants, runs_on, starts)
        changes = await self._claim_if_open(request)
        if starts:
            changes.count(SETTLEMENTS, Verb.START.value, "true", by=len(changes.answers))
        return changes

    async def claim_whole(
        self, queue: str, lanes: Sequence[str], claimants: Sequence[Claimant]
    ) -> Changes[LeasedJob]:
        """The same with all that a worker over HTTP is told."""
        return await self._claim_if_open(_Request(LeasedJob, queue, lanes, claimants))

    async def claim_brief(
        self, queue: str, lanes: Sequence[str], claimants: Sequence[Claimant]
    ) -> Changes[BriefJob]:
        """The same with what it takes to run them."""
        return await self._claim_if_open(_Request(BriefJob, queue, lanes, claimants))

    async def _claim_if_open(self, asked: _Request[Claimed]) -> Changes[Claimed]:
        queue = asked.queue
        if self.closed_seconds(queue) is not None:
            return Changes()
        began = time.monotonic()
        try:
            claimed = await self._claim_by_rules(asked)
        except Unavailable:
            raise
        except Exception:
            # Whatever is wrong with this queue, the others are asked as before, and it itself not at full speed.
            failures = self._failures.get(queue) or 0
            self._failures.put(queue, failures + 1)
            pause = min(LONGEST_FAILURE_SECONDS, FAILURE_SECONDS * 2 ** min(failures, 10))
            self._closed.put(queue, (FAILURE, time.monotonic() + pause))
            raise
        if len(self._failures):
            self._failures.forget(queue)
        return claim_changes(queue, claimed, time.monotonic() - began)

    async def _claim_by_rules(self, asked: _Request[Claimed]) -> list[Claimed]:
        rules = self._book.rules(asked.queue)
        if rules is None or not rules.shapes_claims:
            return await self._claim(self._database, asked)
        if not rules.limits_claims:
            return await self._claim_fairly(self._database, asked)
        return await self._claim_within_limits(rules, asked)

    async def _claim(self, runner: Runner, asked: _Request[Claimed]) -> list[Claimed]:
        ranges, began = self.low_water.ranges(asked.queue, asked.lanes), time.monotonic()
        found = await runner.fetch(
            _PLAIN[asked.row, asked.starts],
            asked.queue,
            *arrays(ranges, "lane", "low", "high", "mark"),
            *asked.for_claimants(),
        )
        claimed = as_rows(asked.row, found)
        full, seconds = len(claimed) == asked.limit, time.monotonic() - began
        self.low_water.learn(asked.queue, claimed, asked.lanes, full=full, seconds=seconds)
        return claimed

    async def _claim_fairly(self, runner: Runner, asked: _Request[Claimed]) -> list[Claimed]:
        """The same in a queue with fair_by: best priority first, then each value in turn."""
        queue, lanes, beyond, began = asked.queue, asked.lanes, fair.FIRST, time.monotonic()
        gaps = arrays(self._turns.gaps(queue, lanes), *fair.Gap.__slots__)
        new = await runner.fetch(fair.NEW_SPOTS, queue, *gaps, fair.MAX_VALUES)
        self._turns.found(queue, [(spot["lane"], (spot["turned"], spot["fair_value"])) for spot in new])
        claimed: list[Claimed] = []
        for _ in range(fair.MAX_ROUNDS):
            places = self._turns.places(queue, lanes, beyond)
            if not places or not asked.claimants:
                break
            of_places = arrays(places, *fair.Place.__slots__)
            statement = _FAIR[asked.row, asked.starts]
            found = await runner.fetch(statement, queue, *of_places, *asked.for_claimants())
            taken = as_rows(asked.row, found)
            self._turns.learn(queue, places, taken)
            claimed += taken
            asked = replace(asked, claimants=_left_over(asked.claimants, len(taken)))
            if not taken:
                # All that is left of the best rank is being claimed by others in this moment, or there is nothing.
                [best] = await runner.fetch(fair.BEST_RANK, queue, *of_places)
                if best["turned"] is None:
                    break
                beyond = best["turned"]
        self._turns.took(queue, lanes, time.monotonic() - began, full=not asked.claimants)
        if asked.claimants and time.monotonic() >= (self._valued_until.get(queue) or 0.0):
            claimed += await self._claim_without_value(runner, asked)
        return claimed

    async def _claim_without_value(self, runner: Runner, asked: _Request[Claimed]) -> list[Claimed]:
        """Jobs from before the queue was fair, which have no value yet. Where there are none, as a rule, they are looked
        for only now and then: all that was ever claimed in these lanes may lie in the way."""
        began = time.monotonic()
        claimed = await self._claim(runner, asked)
        if not claimed:
            now = time.monotonic()
            self._valued_until.put(asked.queue, now + trusted_seconds(now - began, VALUED_SECONDS))
        return claimed

    async def _claim_within_limits(self, rules: QueueRules, asked: _Request[Claimed]) -> list[Claimed]:
        async def steps(runner: Runner) -> tuple[limits.Allowance, list[Claimed]]:
            allowed = await limits.allowance(runner, rules, self._oldest_runs)
            within = replace(asked, claimants=_at_most(asked.claimants, allowed.jobs))
            claimed: list[Claimed] = []
            if within.claimants:
                claim = self._claim_fairly if rules.settings.fair_by is not None else self._claim
                claimed = await claim(runner, within)
                await limits.spend(runner, rules, len(claimed))
            return allowed, claimed

        allowed, claimed = await in_transaction(self._database, steps)
        allowed.spend(len(claimed))
        gate = allowed.gate
        if gate is not None:
            reason, seconds = gate
            ends = time.monotonic() + (FULL_SECONDS if seconds is None else seconds)
            self._closed.put(rules.name, (reason, ends))
        return claimed

    async def heads(self, queues: Collection[str], within: tuple[str, str] = ALL_LANES) -> list[Head]:
        """The head of every lane that has claimable work in these queues, of those between two; from where claims would
        begin."""
        return await heads_of(self._database, queues, self.low_water, within)

    def lease_seconds(self, queue: str, default: float) -> float:
        """The queue's own lease, for claimers that name none."""
        rules = self._book.rules(queue)
        return default if rules is None or rules.lease_seconds is None else rules.lease_seconds

    # -- queues that are held back -------------------------------------------------------------------

    def closed_seconds(self, queue: str) -> float | None:
        """For how long there is no use in asking this queue; None when there is."""
        closed = self._closed.get(queue)
        if closed is None:
            return None
        seconds = closed[1] - time.monotonic()
        if seconds <= 0:
            self._closed.forget(queue)
            return None
        return seconds

    def seconds_until_open(self) -> float:
        """Until the first of all that are held back may be asked again."""
        left = [
            seconds for queue in list(self._closed) if (seconds := self.closed_seconds(queue)) is not None
        ]
        return min(left, default=math.inf)

    def open(self, queue: str) -> None:
        """Something changed: ask again."""
        self._closed.forget(queue)
        self._valued_until.forget(queue)
        # It may have had no limit before, and have been claimed by many at a time.
        self._oldest_runs.forget(queue)

    def place_freed(self, queue: str) -> None:
        """A job of this queue stopped running somewhere."""
        closed = self._closed.get(queue)
        if closed is not None and closed[0] == limits.MAX_RUNNING:
            self._closed.forget(queue)


def claim_changes(queue: str, claimed: list[Claimed], seconds: float) -> Changes[Claimed]:
    """These were claimed in one queue, by a statement that took so long."""
    changes = Changes(
        claimed,
        jobs={job.id for job in claimed},
        webhooks=[(job.id, job.webhook_url) for job in claimed if job.webhook_url],
        counts=Counter({(CLAIMED, ()): len(claimed)}),
        claimed=tuple(claimed),
    )
    changes.durations[CLAIM_SECONDS, (queue,)].append(seconds)
    # Mostly of one kind.
    for kind in {job.kind for job in claimed}:
        waited = [job.waited_seconds for job in claimed if job.kind == kind]
        changes.durations[JOB_WAIT, (queue, kind)] += waited
    return changes


def _at_most(claimants: Sequence[Claimant], jobs: int) -> list[Claimant]:
    """The first claimants, for no more than so many jobs."""
    kept: list[Claimant] = []
    for claimant in claimants:
        if jobs > 0:
            kept.append(replace(claimant, limit=min(claimant.limit, jobs)))
            jobs -= claimant.limit
    return kept


def _left_over(claimants: Sequence[Claimant], taken: int) -> list[Claimant]:
    """The claimants without the first so many."""
    kept: list[Claimant] = []
    for claimant in claimants:
        if taken < claimant.limit:
            kept.append(replace(claimant, limit=claimant.limit - max(0, taken)))
        taken -= claimant.limit
    return kept
