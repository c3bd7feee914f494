"""Queues: their settings, limits, counts and retention; schedules and bulk operations."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import SQLModel

from app.store.tables.columns import BLANK, EMPTY, ID, NOW, TIME, column, count, index, primary, text, time


class Queue(SQLModel, table=True):
    """One row per queue that was ever used. Settings are one document, so a new one is no migration."""

    __tablename__ = "queues"
    __table_args__ = (index("queues_configured", "name", "settings <> '{}'::jsonb OR paused_at IS NOT NULL"),)

    name: str = primary()
    settings: dict[str, Any] = column(JSONB, null=False, server_default=EMPTY)
    paused_at: datetime | None = time()
    created_at: datetime = time(null=False, server_default=NOW)
    updated_at: datetime = time(null=False, server_default=NOW)
    # The name of the key that paused it; NULL where there was none.
    paused_by: str | None = text()
    # Until when jobs that were there before a change of the settings have been brought in line with it.
    reconciled_at: datetime | None = time()


class DepthReservation(SQLModel, table=True):
    """Room of a queue with max_depth that one process may fill without counting; anybody may take it back."""

    __tablename__ = "depth_reservations"

    queue: str = primary()
    token: str = primary()
    jobs: int = column(sa.Integer, null=False)
    reserved_at: datetime = time(null=False, server_default=NOW)


class QueueLimit(SQLModel, table=True):
    """The token bucket of a queue that has a rate."""

    __tablename__ = "queue_limits"

    queue: str = primary()
    tokens: float = column(sa.Float, null=False)
    refilled_at: datetime = time(null=False, server_default=NOW)


# How the number of ended jobs changed, one row per statement and state; folded into the totals.
QUEUE_DELTAS = sa.Table(
    "queue_deltas",
    SQLModel.metadata,
    sa.Column("queue", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("jobs", sa.BigInteger, nullable=False),
    sa.Column("at", TIME, nullable=False, server_default=NOW),
)


class QueueTotal(SQLModel, table=True):
    __tablename__ = "queue_totals"

    queue: str = primary()
    state: str = primary()
    jobs: int = column(sa.BigInteger, null=False)


class RetentionWalk(SQLModel, table=True):
    """How far the pruner has come: through all jobs (`queue` is empty), and through each queue that keeps its jobs
    for a shorter time than most."""

    __tablename__ = "retention_walks"
    __table_args__ = (index("retention_walks_due", "due_at"),)

    queue: str = primary()
    # The shortest time for which it keeps a job: no younger one is looked at.
    horizon_seconds: float = column(sa.Float, null=False)
    after_id: str = column(ID, null=False, server_default=BLANK)
    # When the walk began at the oldest job, and when it goes on.
    began_at: datetime = time(null=False, server_default=NOW)
    due_at: datetime = time(null=False, server_default=NOW)


class Schedule(SQLModel, table=True):
    """A periodic job. `job` is a submission as it was sent; `next_at` is the tick to come."""

    __tablename__ = "schedules"
    __table_args__ = (index("schedules_next", "next_at"),)

    name: str = primary()
    tenant: str = text(null=False)
    cron: str = text(null=False)
    timezone: str = text(null=False)
    job: str = text(null=False)
    next_at: datetime = time(null=False)
    last_at: datetime | None = time()
    last_job_id: str | None = column(ID)
    last_outcome: str | None = text()
    last_error: str | None = text()
    created_at: datetime = time(null=False, server_default=NOW)
    updated_at: datetime = time(null=False, server_default=NOW)


class ScheduleTick(SQLModel, table=True):
    """What came of the last ticks of a schedule, a few of each."""

    __tablename__ = "schedule_ticks"

    name: str = primary()
    at: datetime = primary(TIME)
    outcome: str = text(null=False)
    job_id: str | None = column(ID)
    error: str | None = text()


class BulkOperation(SQLModel, table=True):
    """One verb for all jobs that match a filter, done in small steps; `after_id` is how far it got."""

    __tablename__ = "bulk_operations"
    __table_args__ = (index("bulk_operations_running", "updated_at", "state = 'running'"),)

    id: str = primary(ID)
    tenant: str = text(null=False)
    action: str = text(null=False)
    filter: dict[str, Any] = column(JSONB, null=False)
    state: str = text(null=False, server_default=sa.text("'running'"))
    matched: int | None = column(sa.BigInteger)
    moved: int = count(kind=sa.BigInteger)
    passed: int = count(kind=sa.BigInteger)
    after_id: str = column(ID, null=False, server_default=BLANK)
    until_id: str = column(ID, null=False)
    created_at: datetime = time(null=False, server_default=NOW)
    updated_at: datetime = time(null=False, server_default=NOW)
    completed_at: datetime | None = time()
