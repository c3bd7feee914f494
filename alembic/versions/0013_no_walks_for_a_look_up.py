"""Indexes by queue, by state and by lane, only for those who name one: PostgreSQL 18 would otherwise look up
what it knows the rest of in them, too, by walking from one value to the next."""

from app.store.migrate import build_index, drop_index

revision = "0013"
down_revision = "0012"

CLAIMABLE = "queued (queue, lane, rank DESC, ready_at, id) WHERE ready_at IS NOT NULL"


def upgrade() -> None:
    build_index("jobs_of_queue", "jobs (queue, id) WHERE queue IS NOT NULL")
    build_index("endings_of_state", "endings (state, id) WHERE state IS NOT NULL")
    build_index("queued_by_lane", f"{CLAIMABLE} AND lane IS NOT NULL")
    drop_index("jobs_by_queue")
    drop_index("endings_by_state")
    drop_index("queued_claimable")


def downgrade() -> None:
    build_index("jobs_by_queue", "jobs (queue, id)")
    build_index("endings_by_state", "endings (state, id)")
    build_index("queued_claimable", CLAIMABLE)
    drop_index("jobs_of_queue")
    drop_index("endings_of_state")
    drop_index("queued_by_lane")
