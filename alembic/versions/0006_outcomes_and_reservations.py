"""What a removed job leaves to those who wait for it, and what a process reserves of a queue's depth."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("dependencies", sa.Column("outcome", sa.Text))
    op.create_table(
        "depth_reservations",
        sa.Column("queue", sa.Text, primary_key=True),
        sa.Column("token", sa.Text, primary_key=True),
        sa.Column("jobs", sa.Integer, nullable=False),
        sa.Column("reserved_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
    )


def downgrade() -> None:
    op.drop_table("depth_reservations")
    op.drop_column("dependencies", "outcome")
