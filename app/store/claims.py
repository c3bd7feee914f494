"""claim: queued → loading. Each statement names one queue.

The index is walked lane by lane and band by band: a band is a range of ranks with the moment at which
its scan begins (the low-water mark). Where a transaction held open elsewhere keeps dead index entries
from being removed, the mark steps over them, so a claim costs the same on the first day and the last.
"""

import math
import secrets
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from app.errors import Unavailable
from app.jobs.queue_settings import QueueRules
from app.store import fair, limits
from app.store.database import Database, Runner
from app.store.job import ClaimedJob, LeasedJob
from app.store.queues import QueueBook
from app.store.remembered import Remembered
from app.store.rows import as_rows, columns
from app.store.tail import EVENT_AND_OUTBOX

LOWEST, HIGHEST = -32768, 32767
# Postgres takes it for the beginning of time; asyncpg encodes datetime.min as -infinity.
THE_BEGINNING = datetime.min  # noqa: DTZ901 - stands for -infinity, which has no time zone
# Commits do not come in the order of their now(): a job may appear a little behind the mark. While claims
# come back full there is a backlog, and what appeared behind the mark may wait for its end; stepping back
# over what was claimed seconds ago would then cost more than the claim.
SLACK = timedelta(seconds=2)
# How long a mark is trusted before the scan starts from the beginning again.
MARK_SECONDS = 5.0


@dataclass(slots=True)
class _Marks:
    """What one process remembers of one lane: the ranks it has seen and where each one's work begins."""

    by_rank: dict[int, datetime] = field(default_factory=dict)
    renewed: float = 0.0
    backlog: bool = False

    def mark(self, rank: int) -> datetime:
        at = self.by_rank.get(rank, THE_BEGINNING)
        return at if self.backlog or at is THE_BEGINNING else at - SLACK


@dataclass(frozen=True, slots=True)
class Band:
    lane: str
    low: int
    high: int
    mark: datetime


class LowWater:
    """Low-water marks per (queue, lane, rank), in memory: a hint that costs nothing when it is wrong."""

    def __init__(self) -> None:
        self._marks: Remembered[tuple[str, str], _Marks] = Remembered()

    def bands(self, queue: str, lanes: Sequence[str]) -> list[Band]:
        """Every rank is in exactly one band, best first, so priority holds across the lanes."""
        marks = {lane: self._current(queue, lane) for lane in lanes}
        ranks = sorted({rank for each in marks.values() for rank in each.by_rank}, reverse=True)
        bands: list[Band] = []
        above = HIGHEST
        for rank in ranks:
            if rank < above:
                bands += [Band(lane, rank + 1, above, THE_BEGINNING) for lane in lanes]
            bands += [Band(lane, rank, rank, marks[lane].mark(rank)) for lane in lanes]
            above = rank - 1
        return [*bands, *(Band(lane, LOWEST, above, THE_BEGINNING) for lane in lanes)]

    def learn(
        self,
        queue: str,
        claimed: Iterable[ClaimedJob | LeasedJob],
        lanes: Sequence[str] = (),
        *,
        full: bool = False,
    ) -> None:
        """From what was claimed of these lanes, and whether there may be more."""
        for lane in lanes:
            self._of(queue, lane).backlog = full
        lowest: dict[tuple[str, int], datetime] = {}
        for job in claimed:
            at = lowest.get((job.lane, job.rank))
            if at is None or job.ready_at < at:
                lowest[job.lane, job.rank] = job.ready_at
        for (lane, rank), at in lowest.items():
            self._of(queue, lane).by_rank[rank] = at

    def _current(self, queue: str, lane: str) -> _Marks:
        marks = self._of(queue, lane)
        now = time.monotonic()
        if now - marks.renewed > MARK_SECONDS:
            marks.renewed = now
            marks.by_rank = dict.fromkeys(marks.by_rank, THE_BEGINNING)
        return marks

    def _of(self, queue: str, lane: str) -> _Marks:
        marks = self._marks.get((queue, lane))
        if marks is None:
            marks = _Marks()
            self._marks.put((queue, lane), marks)
        return marks


# The band order is the array's order, and the LIMITs make the walk lazy: rows beyond the limit are
# neither read nor locked. MATERIALIZED is a fence; without it the plan may update more than the limit.
# The commit waits for the disk, once for the whole batch: a claim has a seq, and a seq that somebody has seen must
# not be given to another event after a crash (docs/decisions/0011).
_DUE = """
WITH due AS MATERIALIZED (
    SELECT found.id
    FROM unnest($2::text[], $3::smallint[], $4::smallint[], $5::timestamptz[]) AS band (lane, low, high, mark)
    CROSS JOIN LATERAL (
        SELECT id FROM jobs
        WHERE queue = $1 AND lane = band.lane AND state = 'queued' AND ready_at IS NOT NULL
          AND rank BETWEEN band.low AND band.high AND ready_at >= band.mark
          AND (deadline IS NULL OR deadline > statement_timestamp())
        ORDER BY rank DESC, ready_at, id
        LIMIT $6
        FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE NOT EXISTS (SELECT 1 FROM queues WHERE name = $1 AND paused_at IS NOT NULL)
    LIMIT $6
)
"""
# What is done with the jobs that are due. The lease never outlasts the attempt: see HEARTBEAT. It counts from
# this statement, not from the transaction, which may have waited for a queue's lock for longer than a lease lasts.
# Each lease has a secret of its own: hashes of one secret with each job's id, so that no claimer can make another's
# token out of its own. (The server's own random numbers cost eight times as much where it reads them from a device.)
_CLAIM_DUE = (
    """
, seated AS (
    SELECT due.id, ($7::text[])[least(seat, cardinality($7::text[]))] AS worker,
           ($8::float8[])[least(seat, cardinality($8::float8[]))] AS lease_seconds
    FROM (SELECT id, row_number() OVER () AS seat FROM due) AS due
)
, claimed AS (
    UPDATE jobs AS j SET
        state = 'loading', reason = NULL, worker = seated.worker, runs_on = $9,
        lease_token = encode(substring(sha256($10::bytea || convert_to(j.id, 'UTF8')) FROM 1 FOR 18), 'hex'),
        lease_seconds = seated.lease_seconds,
        lease_expires_at = statement_timestamp()
            + least(seated.lease_seconds, j.max_duration_seconds) * interval '1 second',
        attempt_expires_at = statement_timestamp() + j.max_duration_seconds * interval '1 second',
        attempt = j.attempt + 1, seq = j.seq + 1, progress = NULL,
        started_at = coalesce(j.started_at, statement_timestamp()),
        queued_seconds = j.queued_seconds + greatest(0, date_part('epoch', statement_timestamp() - j.entered_at)),
        entered_at = statement_timestamp(), updated_at = statement_timestamp()
    FROM seated WHERE j.id = seated.id
    RETURNING j.*
)
, moved AS (
    SELECT id, seq, state AS type, state, 'claim' AS verb, '{"attempt":' || attempt || ',"worker":' || to_json(worker) || '}' AS data,
           webhook_url, webhook_events
    FROM claimed
)
"""
    + EVENT_AND_OUTBOX
)
_IN_ORDER = "FROM claimed ORDER BY rank DESC, ready_at, id"
_TO_RUN = f"SELECT {columns(ClaimedJob)} {_IN_ORDER}"
_WHOLE = f"SELECT {columns(LeasedJob, stored_artifacts='NULL::text')} {_IN_ORDER}"
CLAIM_TO_RUN = _DUE + _CLAIM_DUE + _TO_RUN
CLAIM_WHOLE = _DUE + _CLAIM_DUE + _WHOLE
CLAIM_FAIRLY_TO_RUN = fair.DUE + _CLAIM_DUE + _TO_RUN
CLAIM_FAIRLY = fair.DUE + _CLAIM_DUE + _WHOLE
_PLAIN: dict[type[Any], str] = {ClaimedJob: CLAIM_TO_RUN, LeasedJob: CLAIM_WHOLE}
_FAIR: dict[type[Any], str] = {ClaimedJob: CLAIM_FAIRLY_TO_RUN, LeasedJob: CLAIM_FAIRLY}
# How much of the jobs a claimer gets.
Claimed = TypeVar("Claimed", ClaimedJob, LeasedJob)

# In the place of a lane in a hint: not new work, but room for it in a queue that ran all it may; or new settings.
ROOM, SETTINGS = "", "*"
# How long a queue that runs all it may is left alone when nobody says that a place was freed.
FULL_SECONDS = 1.0
# A queue whose claim failed, other than by the database being away, is left alone for growing times.
FAILURE = "failure"
FAILURE_SECONDS = 0.25
LONGEST_FAILURE_SECONDS = 30.0


class Claims:
    """Claims of one process; holds nothing but hints: the marks, whose turn it is, which queues are held back."""

    def __init__(self, database: Database, book: QueueBook | None = None) -> None:
        self._database = database
        # Without a book no queue has rules of its own.
        self._book = QueueBook(database) if book is None else book
        self._low_water = LowWater()
        self._turns = fair.Turns()
        self._closed: Remembered[str, tuple[str, float]] = Remembered()
        self._failures: Remembered[str, int] = Remembered()
        self._book.on_change(self.open)

    async def claim(
        self,
        queue: str,
        lanes: Sequence[str],
        seats: "Sequence[Seat]",
        *,
        runs_on: str | None = None,
    ) -> list[ClaimedJob]:
        """queued → loading, best priority first, then oldest; the n-th job goes to the n-th seat."""
        return await self._claim_if_open(ClaimedJob, queue, lanes, seats, runs_on)

    async def claim_whole(self, queue: str, lanes: Sequence[str], seats: "Sequence[Seat]") -> list[LeasedJob]:
        """The same with all that a worker over HTTP is told."""
        return await self._claim_if_open(LeasedJob, queue, lanes, seats, None)

    async def _claim_if_open(
        self,
        row: type[Claimed],
        queue: str,
        lanes: Sequence[str],
        seats: "Sequence[Seat]",
        runs_on: str | None,
    ) -> list[Claimed]:
        if self.closed_seconds(queue) is not None:
            return []
        try:
            claimed = await self._claim_by_rules(row, queue, lanes, seats, runs_on)
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
        return claimed

    async def _claim_by_rules(
        self,
        row: type[Claimed],
        queue: str,
        lanes: Sequence[str],
        seats: "Sequence[Seat]",
        runs_on: str | None,
    ) -> list[Claimed]:
        rules = self._book.rules(queue)
        if rules is None or not rules.shapes_claims:
            return await self._claim(row, self._database, queue, lanes, seats, runs_on)
        if not rules.limits_claims:
            return await self._claim_fairly(row, self._database, queue, lanes, seats, runs_on)
        return await self._claim_within_limits(row, rules, lanes, seats, runs_on)

    async def _claim(
        self,
        row: type[Claimed],
        runner: Runner,
        queue: str,
        lanes: Sequence[str],
        seats: "Sequence[Seat]",
        runs_on: str | None,
    ) -> list[Claimed]:
        bands = self._low_water.bands(queue, lanes)
        limit = sum(seat.limit for seat in seats)
        found = await runner.fetch(
            _PLAIN[row],
            queue,
            [band.lane for band in bands],
            [band.low for band in bands],
            [band.high for band in bands],
            [band.mark for band in bands],
            *_seating(seats),
            runs_on,
            secrets.token_bytes(24),
        )
        claimed = as_rows(row, found)
        self._low_water.learn(queue, claimed, lanes, full=len(claimed) == limit)
        return claimed

    async def _claim_fairly(
        self,
        row: type[Claimed],
        runner: Runner,
        queue: str,
        lanes: Sequence[str],
        seats: "Sequence[Seat]",
        runs_on: str | None,
    ) -> list[Claimed]:
        """The same in a queue with fair_by: best priority first, then each value in turn."""
        claimed: list[Claimed] = []
        below = fair.TOP
        for _ in range(fair.MAX_ROUNDS):
            heads = await runner.fetch(fair.BEST_RANK, queue, list(lanes), below)
            if not heads or not seats:
                break
            rank = max(head["rank"] for head in heads)
            here = [head["lane"] for head in heads if head["rank"] == rank]
            limit = sum(seat.limit for seat in seats)
            served = self._turns.served(queue, here)
            found = await runner.fetch(
                _FAIR[row],
                queue,
                here,
                served,
                rank,
                min(limit, fair.MAX_VALUES),
                *_seating(seats),
                runs_on,
                secrets.token_bytes(24),
            )
            taken = as_rows(row, found)
            self._turns.learn(queue, taken)
            claimed += taken
            seats = _left_over(seats, len(found))
            if not found:
                # All that is left of this rank is being claimed by others in this moment.
                below = rank
        else:
            return claimed
        if seats:
            # Jobs from before the queue was fair, which have no value yet.
            claimed += await self._claim(row, runner, queue, lanes, seats, runs_on)
        return claimed

    async def _claim_within_limits(
        self,
        row: type[Claimed],
        rules: QueueRules,
        lanes: Sequence[str],
        seats: "Sequence[Seat]",
        runs_on: str | None,
    ) -> list[Claimed]:
        async with self._database.transaction() as connection:
            allowed = await limits.allowance(connection, rules)
            seats = _at_most(seats, allowed.jobs)
            claimed: list[Claimed] = []
            if seats:
                claim = self._claim_fairly if rules.settings.fair_by is not None else self._claim
                claimed = await claim(row, connection, rules.name, lanes, seats, runs_on)
                await limits.spend(connection, rules, len(claimed))
        allowed.spend(len(claimed))
        gate = allowed.gate
        if gate is not None:
            reason, seconds = gate
            self._closed.put(
                rules.name, (reason, time.monotonic() + (FULL_SECONDS if seconds is None else seconds))
            )
        return claimed

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

    def place_freed(self, queue: str) -> None:
        """A job of this queue stopped running somewhere."""
        closed = self._closed.get(queue)
        if closed is not None and closed[0] == limits.MAX_RUNNING:
            self._closed.forget(queue)


@dataclass(frozen=True, slots=True)
class Seat:
    """Who claims, how many, and for how long each lease holds (0: as the queue has it)."""

    worker: str
    limit: int
    lease_seconds: float


def _seating(seats: Sequence[Seat]) -> tuple[int, list[str], list[float]]:
    """How many, and the names and leases by number."""
    # The last seat takes all that is left, so that a single claimer sends one name and not a thousand.
    chairs = [seat for seat in seats[:-1] for _ in range(seat.limit)] + [seats[-1]]
    return (
        sum(seat.limit for seat in seats),
        [seat.worker for seat in chairs],
        [seat.lease_seconds for seat in chairs],
    )


def _at_most(seats: Sequence[Seat], jobs: int) -> list[Seat]:
    """The first seats, for no more than so many jobs."""
    kept: list[Seat] = []
    for seat in seats:
        if jobs > 0:
            kept.append(replace(seat, limit=min(seat.limit, jobs)))
            jobs -= seat.limit
    return kept


def _left_over(seats: Sequence[Seat], taken: int) -> list[Seat]:
    """The seats without the first so many."""
    kept: list[Seat] = []
    for seat in seats:
        if taken < seat.limit:
            kept.append(replace(seat, limit=seat.limit - max(0, taken)))
        taken -= seat.limit
    return kept


@dataclass(frozen=True, slots=True)
class Head:
    """The next job of one lane: what a scheduler needs to choose between lanes."""

    queue: str
    lane: str
    rank: int
    ready_at: datetime
    waited_seconds: float
    # Tells first from second where both became ready in one commit.
    id: str = ""


# A loose index scan: one probe per (queue, lane) that has work, however much work that is. With a page at a time
# it costs the same however many there are.
HEADS = """
WITH RECURSIVE heads AS (
    (SELECT queue, lane, rank, ready_at, id FROM jobs
     WHERE state = 'queued' AND ready_at IS NOT NULL AND (queue, lane) > ($1::text, $2::text)
     ORDER BY queue, lane, rank DESC, ready_at, id LIMIT 1)
    UNION ALL
    SELECT following.* FROM heads CROSS JOIN LATERAL (
        SELECT queue, lane, rank, ready_at, id FROM jobs
        WHERE state = 'queued' AND ready_at IS NOT NULL AND (queue, lane) > (heads.queue, heads.lane)
        ORDER BY queue, lane, rank DESC, ready_at, id LIMIT 1
    ) AS following
)
SELECT page.*, date_part('epoch', now() - page.ready_at) AS waited_seconds, queues.paused_at IS NOT NULL AS paused
FROM (SELECT * FROM heads LIMIT $3) AS page LEFT JOIN queues ON queues.name = page.queue
ORDER BY page.queue, page.lane
"""
PAGE = 5000


class HeadsWalk:
    """Goes over the heads of all lanes that have claimable work, a page at each call, round and round."""

    def __init__(self, database: Database, page: int = PAGE) -> None:
        self._database = database
        self._page = page
        self._after = ("", "")

    async def next_page(self) -> list[Head]:
        """The next so many; those of paused queues are left out."""
        rows = await self._database.fetch(HEADS, *self._after, self._page)
        self._after = (rows[-1]["queue"], rows[-1]["lane"]) if len(rows) == self._page else ("", "")
        return [_head(row) for row in rows if not row["paused"]]


# The same within these queues only.
HEADS_OF = """
SELECT asked.queue, head.lane, head.rank, head.ready_at, head.id,
       date_part('epoch', now() - head.ready_at) AS waited_seconds
FROM unnest($1::text[]) AS asked (queue) CROSS JOIN LATERAL (
    WITH RECURSIVE heads AS (
        (SELECT lane, rank, ready_at, id FROM jobs
         WHERE queue = asked.queue AND state = 'queued' AND ready_at IS NOT NULL AND lane > ''
         ORDER BY queue, lane, rank DESC, ready_at, id LIMIT 1)
        UNION ALL
        SELECT following.* FROM heads CROSS JOIN LATERAL (
            SELECT lane, rank, ready_at, id FROM jobs
            WHERE queue = asked.queue AND state = 'queued' AND ready_at IS NOT NULL AND lane > heads.lane
            ORDER BY queue, lane, rank DESC, ready_at, id LIMIT 1
        ) AS following
    )
    SELECT * FROM heads
) AS head
WHERE NOT EXISTS (SELECT 1 FROM queues WHERE name = asked.queue AND paused_at IS NOT NULL)
"""


async def heads_of(database: Database, queues: Collection[str]) -> list[Head]:
    """The head of every lane that has claimable work in these queues, unless they are paused."""
    return [_head(row) for row in await database.fetch(HEADS_OF, list(queues))]


def _head(row: Any) -> Head:
    return Head(row["queue"], row["lane"], row["rank"], row["ready_at"], row["waited_seconds"], row["id"])


# A loose index scan: one probe per queue that has waiting jobs, which finds the first of them to come due.
_WAITING = """
WITH RECURSIVE waiting AS (
    (SELECT queue, run_at FROM jobs
     WHERE state = 'queued' AND ready_at IS NULL AND gate IS NULL ORDER BY queue, run_at LIMIT 1)
    UNION ALL
    SELECT following.queue, following.run_at FROM waiting CROSS JOIN LATERAL (
        SELECT queue, run_at FROM jobs
        WHERE state = 'queued' AND ready_at IS NULL AND gate IS NULL AND queue > waiting.queue
        ORDER BY queue, run_at LIMIT 1
    ) AS following
)
"""

# Ready what has come due: scheduled jobs and those that backed off. No state changes, so no event. With a key
# they have yet to stand in line for it. Each queue with something due has an equal share of the round, so that a
# crowd in one holds up none of the others; if there are more queues than a round has room for, chance decides
# whose turn it is, so that none is passed over twice in a row for its name.
PROMOTE = (
    _WAITING
    + """
, crowds AS MATERIALIZED (SELECT queue FROM waiting WHERE run_at <= now() ORDER BY random() LIMIT $1)
, due AS MATERIALIZED (
    SELECT found.id FROM crowds CROSS JOIN LATERAL (
        SELECT id FROM jobs
        WHERE queue = crowds.queue AND state = 'queued' AND ready_at IS NULL AND gate IS NULL AND run_at <= now()
        ORDER BY run_at LIMIT greatest($1 / (SELECT count(*) FROM crowds), 1)
        FOR UPDATE SKIP LOCKED
    ) AS found
)
, promoted AS (
    UPDATE jobs AS j SET
        ready_at = CASE WHEN j.concurrency_key IS NULL THEN now() END,
        gate = CASE WHEN j.concurrency_key IS NOT NULL THEN 'key' END,
        reason = CASE WHEN j.concurrency_key IS NOT NULL THEN 'key_busy' END
    WHERE j.id = ANY (ARRAY(SELECT id FROM due)) RETURNING j.queue, j.lane, j.concurrency_key
)
SELECT DISTINCT queue, lane, concurrency_key AS key FROM promoted
"""
)

NEXT_DUE = _WAITING + "SELECT date_part('epoch', min(run_at) - now()) FROM waiting WHERE run_at < 'infinity'"


@dataclass(frozen=True, slots=True)
class Promoted:
    """Where jobs came due: claimable now, or in line for their keys."""

    work: set[tuple[str, str]]
    keys: set[tuple[str, str]]


async def promote(database: Database, limit: int = 1000) -> Promoted:
    """Let due jobs through to the claim, or to the gate of their key."""
    rows = await database.fetch(PROMOTE, limit)
    return Promoted(
        {(row["queue"], row["lane"]) for row in rows if row["key"] is None},
        {(row["queue"], row["key"]) for row in rows if row["key"] is not None},
    )


async def seconds_until_next_due(database: Database) -> float | None:
    return await database.fetchval(NEXT_DUE)  # type: ignore[no-any-return]
