"""Chatter in daily partitions, announcements for the feed over all jobs, artifacts larger than a row.

Only new tables and nullable columns: nothing is copied or rewritten, so it takes no time on a full database.
What earlier versions wrote into `events` stays there; readers look into both.
"""

from datetime import datetime, timedelta

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0002"
down_revision = "0001"

ID = sa.Text(collation="C")
TIME = sa.DateTime(timezone=True)
NOW = sa.text("now()")
# The janitor makes the further ones; see app/store/partitions.py.
DAYS_AHEAD = 3


def upgrade() -> None:
    # Better to fail and be tried again than to queue up behind somebody's long transaction, with
    # everybody else behind us.
    op.execute("SET LOCAL lock_timeout = '10s'")
    create_chatter()
    create_announcements()
    create_partitions("chatter")
    create_partitions("announcements")
    extend_artifacts()


def create_chatter() -> None:
    op.create_table(
        "chatter",
        sa.Column("job_id", ID, primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("data", sa.Text),
        sa.Column("at", TIME, primary_key=True, server_default=NOW),
        postgresql_partition_by="RANGE (at)",
    )


def create_announcements() -> None:
    op.execute("CREATE SEQUENCE announcements_id_seq")
    op.create_table(
        "announcements",
        sa.Column(
            "xid",
            sa.BigInteger,
            primary_key=True,
            server_default=sa.text("pg_current_xact_id()::text::bigint"),
        ),
        sa.Column(
            "id", sa.BigInteger, primary_key=True, server_default=sa.text("nextval('announcements_id_seq')")
        ),
        sa.Column("job_ids", ARRAY(ID), nullable=False),
        sa.Column("seqs", ARRAY(sa.Integer), nullable=False),
        sa.Column("at", TIME, primary_key=True, server_default=NOW),
        postgresql_partition_by="RANGE (at)",
    )


def create_partitions(table: str) -> None:
    # Catches what no day was made for; normally it stays empty.
    op.execute(f"CREATE TABLE {table}_rest PARTITION OF {table} DEFAULT")
    today: datetime = (
        op.get_bind().execute(sa.text("SELECT date_trunc('day', now() AT TIME ZONE 'UTC')")).scalar_one()
    )
    for day in (today + timedelta(days=n) for n in range(DAYS_AHEAD + 1)):
        op.execute(
            f"CREATE TABLE {table}_{day:%Y%m%d} PARTITION OF {table} "
            f"FOR VALUES FROM ('{day:%Y-%m-%d}Z') TO ('{day + timedelta(days=1):%Y-%m-%d}Z')"
        )


def extend_artifacts() -> None:
    op.add_column("artifacts", sa.Column("content", sa.Text))
    op.add_column("artifacts", sa.Column("etag", sa.Text))
    op.create_table(
        "artifact_chunks",
        sa.Column("upload_id", ID, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    # Already compressed, as most artifacts are, or not worth the time.
    op.execute("ALTER TABLE artifact_chunks ALTER COLUMN data SET STORAGE EXTERNAL")
    op.create_table(
        "artifact_trash",
        sa.Column("location", sa.Text, primary_key=True),
        sa.Column("due_at", TIME, nullable=False, server_default=NOW),
    )
    op.create_index("artifact_trash_due", "artifact_trash", ["due_at"])


def downgrade() -> None:
    for table in ("artifact_trash", "artifact_chunks", "announcements", "chatter"):
        op.drop_table(table)
    op.execute("DROP SEQUENCE announcements_id_seq")
    op.drop_column("artifacts", "etag")
    op.drop_column("artifacts", "content")
