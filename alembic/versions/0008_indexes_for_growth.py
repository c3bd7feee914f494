"""Lists by model, and the lanes that wait for a sleeping target: indexes, built beside running servers."""

from alembic import op

from app.store.migrate import build_index

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    build_index("jobs_by_model", "jobs (tenant, model, id) WHERE model IS NOT NULL")
    build_index(
        "jobs_asleep_lanes",
        "jobs (lane) WHERE state = 'queued' AND ready_at IS NULL AND reason = 'target_asleep'",
    )


def downgrade() -> None:
    op.drop_index("jobs_asleep_lanes", "jobs")
    op.drop_index("jobs_by_model", "jobs")
