"""Queues with manners: gates, keys, limits, fairness, dependencies, schedules, bulk operations."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"

ID = sa.Text(collation="C")
TIME = sa.DateTime(timezone=True)
NOW = sa.text("now()")
ZERO = sa.text("0")

CLAIMABLE = "state = 'queued' AND ready_at IS NOT NULL"
HOLDING = f"concurrency_key IS NOT NULL AND (state IN ('loading', 'working') OR ({CLAIMABLE}))"


def upgrade() -> None:
    op.add_column("queues", sa.Column("reconciled_at", TIME))
    op.create_index(
        "queues_configured",
        "queues",
        ["name"],
        postgresql_where=sa.text("settings <> '{}'::jsonb OR paused_at IS NOT NULL"),
    )
    op.add_column("jobs", sa.Column("gate", sa.Text))
    op.add_column("jobs", sa.Column("fair_value", sa.Text))
    op.add_column("jobs", sa.Column("on_dependency_failure", sa.Text))
    op.add_column(
        "jobs", sa.Column("has_dependents", sa.Boolean, nullable=False, server_default=sa.text("false"))
    )
    index_jobs()
    # A backlog behind two keys makes statistics that say: every key has half of the table. Then a look-up of
    # any other key is planned as a scan of it all. Whoever asks by key or by value means few rows.
    for column in ("concurrency_key", "fair_value"):
        op.execute(f"ALTER TABLE jobs ALTER COLUMN {column} SET (n_distinct = -0.9)")
    op.create_table(
        "dependencies",
        sa.Column("job_id", ID, primary_key=True),
        sa.Column("depends_on", ID, primary_key=True),
    )
    op.create_index("dependencies_depends_on", "dependencies", ["depends_on"])
    op.create_table(
        "queue_limits",
        sa.Column("queue", sa.Text, primary_key=True),
        sa.Column("tokens", sa.Float, nullable=False),
        sa.Column("refilled_at", TIME, nullable=False, server_default=NOW),
    )
    create_tallies()
    create_schedules()
    create_bulk_operations()


def index_jobs() -> None:
    op.drop_index("jobs_waiting", "jobs")
    indexes: dict[str, tuple[list[object], str]] = {
        "jobs_waiting": (["queue", "run_at"], "state = 'queued' AND ready_at IS NULL AND gate IS NULL"),
        "jobs_gated": (
            ["queue", "gate", "concurrency_key", sa.text("rank DESC"), "id"],
            "state = 'queued' AND gate IS NOT NULL",
        ),
        "jobs_key_holders": (["queue", "concurrency_key"], HOLDING),
        "jobs_stale_by_key": (
            ["queue", "concurrency_key"],
            "state = 'stale' AND concurrency_key IS NOT NULL",
        ),
        "jobs_fair": (
            ["queue", "lane", sa.text("rank DESC"), "fair_value", "ready_at", "id"],
            f"{CLAIMABLE} AND fair_value IS NOT NULL",
        ),
    }
    for name, (columns, where) in indexes.items():
        op.create_index(name, "jobs", columns, postgresql_where=sa.text(where))


def create_tallies() -> None:
    op.create_table(
        "queue_deltas",
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("jobs", sa.BigInteger, nullable=False),
        sa.Column("at", TIME, nullable=False, server_default=NOW),
    )
    op.create_table(
        "queue_totals",
        sa.Column("queue", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, primary_key=True),
        sa.Column("jobs", sa.BigInteger, nullable=False),
    )
    op.execute(
        "INSERT INTO queue_totals (queue, state, jobs) "
        "SELECT queue, state, count(*) FROM jobs WHERE completed_at IS NOT NULL GROUP BY queue, state"
    )
    # Written all the time, folded into the totals every few seconds, and read whole: kept small by vacuum.
    op.execute(
        "ALTER TABLE queue_deltas SET (autovacuum_vacuum_scale_factor = 0, "
        "autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0)"
    )


def create_schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("cron", sa.Text, nullable=False),
        sa.Column("timezone", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("next_at", TIME, nullable=False),
        sa.Column("last_at", TIME),
        sa.Column("last_job_id", ID),
        sa.Column("last_outcome", sa.Text),
        sa.Column("last_error", sa.Text),
        sa.Column("created_at", TIME, nullable=False, server_default=NOW),
        sa.Column("updated_at", TIME, nullable=False, server_default=NOW),
    )
    op.create_index("schedules_next", "schedules", ["next_at"])


def create_bulk_operations() -> None:
    op.create_table(
        "bulk_operations",
        sa.Column("id", ID, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("filter", JSONB, nullable=False),
        sa.Column("state", sa.Text, nullable=False, server_default=sa.text("'running'")),
        sa.Column("matched", sa.BigInteger),
        sa.Column("moved", sa.BigInteger, nullable=False, server_default=ZERO),
        sa.Column("passed", sa.BigInteger, nullable=False, server_default=ZERO),
        sa.Column("after_id", ID, nullable=False, server_default=sa.text("''")),
        sa.Column("until_id", ID, nullable=False),
        sa.Column("created_at", TIME, nullable=False, server_default=NOW),
        sa.Column("updated_at", TIME, nullable=False, server_default=NOW),
        sa.Column("completed_at", TIME),
    )
    op.create_index(
        "bulk_operations_running",
        "bulk_operations",
        ["updated_at"],
        postgresql_where=sa.text("state = 'running'"),
    )


def downgrade() -> None:
    for table in (
        "bulk_operations",
        "schedules",
        "queue_totals",
        "queue_deltas",
        "queue_limits",
        "dependencies",
    ):
        op.drop_table(table)
    for name in ("waiting", "gated", "key_holders", "stale_by_key", "fair"):
        op.drop_index(f"jobs_{name}", "jobs")
    for column in ("gate", "fair_value", "on_dependency_failure", "has_dependents"):
        op.drop_column("jobs", column)
    op.drop_index("queues_configured", "queues")
    op.drop_column("queues", "reconciled_at")
    op.create_index(
        "jobs_waiting", "jobs", ["run_at"], postgresql_where=sa.text("state = 'queued' AND ready_at IS NULL")
    )
