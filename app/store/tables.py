"""The tables, declared once. Alembic makes them; the hot path reads and writes them with its own SQL.

Kept small on purpose: `jobs` is one row per job and its rows are updated a few times, so it has few
indexes, nearly all partial. `events` and `deliveries` are append-heavy and hang on the same statement
as the state change they tell of.
"""

from datetime import date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlmodel import Field, SQLModel

from app.jobs.states import LIVE, TERMINAL, State

NOW = sa.text("now()")
# Ids are ULIDs: byte order is time order, so the C collation is both right and fast.
ID = sa.Text(collation="C")
TIME = sa.DateTime(timezone=True)


def _states(states: frozenset[State]) -> str:
    return ", ".join(f"'{state}'" for state in sorted(states))


IS_LIVE = sa.text(f"state IN ({_states(LIVE)})")
IS_TROUBLED = sa.text(f"state IN ({_states(TERMINAL - {State.DONE})})")
IS_CLAIMABLE = sa.text("state = 'queued' AND ready_at IS NOT NULL")
IS_WAITING = sa.text("state = 'queued' AND ready_at IS NULL AND gate IS NULL")
IS_GATED = sa.text("state = 'queued' AND gate IS NOT NULL")
IS_ASLEEP = sa.text("state = 'queued' AND ready_at IS NULL AND reason = 'target_asleep'")
IS_FAIR = sa.text(f"{IS_CLAIMABLE.text} AND fair_value IS NOT NULL")
# Takes one of its key's places: it runs, or could be claimed any moment.
HOLDS_ITS_KEY = sa.text(
    f"concurrency_key IS NOT NULL AND (state IN ('loading', 'working') OR ({IS_CLAIMABLE.text}))"
)


def _text(*, null: bool = True, **more: Any) -> Any:
    return Field(default=None, sa_column=sa.Column(sa.Text, nullable=null, **more))


def _time(*, null: bool = True, **more: Any) -> Any:
    return Field(default=None, sa_column=sa.Column(TIME, nullable=null, **more))


def _count(default: int = 0, kind: Any = sa.Integer) -> Any:
    return Field(
        default=default, sa_column=sa.Column(kind, nullable=False, server_default=sa.text(str(default)))
    )


def _seconds(*, null: bool = True) -> Any:
    more = {} if null else {"server_default": sa.text("0")}
    return Field(default=None, sa_column=sa.Column(sa.Float, nullable=null, **more))  # type: ignore[arg-type]


class Tenant(SQLModel, table=True):
    __tablename__ = "tenants"

    name: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    created_at: datetime = _time(null=False, server_default=NOW)


class ApiKey(SQLModel, table=True):
    """A key is kept as its SHA-256 only."""

    __tablename__ = "api_keys"

    id: str = Field(sa_column=sa.Column(ID, primary_key=True))
    tenant: str = Field(sa_column=sa.Column(sa.Text, sa.ForeignKey("tenants.name"), nullable=False))
    name: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    hash: bytes = Field(sa_column=sa.Column(sa.LargeBinary, nullable=False, unique=True))
    scopes: list[str] = Field(sa_column=sa.Column(ARRAY(sa.Text), nullable=False))
    limits: dict[str, Any] = Field(
        sa_column=sa.Column(JSONB, nullable=False, server_default=sa.text("'{}'::jsonb"))
    )
    created_at: datetime = _time(null=False, server_default=NOW)
    expires_at: datetime | None = _time()
    last_used_at: datetime | None = _time()


class Queue(SQLModel, table=True):
    """One row per queue that was ever used. Settings are one document, so a new one is no migration."""

    __tablename__ = "queues"
    __table_args__ = (
        sa.Index(
            "queues_configured",
            "name",
            postgresql_where=sa.text("settings <> '{}'::jsonb OR paused_at IS NOT NULL"),
        ),
    )

    name: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    settings: dict[str, Any] = Field(
        sa_column=sa.Column(JSONB, nullable=False, server_default=sa.text("'{}'::jsonb"))
    )
    paused_at: datetime | None = _time()
    created_at: datetime = _time(null=False, server_default=NOW)
    updated_at: datetime = _time(null=False, server_default=NOW)
    # Until when jobs that were there before a change of the settings have been brought in line with it.
    reconciled_at: datetime | None = _time()


class Job(SQLModel, table=True):
    __tablename__ = "jobs"
    __table_args__ = (
        sa.CheckConstraint(f"state IN ({_states(frozenset(State))})", name="jobs_state_is_known"),
        sa.CheckConstraint(
            f"(completed_at IS NOT NULL) = (state IN ({_states(TERMINAL)}))",
            name="jobs_completed_at_iff_terminal",
        ),
        # The claim: one queue, one lane, best rank first, then first come first served.
        sa.Index(
            "jobs_claimable",
            "queue",
            "lane",
            sa.text("rank DESC"),
            "ready_at",
            "id",
            postgresql_where=IS_CLAIMABLE,
        ),
        # What waits for a moment (scheduled, backing off); never in the claim's way.
        sa.Index("jobs_waiting", "queue", "run_at", postgresql_where=IS_WAITING),
        # What waits for something other than time: its key's turn, other jobs. Next of a key comes first.
        sa.Index(
            "jobs_gated",
            "queue",
            "gate",
            "concurrency_key",
            sa.text("rank DESC"),
            "id",
            postgresql_where=IS_GATED,
        ),
        sa.Index("jobs_key_holders", "queue", "concurrency_key", postgresql_where=HOLDS_ITS_KEY),
        sa.Index(
            "jobs_stale_by_key",
            "queue",
            "concurrency_key",
            postgresql_where=sa.text("state = 'stale' AND concurrency_key IS NOT NULL"),
        ),
        # The claim of a queue with fair_by: value by value.
        sa.Index(
            "jobs_fair",
            "queue",
            "lane",
            sa.text("rank DESC"),
            "fair_value",
            "ready_at",
            "id",
            postgresql_where=IS_FAIR,
        ),
        # Newest first by state; also finds the running ones for rescue and heartbeat bookkeeping.
        sa.Index("jobs_live", "state", "id", postgresql_where=IS_LIVE),
        sa.Index("jobs_troubled", "state", "id", postgresql_where=IS_TROUBLED),
        sa.Index("jobs_by_queue", "queue", "id"),
        # Newest first by model. Jobs without a model, where a microsecond counts, pay nothing for it.
        sa.Index("jobs_by_model", "tenant", "model", "id", postgresql_where=sa.text("model IS NOT NULL")),
        sa.Index(
            "jobs_deadlines",
            "queue",
            "deadline",
            postgresql_where=sa.text(f"deadline IS NOT NULL AND {IS_LIVE.text}"),
        ),
        sa.Index("jobs_parent", "parent_id", postgresql_where=sa.text("parent_id IS NOT NULL")),
        sa.Index(
            "jobs_concurrency_key",
            "queue",
            "concurrency_key",
            postgresql_where=sa.text(f"concurrency_key IS NOT NULL AND {IS_LIVE.text}"),
        ),
        sa.Index(
            "jobs_metadata",
            "metadata",
            postgresql_using="gin",
            postgresql_ops={"metadata": "jsonb_path_ops"},
            postgresql_where=sa.text("metadata IS NOT NULL"),
        ),
        sa.Index("jobs_asleep", "id", postgresql_where=IS_ASLEEP),
        # Which targets are needed, however many jobs wait for them.
        sa.Index("jobs_asleep_lanes", "lane", postgresql_where=IS_ASLEEP),
        sa.Index(
            "jobs_unbooked",
            "completed_at",
            postgresql_where=sa.text("usage IS NOT NULL AND NOT usage_booked AND completed_at IS NOT NULL"),
        ),
    )

    id: str = Field(sa_column=sa.Column(ID, primary_key=True))
    tenant: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    queue: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    lane: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    kind: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    state: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    reason: str | None = _text()
    priority: int = _count(kind=sa.SmallInteger)
    # A caller who waits on the line goes before batch work of the same priority.
    interactive: bool = Field(
        default=False, sa_column=sa.Column(sa.Boolean, nullable=False, server_default=sa.text("false"))
    )
    rank: int | None = Field(
        default=None,
        sa_column=sa.Column(
            sa.SmallInteger,
            sa.Computed("(priority * 2 + interactive::int)::smallint", persisted=True),
            nullable=False,
        ),
    )
    model: str | None = _text()
    target: str | None = _text()
    runs_on: str | None = _text()
    # Text, not json: what came in goes out, byte for byte.
    payload: str = _text(null=False)
    result: str | None = _text()
    error: str | None = _text()
    progress: str | None = _text()
    usage: str | None = _text()
    metadata_: dict[str, str] | None = Field(
        default=None, sa_column=sa.Column("metadata", JSONB, nullable=True)
    )
    attempt: int = _count()
    max_attempts: int = _count(5)
    deferrals: int = _count()
    backoff_seconds: list[float] | None = Field(
        default=None, sa_column=sa.Column(ARRAY(sa.Float), nullable=True)
    )
    max_duration_seconds: float | None = _seconds()
    created_at: datetime = _time(null=False, server_default=NOW)
    updated_at: datetime = _time(null=False, server_default=NOW)
    run_at: datetime = _time(null=False, server_default=NOW)
    # Since when it may be claimed; NULL while something holds it back.
    ready_at: datetime | None = _time()
    entered_at: datetime = _time(null=False, server_default=NOW)
    started_at: datetime | None = _time()
    completed_at: datetime | None = _time()
    deadline: datetime | None = _time()
    queued_seconds: float = _seconds(null=False)
    loading_seconds: float = _seconds(null=False)
    working_seconds: float = _seconds(null=False)
    worker: str | None = _text()
    lease_token: str | None = _text()
    lease_seconds: float | None = _seconds()
    lease_expires_at: datetime | None = _time()
    # When this attempt must be over; the lease is never renewed past it.
    attempt_expires_at: datetime | None = _time()
    cancel_requested_at: datetime | None = _time()
    cancel_reason: str | None = _text()
    # Fingerprint of the last settlement, so that the very same one sent twice is answered alike.
    settlement: str | None = _text()
    concurrency_key: str | None = _text()
    # What holds a queued job back beside time: `key` (its key is busy) or `waiting_for` (other jobs).
    gate: str | None = _text()
    # Whose turn it takes in a queue with fair_by.
    fair_value: str | None = _text()
    on_dependency_failure: str | None = _text()
    # Some job waits for the end of this one.
    has_dependents: bool = Field(
        default=False, sa_column=sa.Column(sa.Boolean, nullable=False, server_default=sa.text("false"))
    )
    parent_id: str | None = Field(default=None, sa_column=sa.Column(ID, nullable=True))
    webhook_url: str | None = _text()
    webhook_events: list[str] | None = Field(default=None, sa_column=sa.Column(ARRAY(sa.Text), nullable=True))
    webhook_secret: bytes | None = Field(default=None, sa_column=sa.Column(sa.LargeBinary, nullable=True))
    request_id: str | None = _text()
    traceparent: str | None = _text()
    tracestate: str | None = _text()
    seq: int = _count()
    # What payload and result of an LLM job are written in.
    dialect: str = Field(
        default="ollama",
        sa_column=sa.Column(sa.Text, nullable=False, server_default=sa.text("'ollama'")),
    )
    # Its usage stands in the ledger.
    usage_booked: bool = Field(
        default=False, sa_column=sa.Column(sa.Boolean, nullable=False, server_default=sa.text("false"))
    )


class Target(SQLModel, table=True):
    """A target, and what was last known of it. `settings` is NULL for one that the environment makes."""

    __tablename__ = "targets"

    name: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    settings: dict[str, Any] | None = Field(default=None, sa_column=sa.Column(JSONB, nullable=True))
    token: bytes | None = Field(default=None, sa_column=sa.Column(sa.LargeBinary, nullable=True))
    inventory: dict[str, Any] | None = Field(default=None, sa_column=sa.Column(JSONB, nullable=True))
    answered_at: datetime | None = _time()
    asleep_since: datetime | None = _time()
    warning: str | None = _text()
    # The affinity key of what was loaded last.
    resident: str | None = _text()
    woken_at: datetime | None = _time()
    wake_tries: int = _count()
    created_at: datetime = _time(null=False, server_default=NOW)
    updated_at: datetime = _time(null=False, server_default=NOW)


class TargetHolding(SQLModel, table=True):
    """How many of a target's slots a process holds; their sum never exceeds what the target has."""

    __tablename__ = "target_holdings"

    target: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    holder: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    slots: int = Field(sa_column=sa.Column(sa.Integer, nullable=False))
    expires_at: datetime = _time(null=False)
    wanted: bool = Field(
        default=False, sa_column=sa.Column(sa.Boolean, nullable=False, server_default=sa.text("false"))
    )


class UsageDay(SQLModel, table=True):
    """The ledger: what each caller used of each model on each day (UTC)."""

    __tablename__ = "usage_days"

    tenant: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    model: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    day: date = Field(sa_column=sa.Column(sa.Date, primary_key=True))
    jobs: int = _count(kind=sa.BigInteger)
    prompt_tokens: int = _count(kind=sa.BigInteger)
    completion_tokens: int = _count(kind=sa.BigInteger)
    load_seconds: float = _seconds(null=False)
    prefill_seconds: float = _seconds(null=False)
    decode_seconds: float = _seconds(null=False)


class Event(SQLModel, table=True):
    """The append-only log of a job; `seq` is given out under the job row's lock, so it has no gaps."""

    __tablename__ = "events"

    job_id: str = Field(sa_column=sa.Column(ID, primary_key=True))
    seq: int = Field(sa_column=sa.Column(sa.Integer, primary_key=True, autoincrement=False))
    type: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    state: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    reason: str | None = _text()
    data: str | None = _text()
    at: datetime = _time(null=False, server_default=NOW)


class Chatter(SQLModel, table=True):
    """What runs say (output, progress, logs), by day: old days are dropped, whatever became of the job."""

    __tablename__ = "chatter"
    __table_args__ = ({"postgresql_partition_by": "RANGE (at)"},)

    job_id: str = Field(sa_column=sa.Column(ID, primary_key=True))
    seq: int = Field(sa_column=sa.Column(sa.Integer, primary_key=True, autoincrement=False))
    type: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    state: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    reason: str | None = _text()
    data: str | None = _text()
    at: datetime = Field(sa_column=sa.Column(TIME, primary_key=True, server_default=NOW))


ANNOUNCEMENT_IDS = sa.Sequence("announcements_id_seq", metadata=SQLModel.metadata)


class Announcement(SQLModel, table=True):
    """Which events one statement wrote, by its transaction: read in the order in which they became certain."""

    __tablename__ = "announcements"
    __table_args__ = ({"postgresql_partition_by": "RANGE (at)"},)

    xid: int = Field(
        sa_column=sa.Column(
            sa.BigInteger, primary_key=True, server_default=sa.text("pg_current_xact_id()::text::bigint")
        )
    )
    id: int = Field(
        sa_column=sa.Column(
            sa.BigInteger, ANNOUNCEMENT_IDS, primary_key=True, server_default=ANNOUNCEMENT_IDS.next_value()
        )
    )
    job_ids: list[str] = Field(sa_column=sa.Column(ARRAY(ID), nullable=False))
    seqs: list[int] = Field(sa_column=sa.Column(ARRAY(sa.Integer), nullable=False))
    at: datetime = Field(sa_column=sa.Column(TIME, primary_key=True, server_default=NOW))


class Delivery(SQLModel, table=True):
    """The webhook outbox: written in the same commit as the state change."""

    __tablename__ = "deliveries"
    __table_args__ = (
        # One receiver's part of the index at a time: a backlog of one never stands in another's way. The second
        # condition of these two, always true, keeps the planner from walking all of one where a probe into the
        # other is meant: that seems free to it whenever statistics were taken while nothing was pending.
        sa.Index(
            "deliveries_due",
            "host",
            "next_try_at",
            postgresql_where=sa.text("state = 'pending' AND host >= ''"),
        ),
        sa.Index(
            "deliveries_pending_by_job",
            "job_id",
            "seq",
            postgresql_where=sa.text("state = 'pending' AND seq >= 0"),
        ),
        sa.Index(
            "deliveries_troubled",
            "job_id",
            "seq",
            postgresql_where=sa.text("state IN ('given_up', 'refused')"),
        ),
    )

    job_id: str = Field(sa_column=sa.Column(ID, primary_key=True))
    seq: int = Field(sa_column=sa.Column(sa.Integer, primary_key=True, autoincrement=False))
    type: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    state: str = Field(
        default="pending", sa_column=sa.Column(sa.Text, nullable=False, server_default=sa.text("'pending'"))
    )
    tries: int = _count()
    last_status: int | None = Field(default=None, sa_column=sa.Column(sa.Integer, nullable=True))
    last_error: str | None = _text()
    created_at: datetime = _time(null=False, server_default=NOW)
    next_try_at: datetime = _time(null=False, server_default=NOW)
    delivered_at: datetime | None = _time()
    # Host and port of the receiver, as they stand in the job's URL.
    host: str = Field(default="", sa_column=sa.Column(sa.Text, nullable=False, server_default=sa.text("''")))
    # Being sent now, by a process that renews this; no index knows it, so claiming stays on the row's page.
    leased_until: datetime | None = _time()


class IdempotencyKey(SQLModel, table=True):
    """Which jobs a key made, and from which request."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (sa.Index("idempotency_keys_age", "created_at"),)

    tenant: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    key: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    fingerprint: bytes = Field(sa_column=sa.Column(sa.LargeBinary, nullable=False))
    job_ids: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    created_at: datetime = _time(null=False, server_default=NOW)


class Artifact(SQLModel, table=True):
    __tablename__ = "artifacts"

    job_id: str = Field(sa_column=sa.Column(ID, primary_key=True))
    name: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    content_type: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    size: int = Field(sa_column=sa.Column(sa.BigInteger, nullable=False))
    # Small ones lie here: text as `content`, so that the job's document can show it, the rest as `data`.
    data: bytes | None = Field(default=None, sa_column=sa.Column(sa.LargeBinary, nullable=True))
    location: str | None = _text()
    created_at: datetime = _time(null=False, server_default=NOW)
    content: str | None = _text()
    etag: str | None = _text()


class ArtifactChunk(SQLModel, table=True):
    """The bytes of larger artifacts, where no folder or bucket is configured for them."""

    __tablename__ = "artifact_chunks"

    upload_id: str = Field(sa_column=sa.Column(ID, primary_key=True))
    number: int = Field(sa_column=sa.Column(sa.Integer, primary_key=True, autoincrement=False))
    data: bytes = Field(sa_column=sa.Column(sa.LargeBinary, nullable=False))


class ArtifactTrash(SQLModel, table=True):
    """Bytes that nothing refers to: to be removed when due. An upload begins here and is taken out at its end."""

    __tablename__ = "artifact_trash"
    __table_args__ = (sa.Index("artifact_trash_due", "due_at"),)

    location: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    due_at: datetime = _time(null=False, server_default=NOW)


class WorkerPresence(SQLModel, table=True):
    """Who is about; for operators only, never for correctness."""

    __tablename__ = "workers"

    tenant: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    name: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    queues: list[str] = Field(sa_column=sa.Column(ARRAY(sa.Text), nullable=False))
    kinds: list[str] = Field(sa_column=sa.Column(ARRAY(sa.Text), nullable=False))
    concurrency: int = _count()
    version: str | None = _text()
    started_at: datetime = _time(null=False, server_default=NOW)
    last_seen_at: datetime = _time(null=False, server_default=NOW)


class Dependency(SQLModel, table=True):
    """One thing that a job still waits for; gone once its end has been followed."""

    __tablename__ = "dependencies"
    __table_args__ = (sa.Index("dependencies_depends_on", "depends_on"),)

    job_id: str = Field(sa_column=sa.Column(ID, primary_key=True))
    depends_on: str = Field(sa_column=sa.Column(ID, primary_key=True))
    # The state in which it ended, where it was removed before that.
    outcome: str | None = _text()


class DepthReservation(SQLModel, table=True):
    """Room of a queue with max_depth that one process may fill without counting; anybody may take it back."""

    __tablename__ = "depth_reservations"

    queue: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    token: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    jobs: int = Field(sa_column=sa.Column(sa.Integer, nullable=False))
    reserved_at: datetime = _time(null=False, server_default=NOW)


class QueueLimit(SQLModel, table=True):
    """The token bucket of a queue that has a rate."""

    __tablename__ = "queue_limits"

    queue: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    tokens: float = Field(sa_column=sa.Column(sa.Float, nullable=False))
    refilled_at: datetime = _time(null=False, server_default=NOW)


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

    queue: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    state: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    jobs: int = Field(sa_column=sa.Column(sa.BigInteger, nullable=False))


class RetentionWalk(SQLModel, table=True):
    """How far the pruner has come: through all jobs (`queue` is empty), and through each queue that keeps its jobs
    for a shorter time than most."""

    __tablename__ = "retention_walks"
    __table_args__ = (sa.Index("retention_walks_due", "due_at"),)

    queue: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    # The shortest time for which it keeps a job: no younger one is looked at.
    horizon_seconds: float = Field(sa_column=sa.Column(sa.Float, nullable=False))
    after_id: str = Field(default="", sa_column=sa.Column(ID, nullable=False, server_default=sa.text("''")))
    # When the walk began at the oldest job, and when it goes on.
    began_at: datetime = _time(null=False, server_default=NOW)
    due_at: datetime = _time(null=False, server_default=NOW)


class Schedule(SQLModel, table=True):
    """A periodic job. `job` is a submission as it was sent; `next_at` is the tick to come."""

    __tablename__ = "schedules"
    __table_args__ = (sa.Index("schedules_next", "next_at"),)

    name: str = Field(sa_column=sa.Column(sa.Text, primary_key=True))
    tenant: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    cron: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    timezone: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    job: str = _text(null=False)
    next_at: datetime = _time(null=False)
    last_at: datetime | None = _time()
    last_job_id: str | None = Field(default=None, sa_column=sa.Column(ID, nullable=True))
    last_outcome: str | None = _text()
    last_error: str | None = _text()
    created_at: datetime = _time(null=False, server_default=NOW)
    updated_at: datetime = _time(null=False, server_default=NOW)


class BulkOperation(SQLModel, table=True):
    """One verb for all jobs that match a filter, done in small steps; `after_id` is how far it got."""

    __tablename__ = "bulk_operations"
    __table_args__ = (
        sa.Index("bulk_operations_running", "updated_at", postgresql_where=sa.text("state = 'running'")),
    )

    id: str = Field(sa_column=sa.Column(ID, primary_key=True))
    tenant: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    action: str = Field(sa_column=sa.Column(sa.Text, nullable=False))
    filter: dict[str, Any] = Field(sa_column=sa.Column(JSONB, nullable=False))
    state: str = Field(
        default="running", sa_column=sa.Column(sa.Text, nullable=False, server_default=sa.text("'running'"))
    )
    matched: int | None = Field(default=None, sa_column=sa.Column(sa.BigInteger, nullable=True))
    moved: int = _count(kind=sa.BigInteger)
    passed: int = _count(kind=sa.BigInteger)
    after_id: str = Field(default="", sa_column=sa.Column(ID, nullable=False, server_default=sa.text("''")))
    until_id: str = Field(sa_column=sa.Column(ID, nullable=False))
    created_at: datetime = _time(null=False, server_default=NOW)
    updated_at: datetime = _time(null=False, server_default=NOW)
    completed_at: datetime | None = _time()


METADATA = SQLModel.metadata
