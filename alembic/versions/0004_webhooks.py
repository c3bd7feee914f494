"""Webhooks: deliveries know their receiver's host and who is sending them at the moment."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

PENDING = sa.text("state = 'pending'")
PENDING_BY_HOST = sa.text("state = 'pending' AND host >= ''")
PENDING_BY_JOB = sa.text("state = 'pending' AND seq >= 0")
TROUBLED = sa.text("state IN ('given_up', 'refused')")


def upgrade() -> None:
    op.add_column("deliveries", sa.Column("host", sa.Text, nullable=False, server_default=sa.text("''")))
    op.add_column("deliveries", sa.Column("leased_until", sa.DateTime(timezone=True)))
    # What was written before there was a dispatcher is delivered now.
    op.execute(
        """
        UPDATE deliveries AS d
        SET host = coalesce(lower(substring(j.webhook_url FROM '^[^:]+://([^/?#]+)')), '')
        FROM jobs j WHERE j.id = d.job_id AND d.state = 'pending'
        """
    )
    op.drop_index("deliveries_due", "deliveries")
    op.drop_index("deliveries_pending_by_job", "deliveries")
    op.create_index(
        "deliveries_pending_by_job", "deliveries", ["job_id", "seq"], postgresql_where=PENDING_BY_JOB
    )
    op.create_index("deliveries_due", "deliveries", ["host", "next_try_at"], postgresql_where=PENDING_BY_HOST)
    op.create_index("deliveries_troubled", "deliveries", ["job_id", "seq"], postgresql_where=TROUBLED)


def downgrade() -> None:
    op.drop_index("deliveries_troubled", "deliveries")
    op.drop_index("deliveries_due", "deliveries")
    op.drop_index("deliveries_pending_by_job", "deliveries")
    op.create_index("deliveries_due", "deliveries", ["next_try_at"], postgresql_where=PENDING)
    op.create_index("deliveries_pending_by_job", "deliveries", ["job_id", "seq"], postgresql_where=PENDING)
    op.drop_column("deliveries", "leased_until")
    op.drop_column("deliveries", "host")
