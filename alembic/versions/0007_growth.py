"""Growth: retention for every queue, and what was pruned is vacuumed before it piles up."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

ID = sa.Text(collation="C")
TIME = sa.DateTime(timezone=True)
NOW = sa.text("now()")

# Appended to at one end and pruned at the other: a fiftieth of a large table is much already.
PRUNED = (
    "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, "
    "autovacuum_vacuum_insert_scale_factor = 0.1"
)
PRUNED_TABLES = ("events", "idempotency_keys", "artifacts", "artifact_chunks")


def upgrade() -> None:
    op.create_table(
        "retention_walks",
        sa.Column("queue", sa.Text, primary_key=True),
        sa.Column("horizon_seconds", sa.Float, nullable=False),
        sa.Column("after_id", ID, nullable=False, server_default=sa.text("''")),
        sa.Column("began_at", TIME, nullable=False, server_default=NOW),
        sa.Column("due_at", TIME, nullable=False, server_default=NOW),
    )
    op.create_index("retention_walks_due", "retention_walks", ["due_at"])
    for table in PRUNED_TABLES:
        op.execute(f"ALTER TABLE {table} SET ({PRUNED})")


def downgrade() -> None:
    op.execute("ALTER TABLE events SET (autovacuum_vacuum_scale_factor = 0.05)")
    op.execute("ALTER TABLE events RESET (autovacuum_vacuum_threshold)")
    for table in PRUNED_TABLES[1:]:
        op.execute(
            f"ALTER TABLE {table} RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, "
            "autovacuum_vacuum_insert_scale_factor)"
        )
    op.drop_table("retention_walks")
