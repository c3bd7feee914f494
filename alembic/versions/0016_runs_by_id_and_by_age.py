"""Runs by their ids, and by their age only for those who ask for that: an id was looked up by walking from
one moment of a claim to the next, once PostgreSQL had counted few runs among very many that are over."""

from alembic import op

revision = "0016"
down_revision = "0015"


# The table has only what runs, so all of it takes a moment.
def upgrade() -> None:
    op.execute("CREATE INDEX running_by_age ON running (claimed_at, id) WHERE claimed_at IS NOT NULL")
    op.execute("ALTER TABLE running DROP CONSTRAINT running_pkey, ADD PRIMARY KEY (id, claimed_at)")
    op.execute("DROP INDEX running_by_id")


def downgrade() -> None:
    op.execute("CREATE INDEX running_by_id ON running (id)")
    op.execute("ALTER TABLE running DROP CONSTRAINT running_pkey, ADD PRIMARY KEY (claimed_at, id)")
    op.execute("DROP INDEX running_by_age")
