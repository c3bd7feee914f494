"""The core: tenants, keys, queues, jobs, their events, outbox, artifacts and the workers' presence."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0001"
down_revision = None

ID = sa.Text(collation="C")
TIME = sa.DateTime(timezone=True)
NOW = sa.text("now()")
ZERO = sa.text("0")
EMPTY = sa.text("'{}'::jsonb")

LIVE = "state IN ('loading', 'queued', 'working')"
TERMINAL = "state IN ('cancelled', 'dismissed', 'done', 'expired', 'failed', 'skipped', 'stale')"
TROUBLED = "state IN ('cancelled', 'dismissed', 'expired', 'failed', 'skipped', 'stale')"

# Rows that are updated often get room on their page, and are vacuumed before they pile up.
BUSY = (
    "fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, "
    "autovacuum_vacuum_cost_delay = 0"
)
# Append-only until pruned: what matters is that their visibility map and statistics keep up.
APPENDED = "autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_scale_factor = 0.05"


def created_at() -> sa.Column:
    return sa.Column("created_at", TIME, nullable=False, server_default=NOW)


def upgrade() -> None:
    op.create_table("tenants", sa.Column("name", sa.Text, primary_key=True), created_at())
    op.execute("INSERT INTO tenants (name) VALUES ('default')")
    op.create_table(
        "api_keys",
        sa.Column("id", ID, primary_key=True),
        sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.name"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("scopes", ARRAY(sa.Text), nullable=False),
        sa.Column("limits", JSONB, nullable=False, server_default=EMPTY),
        created_at(),
        sa.Column("expires_at", TIME),
        sa.Column("last_used_at", TIME),
    )
    op.create_table(
        "queues",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("settings", JSONB, nullable=False, server_default=EMPTY),
        sa.Column("paused_at", TIME),
        created_at(),
        sa.Column("updated_at", TIME, nullable=False, server_default=NOW),
    )
    create_jobs()
    op.create_table(
        "events",
        sa.Column("job_id", ID, primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("data", sa.Text),
        sa.Column("at", TIME, nullable=False, server_default=NOW),
    )
    op.create_table(
        "deliveries",
        sa.Column("job_id", ID, primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False, server_default=sa.text("'pending'")),
        sa.Column("tries", sa.Integer, nullable=False, server_default=ZERO),
        sa.Column("last_status", sa.Integer),
        sa.Column("last_error", sa.Text),
        created_at(),
        sa.Column("next_try_at", TIME, nullable=False, server_default=NOW),
        sa.Column("delivered_at", TIME),
    )
    pending = sa.text("state = 'pending'")
    op.create_index("deliveries_due", "deliveries", ["next_try_at"], postgresql_where=pending)
    op.create_index("deliveries_pending_by_job", "deliveries", ["job_id", "seq"], postgresql_where=pending)
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("fingerprint", sa.LargeBinary, nullable=False),
        sa.Column("job_ids", sa.Text, nullable=False),
        created_at(),
    )
    op.create_index("idempotency_keys_age", "idempotency_keys", ["created_at"])
    op.create_table(
        "artifacts",
        sa.Column("job_id", ID, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("content_type", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary),
        sa.Column("location", sa.Text),
        created_at(),
    )
    op.create_table(
        "workers",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("queues", ARRAY(sa.Text), nullable=False),
        sa.Column("kinds", ARRAY(sa.Text), nullable=False),
        sa.Column("concurrency", sa.Integer, nullable=False, server_default=ZERO),
        sa.Column("version", sa.Text),
        sa.Column("started_at", TIME, nullable=False, server_default=NOW),
        sa.Column("last_seen_at", TIME, nullable=False, server_default=NOW),
    )
    op.execute(f"ALTER TABLE jobs SET ({BUSY})")
    op.execute(f"ALTER TABLE deliveries SET ({BUSY})")
    op.execute(f"ALTER TABLE events SET ({APPENDED})")


def create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", ID, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("priority", sa.SmallInteger, nullable=False, server_default=ZERO),
        sa.Column("interactive", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column(
            "rank",
            sa.SmallInteger,
            sa.Computed("(priority * 2 + interactive::int)::smallint", persisted=True),
            nullable=False,
        ),
        sa.Column("model", sa.Text),
        sa.Column("target", sa.Text),
        sa.Column("runs_on", sa.Text),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("result", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("progress", sa.Text),
        sa.Column("usage", sa.Text),
        sa.Column("metadata", JSONB),
        sa.Column("attempt", sa.Integer, nullable=False, server_default=ZERO),
        sa.Column("max_attempts", sa.Integer, nullable=False, server_default=sa.text("5")),
        sa.Column("deferrals", sa.Integer, nullable=False, server_default=ZERO),
        sa.Column("backoff_seconds", ARRAY(sa.Float)),
        sa.Column("max_duration_seconds", sa.Float),
        created_at(),
        sa.Column("updated_at", TIME, nullable=False, server_default=NOW),
        sa.Column("run_at", TIME, nullable=False, server_default=NOW),
        sa.Column("ready_at", TIME),
        sa.Column("entered_at", TIME, nullable=False, server_default=NOW),
        sa.Column("started_at", TIME),
        sa.Column("completed_at", TIME),
        sa.Column("deadline", TIME),
        sa.Column("queued_seconds", sa.Float, nullable=False, server_default=ZERO),
        sa.Column("loading_seconds", sa.Float, nullable=False, server_default=ZERO),
        sa.Column("working_seconds", sa.Float, nullable=False, server_default=ZERO),
        sa.Column("worker", sa.Text),
        sa.Column("lease_token", sa.Text),
        sa.Column("lease_seconds", sa.Float),
        sa.Column("lease_expires_at", TIME),
        sa.Column("attempt_expires_at", TIME),
        sa.Column("cancel_requested_at", TIME),
        sa.Column("cancel_reason", sa.Text),
        sa.Column("settlement", sa.Text),
        sa.Column("concurrency_key", sa.Text),
        sa.Column("parent_id", ID),
        sa.Column("webhook_url", sa.Text),
        sa.Column("webhook_events", ARRAY(sa.Text)),
        sa.Column("webhook_secret", sa.LargeBinary),
        sa.Column("request_id", sa.Text),
        sa.Column("traceparent", sa.Text),
        sa.Column("tracestate", sa.Text),
        sa.Column("seq", sa.Integer, nullable=False, server_default=ZERO),
        sa.CheckConstraint(f"{LIVE} OR {TERMINAL}", name="jobs_state_is_known"),
        sa.CheckConstraint(
            f"(completed_at IS NOT NULL) = ({TERMINAL})", name="jobs_completed_at_iff_terminal"
        ),
    )
    index_jobs(
        "jobs_claimable",
        ["queue", "lane", sa.text("rank DESC"), "ready_at", "id"],
        "state = 'queued' AND ready_at IS NOT NULL",
    )
    index_jobs("jobs_waiting", ["run_at"], "state = 'queued' AND ready_at IS NULL")
    index_jobs("jobs_live", ["state", "id"], LIVE)
    index_jobs("jobs_troubled", ["state", "id"], TROUBLED)
    op.create_index("jobs_by_queue", "jobs", ["queue", "id"])
    index_jobs("jobs_deadline", ["deadline"], f"deadline IS NOT NULL AND {LIVE}")
    index_jobs("jobs_parent", ["parent_id"], "parent_id IS NOT NULL")
    index_jobs(
        "jobs_concurrency_key", ["queue", "concurrency_key"], f"concurrency_key IS NOT NULL AND {LIVE}"
    )
    op.create_index(
        "jobs_metadata",
        "jobs",
        ["metadata"],
        postgresql_using="gin",
        postgresql_ops={"metadata": "jsonb_path_ops"},
        postgresql_where=sa.text("metadata IS NOT NULL"),
    )


def index_jobs(name: str, columns: list[object], where: str) -> None:
    op.create_index(name, "jobs", columns, postgresql_where=sa.text(where))


def downgrade() -> None:
    for table in (
        "workers",
        "artifacts",
        "idempotency_keys",
        "deliveries",
        "events",
        "jobs",
        "queues",
        "api_keys",
        "tenants",
    ):
        op.drop_table(table)
