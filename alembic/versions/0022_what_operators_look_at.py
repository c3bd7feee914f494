"""What operators look at: sessions of the dashboard, who paused a queue, the last ticks of schedules, whose
key submitted a job and what keys use, and how the fleet has fared over time. New tables, and columns without
a value on those that are there: nothing is rewritten."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0022"
down_revision = "0021"

ID = sa.Text(collation="C")
TIME = sa.DateTime(timezone=True)
NOW = sa.text("now()")
ZERO = sa.text("0")

ROLE = "foreman_tenant"
ROLE_EXISTS = f"SELECT 1 FROM pg_roles WHERE rolname = '{ROLE}'"


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default=ZERO)


def _seconds(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Float, nullable=False, server_default=ZERO)


def upgrade() -> None:
    op.add_column("queues", sa.Column("paused_by", sa.Text))
    op.add_column("jobs", sa.Column("key_id", ID))
    op.create_table(
        "sessions",
        sa.Column("hash", sa.LargeBinary, primary_key=True),
        sa.Column("key_id", ID, sa.ForeignKey("api_keys.id", ondelete="CASCADE"), nullable=False),
        sa.Column("created_at", TIME, nullable=False, server_default=NOW),
        sa.Column("expires_at", TIME, nullable=False),
    )
    op.create_table(
        "schedule_ticks",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("at", TIME, primary_key=True),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("job_id", ID),
        sa.Column("error", sa.Text),
    )
    op.create_table(
        "key_usage_days",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("key_id", ID, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("day", sa.Date, primary_key=True),
        *map(_count, ("jobs", "prompt_tokens", "completion_tokens")),
        *map(_seconds, ("load_seconds", "prefill_seconds", "decode_seconds")),
    )
    op.create_table(
        "samples",
        sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", TIME, primary_key=True),
        sa.Column("process", ID, primary_key=True),
        *map(_count, ("enqueued", "done", "failed", "ended", "prompt_tokens", "completion_tokens")),
        sa.Column("wait", ARRAY(sa.BigInteger), nullable=False),
        sa.Column("run", ARRAY(sa.BigInteger), nullable=False),
    )
    op.create_table(
        "queue_samples",
        sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", TIME, primary_key=True),
        sa.Column("queue", sa.Text, primary_key=True),
        *map(_count, ("waiting", "running")),
    )
    op.create_table(
        "daily_counts",
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("of", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("what", sa.Text, primary_key=True),
        _count("count"),
    )
    if op.get_bind().execute(sa.text(ROLE_EXISTS)).scalar():
        op.execute(f"GRANT SELECT ON key_usage_days TO {ROLE}")
        op.execute("CREATE POLICY everybody_else ON key_usage_days USING (true) WITH CHECK (true)")
        op.execute(
            f"CREATE POLICY one_tenant ON key_usage_days AS RESTRICTIVE FOR SELECT TO {ROLE}"
            " USING (tenant = current_setting('foreman.tenant', true))"
        )
        op.execute("ALTER TABLE key_usage_days ENABLE ROW LEVEL SECURITY")


def downgrade() -> None:
    for table in ("daily_counts", "queue_samples", "samples", "key_usage_days", "schedule_ticks", "sessions"):
        op.drop_table(table)
    op.drop_column("jobs", "key_id")
    op.drop_column("queues", "paused_by")
