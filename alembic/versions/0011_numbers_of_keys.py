"""A number for every job with a key, drawn under the lock of the key: who was counted need not be again.

Nothing is filled in: a job without a number is counted by everybody, until it gets a place or ends.
Servers of the version before draw none, and are stopped before this runs, as for 0009.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

TABLES = ("jobs", "queued", "running")


def upgrade() -> None:
    op.execute("CREATE SEQUENCE key_numbers")
    for table in TABLES:
        op.add_column(table, sa.Column("key_number", sa.BigInteger))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "key_number")
    op.execute("DROP SEQUENCE key_numbers")
