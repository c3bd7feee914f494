"""Keys whose jobs are counted: those of them that have not ended, or were not looked at since. And a key that
was revoked is remembered as such: the file that it came from may still be there."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"

ID = sa.Text(collation="C")


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("revoked_at", sa.DateTime(timezone=True)))
    op.create_table(
        "key_jobs",
        sa.Column("key_id", ID, sa.ForeignKey("api_keys.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("job_id", ID, primary_key=True),
    )


def downgrade() -> None:
    op.drop_table("key_jobs")
    # To the version before they would be keys again.
    op.execute("DELETE FROM api_keys WHERE revoked_at IS NOT NULL")
    op.drop_column("api_keys", "revoked_at")
