"""Indexes by queue and by state, only for those who name one: PostgreSQL 18 would otherwise look up a
single id in them, too, by walking from one value to the next."""

from app.store.migrate import build_index, drop_index

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    build_index("jobs_of_queue", "jobs (queue, id) WHERE queue IS NOT NULL")
    build_index("endings_of_state", "endings (state, id) WHERE state IS NOT NULL")
    drop_index("jobs_by_queue")
    drop_index("endings_by_state")


def downgrade() -> None:
    build_index("jobs_by_queue", "jobs (queue, id)")
    build_index("endings_by_state", "endings (state, id)")
    drop_index("jobs_of_queue")
    drop_index("endings_of_state")
