"""Live jobs are found in small tables of their own, and the state events of a job lie in its row.

Servers of the version before do not know these tables: stop them before this runs. One that is forgotten
cannot take in jobs any more (`history` has no default), so nothing is taken in that nobody would find.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

ID = sa.Text(collation="C")
TIME = sa.DateTime(timezone=True)
FALSE = sa.text("false")

# Their rows live for seconds: dead ones are to be gone before they are many.
SHORT_LIVED = ", ".join(
    (
        "autovacuum_vacuum_scale_factor = 0.02",
        "autovacuum_vacuum_threshold = 1000",
        "autovacuum_vacuum_cost_delay = 0",
    )
)
CLAIMABLE = "ready_at IS NOT NULL"
KEYED = "concurrency_key IS NOT NULL"

INDEXES = (
    ("queued_claimable", "queued (queue, lane, rank DESC, ready_at, id)", CLAIMABLE),
    (
        "queued_fair",
        "queued (queue, lane, (- rank), fair_value, ready_at, id)",
        f"{CLAIMABLE} AND fair_value IS NOT NULL",
    ),
    ("queued_due", "queued (run_at)", "ready_at IS NULL AND gate IS NULL"),
    ("queued_waiting", "queued (queue, run_at)", "ready_at IS NULL AND gate IS NULL"),
    ("queued_gated", "queued (queue, gate, concurrency_key, rank DESC, id)", "gate IS NOT NULL"),
    ("queued_keys", "queued (queue, concurrency_key, id)", KEYED),
    ("queued_key_holders", "queued (queue, concurrency_key)", f"{KEYED} AND {CLAIMABLE}"),
    ("queued_deadlines", "queued (queue, deadline)", "deadline IS NOT NULL"),
    ("queued_asleep", "queued (id)", "asleep"),
    ("queued_asleep_lanes", "queued (lane)", "asleep"),
    ("running_by_id", "running (id)", None),
    ("running_keys", "running (queue, concurrency_key)", KEYED),
    ("running_deadlines", "running (queue, deadline)", "deadline IS NOT NULL"),
    ("running_on_target", "running (runs_on)", "runs_on IS NOT NULL"),
    ("endings_by_state", "endings (state, id)", None),
    ("endings_stale", "endings (queue, concurrency_key)", f"state = 'stale' AND {KEYED}"),
)


def upgrade() -> None:
    op.create_table(
        "queued",
        sa.Column("id", ID, primary_key=True),
        sa.Column("queue", ID, nullable=False),
        sa.Column("lane", ID, nullable=False),
        sa.Column("rank", sa.SmallInteger, nullable=False),
        sa.Column("ready_at", TIME),
        sa.Column("run_at", TIME, nullable=False),
        sa.Column("gate", sa.Text),
        sa.Column("concurrency_key", sa.Text),
        sa.Column("fair_value", ID),
        sa.Column("deadline", TIME),
        sa.Column("asleep", sa.Boolean, nullable=False, server_default=FALSE),
    )
    op.create_table(
        "running",
        sa.Column("claimed_at", TIME, primary_key=True),
        sa.Column("id", ID, primary_key=True),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("worker", sa.Text),
        sa.Column("runs_on", sa.Text),
        sa.Column("concurrency_key", sa.Text),
        sa.Column("deadline", TIME),
    )
    op.create_table(
        "endings",
        sa.Column("id", ID, primary_key=True),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("concurrency_key", sa.Text),
    )
    op.create_table("unbooked_usage", sa.Column("id", ID, primary_key=True))
    for table in ("queued", "running", "unbooked_usage"):
        op.execute(f"ALTER TABLE {table} SET ({SHORT_LIVED})")
    # Nobody moves a job while these are filled; everybody may read.
    op.execute("LOCK TABLE jobs IN SHARE ROW EXCLUSIVE MODE")
    op.execute(
        """
        INSERT INTO queued
        SELECT id, queue, lane, rank, ready_at, run_at, gate, concurrency_key, fair_value, deadline,
               ready_at IS NULL AND reason IS NOT DISTINCT FROM 'target_asleep'
        FROM jobs WHERE state = 'queued'
        """
    )
    op.execute(
        """
        INSERT INTO running
        SELECT coalesce(started_at, now()), id, queue, worker, runs_on, concurrency_key, deadline
        FROM jobs WHERE state IN ('loading', 'working')
        """
    )
    op.execute(
        """
        INSERT INTO endings SELECT id, queue, state, concurrency_key FROM jobs
        WHERE state IN ('cancelled', 'dismissed', 'expired', 'failed', 'skipped', 'stale')
        """
    )
    op.execute(
        """
        INSERT INTO unbooked_usage SELECT id FROM jobs
        WHERE usage IS NOT NULL AND NOT usage_booked AND completed_at IS NOT NULL
        """
    )
    for name, definition, condition in INDEXES:
        op.execute(f"CREATE INDEX {name} ON {definition}" + (f" WHERE {condition}" if condition else ""))
    # '-': its events stand in the table of events. Without a default from here on.
    op.execute("ALTER TABLE jobs ADD COLUMN history text NOT NULL DEFAULT '-'")
    op.execute("ALTER TABLE jobs ALTER COLUMN history DROP DEFAULT")
    # Room for a second version of each row on its page.
    op.execute("ALTER TABLE jobs SET (fillfactor = 40)")
    # Lists of a thousand ids for each batch, kept for two days: to compress them costs more than they do.
    op.execute(
        "ALTER TABLE announcements ALTER job_ids SET STORAGE EXTERNAL, ALTER seqs SET STORAGE EXTERNAL"
    )


def downgrade() -> None:
    op.execute("LOCK TABLE jobs IN SHARE ROW EXCLUSIVE MODE")
    op.execute(
        """
        INSERT INTO events (job_id, seq, type, state, reason, at)
        SELECT id, 1, 'queued', 'queued', 'enqueue', created_at FROM jobs
        WHERE history <> '-' AND NOT starts_with(history, '1 ')
        """
    )
    op.execute(
        """
        INSERT INTO events (job_id, seq, type, state, reason, data, at)
        SELECT id, part[1]::int, entered.state, entered.state, part[2], part[4],
            timestamptz 'epoch' + part[3]::bigint * interval '1 microsecond'
        FROM jobs
        CROSS JOIN LATERAL regexp_matches(history, '^([0-9]+) ([a-z]+) ([0-9]+)(?: (.*))?$', 'gn') AS part
        CROSS JOIN LATERAL (
            SELECT CASE part[2] WHEN 'enqueue' THEN 'queued' WHEN 'claim' THEN 'loading'
                WHEN 'start' THEN 'working' ELSE 'done' END AS state
        ) AS entered
        WHERE history NOT IN ('', '-')
        """
    )
    op.execute(
        "ALTER TABLE announcements ALTER job_ids SET STORAGE EXTENDED, ALTER seqs SET STORAGE EXTENDED"
    )
    op.execute("ALTER TABLE jobs SET (fillfactor = 70)")
    op.drop_column("jobs", "history")
    for table in ("unbooked_usage", "endings", "running", "queued"):
        op.drop_table(table)
