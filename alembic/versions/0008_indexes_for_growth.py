"""Indexes for lists by model, lanes that wait for a sleeping target, and deadlines queue by queue."""

from app.store.migrate import build_index, drop_index

revision = "0008"
down_revision = "0007"

HAS_DEADLINE = "deadline IS NOT NULL AND state IN ('loading', 'queued', 'working')"


def upgrade() -> None:
    build_index("jobs_by_model", "jobs (tenant, model, id) WHERE model IS NOT NULL")
    build_index(
        "jobs_asleep_lanes",
        "jobs (lane) WHERE state = 'queued' AND ready_at IS NULL AND reason = 'target_asleep'",
    )
    # An older version that still runs finds what is late by this one, too.
    build_index("jobs_deadlines", f"jobs (queue, deadline) WHERE {HAS_DEADLINE}")
    drop_index("jobs_deadline")


def downgrade() -> None:
    build_index("jobs_deadline", f"jobs (deadline) WHERE {HAS_DEADLINE}")
    for name in ("jobs_deadlines", "jobs_asleep_lanes", "jobs_by_model"):
        drop_index(name)
