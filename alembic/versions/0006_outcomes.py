"""Dependencies keep the outcome of a job that was removed before those who wait for it were told."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("dependencies", sa.Column("outcome", sa.Text))


def downgrade() -> None:
    op.drop_column("dependencies", "outcome")
