"""Where live work is found: small tables beside `jobs`, which take the place of indexes on what changes.

A row of `jobs` is rewritten with every transition. As long as no column that changes stands in an index of that table,
the new version stays on its page and no index hears of it. What has to be found by what changes (the claimable, the
running, those that ended otherwise than done) has a short row here instead, which comes and goes under the lock of
the job's own row: that is the one lock, and the truth (see app/store/live.py).
"""

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import SQLModel

from app.store.tables.columns import ID, TIME, column, flag, index, primary, text, time

IS_CLAIMABLE = "ready_at IS NOT NULL"
# The claimable in the order of a lane. What it says of the rank is always true; whoever says it may use the index that has
# that order, and nobody else. Values of a fair queue would be picked out of all that ever waited in their lane, where
# PostgreSQL counts few (see job.py).
IN_LANES = f"{IS_CLAIMABLE} AND rank >= -32768"
IS_WAITING = "ready_at IS NULL AND gate IS NULL"
HAS_KEY = "concurrency_key IS NOT NULL"

# Ascends with every number that is drawn, whoever draws it and whatever became of the one before; never cached.
KEY_NUMBERS = sa.Sequence("key_numbers", metadata=SQLModel.metadata)


class Queued(SQLModel, table=True):
    """A job that is `queued`."""

    __tablename__ = "queued"
    __table_args__ = (
        # The claim: one queue, one lane, best rank first, then first come first served.
        index("queued_in_lanes", "queue, lane, rank DESC, ready_at, id", IN_LANES),
        # The claim of a queue with fair_by: value by value.
        index(
            "queued_fair",
            "queue, lane, (- rank), fair_value, ready_at, id",
            f"{IS_CLAIMABLE} AND fair_value IS NOT NULL",
        ),
        # What waits for a moment (scheduled, backing off); never in the claim's way.
        index("queued_due", "run_at", IS_WAITING),
        # The same queue by queue, where many have come due at once; and how many of a queue wait so.
        index("queued_waiting", "queue, run_at", IS_WAITING),
        # What waits for something other than time: its key's turn, other jobs. Next of a key comes first.
        index("queued_gated", "queue, gate, concurrency_key, rank DESC, id", "gate IS NOT NULL"),
        # Who of a key could be claimed, and so holds one of its places, and who could not: both are counted.
        index("queued_key_places", "queue, concurrency_key, key_number", f"{HAS_KEY} AND {IS_CLAIMABLE}"),
        index("queued_key_waiting", "queue, concurrency_key, key_number", f"{HAS_KEY} AND ready_at IS NULL"),
        # Whose deadline has passed; and the same queue by queue, where they are many.
        index("queued_late", "deadline", "deadline IS NOT NULL"),
        index("queued_deadlines", "queue, deadline", "deadline IS NOT NULL"),
        # Whom the answer of a target wakes; and which targets are needed, however many wait for them.
        index("queued_asleep", "id", "asleep"),
        index("queued_asleep_lanes", "lane", "asleep"),
    )

    id: str = primary(ID)
    # In the order of their bytes, as those who remember them have them in order, too.
    queue: str = column(ID, null=False)
    lane: str = column(ID, null=False)
    rank: int = column(sa.SmallInteger, null=False)
    ready_at: datetime | None = time()
    run_at: datetime = time(null=False)
    gate: str | None = text()
    concurrency_key: str | None = text()
    fair_value: str | None = column(ID)
    deadline: datetime | None = time()
    asleep: bool = flag()
    key_number: int | None = column(sa.BigInteger)


class Running(SQLModel, table=True):
    """A job that is `loading` or `working`."""

    __tablename__ = "running"
    __table_args__ = (
        # In the order in which they were claimed: those of a queue are counted (max_running), and leases that ran out
        # are looked for, from the oldest that runs on. Only for those who say from when on (see job.py).
        index("running_by_age", "claimed_at, id", "claimed_at IS NOT NULL"),
        # Who holds a place of a key.
        index("running_key_places", "queue, concurrency_key, key_number", HAS_KEY),
        index("running_late", "deadline", "deadline IS NOT NULL"),
        index("running_deadlines", "queue, deadline", "deadline IS NOT NULL"),
        # The slots of a target.
        index("running_on_target", "runs_on", "runs_on IS NOT NULL"),
    )

    # Looked up by the id when a run ends. With the moment it is unique: a claim is never stopped by what another left.
    id: str = primary(ID)
    claimed_at: datetime = primary(TIME)
    queue: str = text(null=False)
    worker: str | None = text()
    runs_on: str | None = text()
    concurrency_key: str | None = text()
    deadline: datetime | None = time()
    key_number: int | None = column(sa.BigInteger)


class Ending(SQLModel, table=True):
    """A job that has ended, and is not `done`: dead letters, and all else that somebody may look for by its state."""

    __tablename__ = "endings"
    __table_args__ = (
        # Newest first by state. The condition, always true, keeps it from being asked for an id alone (see job.py).
        index("endings_of_state", "state, id", "state IS NOT NULL"),
        index("endings_stale", "queue, concurrency_key", "state = 'stale' AND concurrency_key IS NOT NULL"),
    )

    id: str = primary(ID)
    queue: str = text(null=False)
    state: str = text(null=False)
    concurrency_key: str | None = text()


class UnbookedUsage(SQLModel, table=True):
    """A job that has ended and whose usage does not stand in the ledger yet."""

    __tablename__ = "unbooked_usage"

    id: str = primary(ID)
