"""Which master keys have sealed what is stored is found without a walk through all jobs: a server asks that
at its start, and a rotation goes along it. And the URL that wakes a target has a place where it is sealed."""

from alembic import op

from app.store.migrate import build_index, drop_index

revision = "0018"
down_revision = "0017"


# Not only an index: what comes before it is committed by itself, and does nothing when it is run again.
def upgrade() -> None:
    op.execute("ALTER TABLE targets ADD COLUMN IF NOT EXISTS wake_url bytea")
    build_index(
        "jobs_sealed_by",
        "jobs (substring(webhook_secret FROM 2 FOR 4), id) WHERE webhook_secret IS NOT NULL",
    )


# A sealed wake URL is not known to the version before: such a target is not woken until it is set anew.
def downgrade() -> None:
    drop_index("jobs_sealed_by")
    op.execute("ALTER TABLE targets DROP COLUMN IF EXISTS wake_url")
