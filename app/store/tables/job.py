"""The jobs, one row each, updated a few times.

No index here has a column that changes after the job came in, not even in its condition: so an update stays on its
page (HOT). Only a new master key changes one, that of the secrets. What is found by what changes has its place in live.py.
"""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlmodel import Field, SQLModel

from app.jobs.states import TERMINAL, State
from app.jobs.tenants import DEFAULT_TENANT
from app.secretbox import KEY_ID_OF
from app.store.tables.columns import ID, NOW, Sent, column, count, flag, index, primary, seconds, text, time


def _states(states: frozenset[State]) -> str:
    return ", ".join(f"'{state}'" for state in sorted(states))


# Whose jobs have an index of their own.
OF_OTHER_TENANTS = f"tenant <> '{DEFAULT_TENANT}'"


class Job(SQLModel, table=True):
    __tablename__ = "jobs"
    __table_args__ = (
        sa.CheckConstraint(f"state IN ({_states(frozenset(State))})", name="jobs_state_is_known"),
        sa.CheckConstraint(
            f"(completed_at IS NOT NULL) = (state IN ({_states(TERMINAL)}))",
            name="jobs_completed_at_iff_terminal",
        ),
        # By queue: newest first, and for retention. The condition, always true, follows only where a queue is named:
        # for others there is no such index. A look-up by id alone would seem cheap in it while there are few queues
        # (PostgreSQL 18 goes from one to the next), and the plan is kept when there are many.
        index("jobs_of_queue", "queue, id", "queue IS NOT NULL"),
        # By tenant, for all but the default one: newest first, however many jobs others have.
        index("jobs_of_tenant", "tenant, id", OF_OTHER_TENANTS),
        # By model the same: jobs without one pay nothing for it.
        index("jobs_by_model", "tenant, model, id", "model IS NOT NULL"),
        # The children of a job, which are cancelled with it.
        index("jobs_parent", "parent_id", "parent_id IS NOT NULL"),
        # Lists by metadata.
        index(
            "jobs_metadata",
            "metadata",
            "metadata IS NOT NULL",
            postgresql_using="gin",
            postgresql_ops={"metadata": "jsonb_path_ops"},
        ),
        # Which keys have sealed secrets, and what each of them has: see secrets.py.
        index("jobs_sealed_by", f"{KEY_ID_OF.format('webhook_secret')}, id", "webhook_secret IS NOT NULL"),
    )

    id: str = primary(ID, sent=Sent())
    tenant: str = text(null=False, sent=Sent(shared=True))
    queue: str = text(null=False, sent=Sent(shared=True))
    lane: str = text(null=False, sent=Sent(shared=True))
    kind: str = text(null=False, sent=Sent(shared=True))
    state: str = text(null=False)
    reason: str | None = text()
    priority: int = count(kind=sa.SmallInteger, sent=Sent(usual=0, shared=True))
    # A caller who waits on the line goes before batch work of the same priority.
    interactive: bool = flag(sent=Sent(usual=False, shared=True))
    rank: int | None = Field(
        default=None,
        sa_column=sa.Column(
            sa.SmallInteger,
            sa.Computed("(priority * 2 + interactive::int)::smallint", persisted=True),
            nullable=False,
        ),
    )
    model: str | None = text(sent=Sent(shared=True))
    target: str | None = text(sent=Sent(shared=True))
    runs_on: str | None = text()
    # Text, not json: what came in goes out, byte for byte.
    payload: str = text(null=False, sent=Sent())
    result: str | None = text()
    error: str | None = text()
    progress: str | None = text()
    usage: str | None = text()
    metadata_: dict[str, str] | None = Field(
        default=None, sa_column=sa.Column("metadata", JSONB, nullable=True, info={"sent": Sent("metadata")})
    )
    attempt: int = count()
    max_attempts: int = count(5, sent=Sent())
    deferrals: int = count()
    backoff_seconds: list[float] | None = column(ARRAY(sa.Float), sent=Sent())
    max_duration_seconds: float | None = seconds(sent=Sent())
    created_at: datetime = time(null=False, server_default=NOW)
    updated_at: datetime = time(null=False, server_default=NOW)
    run_at: datetime = time(null=False, server_default=NOW, sent=Sent())
    # Since when it may be claimed; NULL while something holds it back.
    ready_at: datetime | None = time()
    entered_at: datetime = time(null=False, server_default=NOW)
    started_at: datetime | None = time()
    completed_at: datetime | None = time()
    deadline: datetime | None = time(sent=Sent())
    queued_seconds: float = seconds(null=False)
    loading_seconds: float = seconds(null=False)
    working_seconds: float = seconds(null=False)
    worker: str | None = text()
    lease_token: str | None = text()
    lease_seconds: float | None = seconds()
    lease_expires_at: datetime | None = time()
    # When this attempt must be over; the lease is never renewed past it.
    attempt_expires_at: datetime | None = time()
    cancel_requested_at: datetime | None = time()
    cancel_reason: str | None = text()
    # Fingerprint of the last settlement, so that the very same one sent twice is answered alike.
    settlement: str | None = text()
    concurrency_key: str | None = text(sent=Sent())
    # Drawn from KEY_NUMBERS under the lock of its key, when it comes in and whenever it gets a place of the key.
    key_number: int | None = column(sa.BigInteger)
    # What holds a queued job back beside time: `key` (its key is busy) or `waiting_for` (other jobs).
    gate: str | None = text()
    # Whose turn it takes in a queue with fair_by.
    fair_value: str | None = text(sent=Sent())
    on_dependency_failure: str | None = text(sent=Sent())
    # Some job waits for the end of this one.
    has_dependents: bool = flag()
    parent_id: str | None = column(ID, sent=Sent())
    webhook_url: str | None = text(sent=Sent())
    webhook_events: list[str] | None = column(ARRAY(sa.Text), sent=Sent())
    webhook_secret: bytes | None = column(sa.LargeBinary, sent=Sent("sealed_webhook_secret"))
    request_id: str | None = text(sent=Sent())
    traceparent: str | None = text(sent=Sent())
    tracestate: str | None = text(sent=Sent())
    seq: int = count()
    # The events of its claims, starts and completions, a line each (see app/store/history.py).
    history: str = text(null=False)
    # What payload and result of an LLM job are written in.
    dialect: str = text(null=False, server_default=sa.text("'ollama'"), sent=Sent())
    # Its usage stands in the ledger.
    usage_booked: bool = flag()
    # Whose key submitted it; NULL where there is no authentication, and of jobs that schedules make.
    key_id: str | None = column(ID, sent=Sent(shared=True))
    # What its webhooks look like, where that is not Foreman's own shape.
    webhook_shape: str | None = text(sent=Sent(shared=True))


class Dependency(SQLModel, table=True):
    """One thing that a job still waits for; gone once its end has been followed."""

    __tablename__ = "dependencies"
    __table_args__ = (index("dependencies_depends_on", "depends_on"),)

    job_id: str = primary(ID)
    depends_on: str = primary(ID)
    # The state in which it ended, where it was removed before that.
    outcome: str | None = text()


class IdempotencyKey(SQLModel, table=True):
    """Which jobs a key made, and from which request."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (index("idempotency_keys_age", "created_at"),)

    tenant: str = primary()
    key: str = primary()
    fingerprint: bytes = column(sa.LargeBinary, null=False)
    job_ids: str = text(null=False)
    created_at: datetime = time(null=False, server_default=NOW)
