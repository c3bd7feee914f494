"""What happens to jobs by the passing of time: rescue, supersede, expire, and the end of a cancel's grace.

Each statement takes a small batch and skips rows that somebody holds, so that it never stands in
anybody's way. One replica at a time does a round, by a transaction-level advisory lock.

A lease that ran out while nobody could renew it says nothing about its worker. After an outage leases are left alone
until those who hold them had their turn. A database that only hangs is no outage that anybody is told of: so a lease is
given up by the second look that finds it expired, and in between the database answered for long enough to renew it.
"""

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from app.store import locks
from app.store.changes import Changes
from app.store.database import Database, Runner
from app.store.effects import moved, ran, told
from app.store.live import end, leave_queue, leave_run, move_held, stop
from app.store.low_water import THE_BEGINNING, TimeMark
from app.store.tallies import tally
from app.telemetry import LEASES_LOST, SWEPT

BATCH = 500
ONE_AT_A_TIME = locks.try_lock(locks.SWEEP)
# The moment of this statement, and since when this very server process has been running.
CLOCK = "SELECT statement_timestamp() AS now, pg_postmaster_start_time() AS started"
# A round that comes so much later than it should was held up by more than a busy machine: a process that was frozen,
# a computer that slept. The database's clock went on meanwhile, or that of the workers did not.
LATE = timedelta(seconds=5)
# How long whoever holds a lease has to renew it, once a look that found it expired is over.
CONFIRM_SECONDS = 1.0
# A claim is seen at its commit, which comes later than the moment that it carries.
CLAIM_SLACK = timedelta(seconds=60)
LOOK_AT_ALL = timedelta(minutes=5)
# What has a deadline is seen at its commit, and with a claim it is elsewhere, at the commit of that.
LATE_SLACK = timedelta(seconds=10)
# No lease ever ran out before this.
NEVER = datetime(1970, 1, 1, tzinfo=UTC)

# The columns that every end or interruption of a run resets, whoever caused it.
_LEAVE_RUN = """
    lease_token = NULL, lease_expires_at = NULL, attempt_expires_at = NULL,
    queued_seconds = j.queued_seconds
        + CASE WHEN j.state = 'queued' THEN date_part('epoch', now() - j.entered_at) ELSE 0 END,
    loading_seconds = j.loading_seconds
        + CASE WHEN j.state = 'loading' THEN date_part('epoch', now() - j.entered_at) ELSE 0 END,
    working_seconds = j.working_seconds
        + CASE WHEN j.state = 'working' THEN date_part('epoch', now() - j.entered_at) ELSE 0 END,
    seq = j.seq + 1, entered_at = now(), updated_at = now()
"""

_LEASE_ERROR = (
    """{"code":"lease_expired","message":"The worker stopped renewing its lease.","retryable":true}"""
)
_DEADLINE_ERROR = """{"code":"deadline"}"""
_DURATION_ERROR = """{"code":"attempt_timeout","message":"The attempt took longer than max_duration_seconds.","retryable":true}"""

# What a rescue came to.
_RESCUED = "CASE state WHEN 'queued' THEN 'rescue' WHEN 'failed' THEN 'fail' ELSE 'cancel' END"
# What the event says of a run that lost its lease.
_LOST = "json_build_object('attempt', attempt, 'worker', worker, 'error', error::json)::text"

# Each verb is two statements: the first finds jobs and holds them, the second moves those (see live.py).
# A lease is lost that ran out before $2, or before now where nobody says. (LEAST passes over NULL.)
# Those that run, in the order in which they were claimed, from $3 on.
_RUNS = "(SELECT * FROM running WHERE claimed_at >= $3::timestamptz ORDER BY claimed_at, id OFFSET 0) AS r"
_POLICY = "coalesce(queues.settings->>'stale_policy', 'fail-stale')"
_KEYED = "r.concurrency_key IS NOT NULL AND queues.settings ? 'key'"

HOLD_LOST = f"""
SELECT r.id FROM {_RUNS} LEFT JOIN queues ON queues.name = r.queue
CROSS JOIN LATERAL (
    SELECT 1 FROM jobs
    WHERE id = r.id AND state IN ('loading', 'working') AND lease_expires_at < least(now(), $2::timestamptz)
      AND (cancel_requested_at IS NOT NULL OR ({_KEYED}) IS NOT TRUE)
    LIMIT 1 FOR UPDATE SKIP LOCKED
) AS held
LIMIT $1
"""

# loading, working → queued; counts as an attempt. → failed when that was the last one; → cancelled when
# a cancel was on its way.
RESCUE = (
    f"""
WITH rescued AS (
    UPDATE jobs AS j SET
        state = CASE
            WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN j.attempt >= j.max_attempts THEN 'failed'
            ELSE 'queued' END,
        reason = CASE
            WHEN j.cancel_requested_at IS NOT NULL THEN coalesce(j.cancel_reason, 'cancel')
            WHEN j.attempt >= j.max_attempts THEN 'attempts_exhausted'
            ELSE 'rescue' END,
        error = CASE WHEN j.attempt_expires_at <= now() THEN '{_DURATION_ERROR}' ELSE '{_LEASE_ERROR}' END,
        completed_at = CASE WHEN j.cancel_requested_at IS NOT NULL OR j.attempt >= j.max_attempts THEN now() END,
        run_at = now(), ready_at = now(),
        {_LEAVE_RUN}
    WHERE j.id = ANY ($1::text[])
    RETURNING j.*
)
"""
    + stop("rescued")
    + moved(
        "rescued",
        verb=_RESCUED,
        data=_LOST,
    )
    + tally("rescued")
    + told("rescued", verb=_RESCUED, ran=ran("rescued"), error="error")
)

# The holder of a key lost its lease, and its queue lets the next one run. With the policy `block` it stays as it is,
# until an operator cancels it or its worker comes back with its token.
HOLD_STALE = f"""
SELECT r.id FROM {_RUNS} JOIN queues ON queues.name = r.queue
CROSS JOIN LATERAL (
    SELECT 1 FROM jobs
    WHERE id = r.id AND state IN ('loading', 'working') AND lease_expires_at < least(now(), $2::timestamptz)
      AND cancel_requested_at IS NULL
    LIMIT 1 FOR UPDATE SKIP LOCKED
) AS held
WHERE {_KEYED} AND {_POLICY} = 'fail-stale'
LIMIT $1
"""

# loading, working → stale
SUPERSEDE = (
    f"""
WITH superseded AS (
    UPDATE jobs AS j SET
        state = 'stale', reason = 'lease_expired', completed_at = now(),
        error = CASE WHEN j.attempt_expires_at <= now() THEN '{_DURATION_ERROR}' ELSE '{_LEASE_ERROR}' END,
        {_LEAVE_RUN}
    WHERE j.id = ANY ($1::text[])
    RETURNING j.*
)
"""
    + stop("superseded")
    + moved("superseded", verb="'supersede'", data=_LOST)
    + tally("superseded")
    + told("superseded", verb="'supersede'", ran=ran("superseded"), error="error")
)


_IS_LATE = """
        SELECT 1 FROM jobs
        WHERE id = live.id AND state IN ('queued', 'loading', 'working') AND deadline <= now()
        LIMIT 1 FOR UPDATE SKIP LOCKED"""


def _hold_late(table: str) -> str:
    """Longest late first, from the mark on: what had a deadline and is gone is stepped over (as in HOLD_DUE)."""
    return f"""
SELECT live.id FROM {table} AS live CROSS JOIN LATERAL ({_IS_LATE}
    ) AS held
WHERE live.deadline <= now() AND live.deadline >= $2::timestamptz
ORDER BY live.deadline LIMIT $1
"""


def _hold_late_crowd(table: str) -> str:
    """The same where they are many: one probe per queue that has deadlines finds its first; each queue with something late
    has an equal share of the round (as in HOLD_CROWD)."""
    return f"""
WITH RECURSIVE first AS (
    (SELECT queue, deadline FROM {table} WHERE deadline IS NOT NULL ORDER BY queue, deadline LIMIT 1)
    UNION ALL
    SELECT following.queue, following.deadline FROM first CROSS JOIN LATERAL (
        SELECT queue, deadline FROM {table} WHERE deadline IS NOT NULL AND queue > first.queue
        ORDER BY queue, deadline LIMIT 1
    ) AS following
)
, crowds AS MATERIALIZED (SELECT queue FROM first WHERE deadline <= now() ORDER BY random() LIMIT $1)
SELECT found.id FROM crowds CROSS JOIN LATERAL (
    SELECT live.id FROM {table} AS live CROSS JOIN LATERAL ({_IS_LATE}
    ) AS held
    WHERE live.queue = crowds.queue AND live.deadline <= now()
    ORDER BY live.queue, live.deadline LIMIT greatest($1 / (SELECT count(*) FROM crowds), 1)
) AS found
"""


HOLD_LATE_QUEUED = _hold_late("queued")
HOLD_LATE_RUNNING = _hold_late("running")
HOLD_LATE_CROWD_QUEUED = _hold_late_crowd("queued")
HOLD_LATE_CROWD_RUNNING = _hold_late_crowd("running")
_LATE = (
    (HOLD_LATE_QUEUED, HOLD_LATE_CROWD_QUEUED),
    (HOLD_LATE_RUNNING, HOLD_LATE_CROWD_RUNNING),
)

# Since when something is late still, because somebody holds it in this moment.
STILL_LATE = """
SELECT coalesce(least(
    (SELECT deadline FROM queued WHERE deadline <= now() AND deadline >= $1::timestamptz ORDER BY deadline LIMIT 1),
    (SELECT deadline FROM running WHERE deadline <= now() AND deadline >= $1::timestamptz ORDER BY deadline LIMIT 1)
), now()) AS since
"""

# queued, loading, working → expired; a running worker finds its lease gone.
EXPIRE = (
    f"""
WITH expired AS (
    UPDATE jobs AS j SET state = 'expired', reason = 'deadline', completed_at = now(), {_LEAVE_RUN}
    WHERE j.id = ANY ($1::text[])
    RETURNING j.*
)
"""
    + leave_queue("expired")
    + leave_run("expired")
    + end("expired")
    + moved("expired", verb="'expire'", data="json_build_object('deadline', deadline)::text")
    + tally("expired")
    + told("expired", verb="'expire'", ran=ran("expired"), error=f"'{_DEADLINE_ERROR}'")
)

HOLD_OVERDUE = f"""
SELECT r.id FROM {_RUNS} CROSS JOIN LATERAL (
    SELECT 1 FROM jobs
    WHERE id = r.id AND state IN ('loading', 'working') AND cancel_requested_at < now() - $2 * interval '1 second'
    LIMIT 1 FOR UPDATE SKIP LOCKED
) AS held
LIMIT $1
"""

# loading, working → cancelled: the grace is over and the worker did not confirm. It is fenced off.
END_GRACE = (
    f"""
WITH cancelled AS (
    UPDATE jobs AS j SET
        state = 'cancelled', reason = coalesce(j.cancel_reason, 'cancel'), completed_at = now(), {_LEAVE_RUN}
    WHERE j.id = ANY ($1::text[])
    RETURNING j.*
)
"""
    + leave_run("cancelled")
    + end("cancelled")
    + moved(
        "cancelled",
        verb="'cancel'",
        data="json_build_object('reason', reason, 'confirmed', false)::text",
    )
    + tally("cancelled")
    + told("cancelled", verb="'cancel'", ran=ran("cancelled"))
)

# The end of a look: when that is, whether leases had run out when it began that no look before had found so, and since
# when the oldest of all runs.
END_LOOK = f"""
SELECT coalesce(bool_or(lease.expires_at >= $1::timestamptz AND lease.expires_at < $2::timestamptz), false) AS unconfirmed,
       clock_timestamp() AS now, min(r.claimed_at) AS oldest
FROM {_RUNS} CROSS JOIN LATERAL (
    SELECT lease_expires_at AS expires_at FROM jobs WHERE id = r.id AND state IN ('loading', 'working') LIMIT 1
) AS lease
"""


@dataclass(frozen=True, slots=True)
class Look:
    """A round that went through, whatever it found."""

    began_at: datetime
    ended_at: datetime


class Watchfulness:
    """Which leases this process may take for lost.

    None, for `grace`, after its first look, after a look that failed or came late, and after a restart of the
    database: it would not have noticed that they could not be renewed. Otherwise those that had run out when an earlier
    look began which has been over for `confirm_seconds`: its end shows that the database answered, and whoever still
    holds a lease renews it within that time. All by the database's clock.
    """

    def __init__(self, sweep_seconds: float, grace_seconds: float) -> None:
        self.confirm_seconds = min(CONFIRM_SECONDS, sweep_seconds)
        self._expected = timedelta(seconds=sweep_seconds) + LATE
        self._grace = timedelta(seconds=grace_seconds)
        self._looked_at: datetime | None = None
        self._blind_until: datetime | None = None
        # The last one that has been over for long enough, and all since.
        self._looks: deque[Look] = deque()
        self._oldest_run: datetime | None = None
        self._looks_at_all_at = NEVER
        self.late = _late_mark()

    def failed(self) -> None:
        """The database was away, or something else kept us from looking."""
        self._looked_at = None

    def look(self, now: datetime, database_started: datetime) -> float:
        """For how many seconds still leases must be left alone; 0 when they need not."""
        last, self._looked_at = self._looked_at, now
        is_blind = self._blind_until is not None
        # While it waits anyway, lateness adds nothing: on a machine that is always late leases must end, too.
        if last is None or now < last or (not is_blind and now - last > self._expected):
            self._blind_until = now + self._grace
            self._looks.clear()
            # Its clock may have been set back, or be another server's.
            self._oldest_run = None
            self.late = _late_mark()
        wait = max(self._blind_until or now, database_started + self._grace) - now
        if wait > timedelta(0):
            return wait.total_seconds()
        self._blind_until = None
        return 0.0

    def lost_before(self, now: datetime) -> datetime:
        """Leases that ran out before this moment may be given up."""
        since = now - timedelta(seconds=self.confirm_seconds)
        while len(self._looks) > 1 and self._looks[1].ended_at <= since:
            self._looks.popleft()
        if self._looks and self._looks[0].ended_at <= since:
            return self._looks[0].began_at
        return NEVER

    def looked(self, began_at: datetime, ended_at: datetime, oldest_run: datetime | None = None) -> None:
        """A look went through, and not only as far as to find another replica at it."""
        self._looks.append(Look(began_at, ended_at))
        self._oldest_run = (oldest_run or began_at) - CLAIM_SLACK

    def oldest_run(self, now: datetime) -> datetime:
        """No job that runs was claimed before: where a look at them begins. What a transaction held open elsewhere keeps
        of those that ran before is stepped over; now and then all is looked at, in case a clock was set back."""
        if self._oldest_run is None or now >= self._looks_at_all_at:
            self._looks_at_all_at = now + LOOK_AT_ALL
            return THE_BEGINNING
        return self._oldest_run


def _late_mark() -> TimeMark:
    """Before which no deadline of a live job lies. A job that comes with one that has passed already is found, as a rule, by
    the very next look: it begins at the beginning, unless that takes long."""
    return TimeMark(LATE_SLACK)


_LEASE_LOST = frozenset({"rescue", "supersede"})
_VERBS = {"cancel": END_GRACE, "rescue": RESCUE, "supersede": SUPERSEDE}


@dataclass(slots=True)
class Swept:
    """What one round moved, by verb, and when it is to go on."""

    changes: Changes[None] = field(default_factory=Changes)
    moved: Counter[str] = field(default_factory=Counter)
    # There may be more.
    full: bool = False
    # For how long still nothing is rescued or superseded.
    blind_seconds: float = 0.0
    # Leases were found expired that are given up by the next look if they still are.
    unconfirmed: bool = False

    def take(self, verb: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if not rows:
            return
        self.changes.moved(rows)
        if verb in _LEASE_LOST:
            for row in rows:
                self.changes.count(LEASES_LOST, row["queue"], row["kind"])
        if verb == "expire":
            # Their workers need not find out by themselves.
            self.changes.cancels |= {row["id"] for row in rows if row["ran"] is not None}
        self.moved[verb] += len(rows)
        self.changes.count(SWEPT, verb, by=len(rows))
        self.full |= len(rows) == BATCH


async def sweep(
    database: Database, *, cancel_grace_seconds: float, watchfulness: Watchfulness | None = None
) -> Swept | None:
    """One round over everything that is overdue; None when another replica is at it."""
    swept = Swept()
    lost_before: datetime | None = None
    async with database.transaction() as connection:
        [clock] = await connection.fetch(CLOCK)
        if watchfulness is not None:
            swept.blind_seconds = watchfulness.look(clock["now"], clock["started"])
            lost_before = watchfulness.lost_before(clock["now"])
        if not await connection.fetchval(ONE_AT_A_TIME):
            return None
        oldest = THE_BEGINNING if watchfulness is None else watchfulness.oldest_run(clock["now"])

        async def move(verb: str, hold: str, *arguments: object) -> None:
            swept.take(verb, await move_held(connection, hold, (BATCH, *arguments), _VERBS[verb]))

        await move("cancel", HOLD_OVERDUE, cancel_grace_seconds, oldest)
        swept.full |= await _expire(
            connection, swept, _late_mark() if watchfulness is None else watchfulness.late
        )
        if swept.blind_seconds == 0:
            await move("rescue", HOLD_LOST, lost_before, oldest)
            await move("supersede", HOLD_STALE, lost_before, oldest)
        if watchfulness is not None:
            [found] = await connection.fetch(END_LOOK, lost_before, clock["now"], oldest)
            watchfulness.looked(clock["now"], found["now"], found["oldest"])
            swept.unconfirmed = found["unconfirmed"]
    return swept


async def _expire(connection: Runner, swept: Swept, late: TimeMark) -> bool:
    """Whatever is late, waiting or running; whether there may be more."""
    mark, began = late.current(), time.monotonic()
    is_crowd = False
    for hold, hold_crowd in _LATE:
        held = await connection.fetch(hold, BATCH + 1, mark)
        if len(held) > BATCH:
            is_crowd = True
            held = await connection.fetch(hold_crowd, BATCH)
        if held:
            swept.take("expire", await connection.fetch(EXPIRE, [row["id"] for row in held]))
    if not is_crowd:
        [still] = await connection.fetch(STILL_LATE, mark)
        late.learn(mark, still["since"], time.monotonic() - began)
    return is_crowd
