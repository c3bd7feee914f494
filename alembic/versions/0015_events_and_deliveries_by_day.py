"""`events` and `deliveries` by the days of their jobs, dropped whole; what is still to be sent in `outbox`.

No row of what is over is copied: the tables as they are become the first partition, for all jobs up to a
bound a day ahead. Each is read once, to see that this is true. What is pending moves to the outbox.

Servers of the version before look for pending deliveries where there are none any more: stop them before this
runs. One that is forgotten cannot write a webhook that nobody would send (`state` has no default).
"""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

ID = sa.Text(collation="C")
TIME = sa.DateTime(timezone=True)
NOW = sa.text("now()")
ZERO = sa.text("0")
BLANK = sa.text("''")

# Rows live for seconds; a lease is to find room on its row's page.
SHORT_LIVED = (
    "fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, "
    "autovacuum_vacuum_cost_delay = 0"
)
# Deleted row by row with their jobs.
PRUNED = (
    "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, "
    "autovacuum_vacuum_insert_scale_factor = 0.1"
)
BUSY = SHORT_LIVED.replace("fillfactor = 50", "fillfactor = 70")
# The janitor makes the further ones; see app/store/partitions.py.
DAYS_AHEAD = 3
FIRST_AHEAD = 1

DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

EVENT = "job_id, seq, type, state, reason, data, at"
OVER = "job_id, seq, type, state, tries, last_status, last_error, created_at, delivered_at, host"
PENDING = "job_id, seq, type, tries, last_status, last_error, created_at, next_try_at, host, leased_until"


def id_floor(moment: datetime) -> str:
    """As app.jobs.ids has it; what was released does not follow when that changes."""
    left = int(moment.timestamp() * 1000)
    return "".join(DIGITS[left >> shift & 31] for shift in range(45, -1, -5)) + "0" * 16


def upgrade() -> None:
    # In the order in which everybody's statements take them.
    for table in ("events", "deliveries"):
        op.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
    create_outbox()
    op.execute("DROP INDEX deliveries_due")
    op.execute("DROP INDEX deliveries_pending_by_job")
    for column in ("leased_until", "next_try_at"):
        op.drop_column("deliveries", column)
    today: datetime = (
        op.get_bind().execute(sa.text("SELECT date_trunc('day', now() AT TIME ZONE 'UTC')")).scalar_one()
    )
    first = today.replace(tzinfo=UTC) + timedelta(days=FIRST_AHEAD)
    for table in ("events", "deliveries"):
        day = f"{table}_{first:%Y%m%d}"
        op.execute(f"ALTER TABLE {table} RENAME TO {day}")
        rename_constraints(table, day)
    op.execute(f"ALTER INDEX deliveries_troubled RENAME TO deliveries_{first:%Y%m%d}_troubled")
    create_events()
    create_deliveries()
    for table in ("events", "deliveries"):
        create_partitions(table, first)


def rename_constraints(old: str, new: str) -> None:
    """Those that are called after their table, which has got a new name. (In PostgreSQL 18 also NOT NULL.)"""
    query = sa.text(
        "SELECT conname FROM pg_constraint "
        "WHERE conrelid = to_regclass(:name) AND starts_with(conname, :prefix)"
    )
    for name in op.get_bind().execute(query, {"name": new, "prefix": f"{old}_"}).scalars().all():
        op.execute(f"ALTER TABLE {new} RENAME CONSTRAINT {name} TO {new}{name.removeprefix(old)}")


def create_outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("job_id", ID, primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False, server_default=ZERO),
        sa.Column("last_status", sa.Integer),
        sa.Column("last_error", sa.Text),
        sa.Column("created_at", TIME, nullable=False, server_default=NOW),
        sa.Column("next_try_at", TIME, nullable=False, server_default=NOW),
        sa.Column("host", sa.Text, nullable=False, server_default=BLANK),
        sa.Column("leased_until", TIME),
    )
    op.execute(f"ALTER TABLE outbox SET ({SHORT_LIVED})")
    op.execute(
        f"""
        WITH pending AS (DELETE FROM deliveries WHERE state = 'pending' RETURNING {PENDING})
        INSERT INTO outbox ({PENDING}) SELECT {PENDING} FROM pending
        """
    )
    op.create_index("outbox_due", "outbox", ["host", "next_try_at"])


def create_events() -> None:
    op.create_table(
        "events",
        sa.Column("job_id", ID, primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("data", sa.Text),
        sa.Column("at", TIME, nullable=False, server_default=NOW),
        postgresql_partition_by="RANGE (job_id)",
    )


def create_deliveries() -> None:
    op.create_table(
        "deliveries",
        sa.Column("job_id", ID, primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("last_status", sa.Integer),
        sa.Column("last_error", sa.Text),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("delivered_at", TIME),
        sa.Column("host", sa.Text, nullable=False),
        postgresql_partition_by="RANGE (job_id)",
    )
    op.create_index(
        "deliveries_troubled",
        "deliveries",
        ["job_id", "seq"],
        postgresql_where=sa.text("state IN ('given_up', 'refused')"),
    )


def create_partitions(table: str, first: datetime) -> None:
    # For jobs of days that have no partition, or none any more: their rows go with their jobs.
    op.execute(f"CREATE TABLE {table}_rest PARTITION OF {table} DEFAULT")
    op.execute(f"ALTER TABLE {table}_rest SET ({PRUNED})")
    days = [first + timedelta(days=n) for n in range(DAYS_AHEAD - FIRST_AHEAD + 1)]
    floors = [id_floor(day + timedelta(days=1)) for day in days]
    for n, day in enumerate(days[1:]):
        op.execute(
            f"CREATE TABLE {table}_{day:%Y%m%d} PARTITION OF {table} "
            f"FOR VALUES FROM ('{floors[n]}') TO ('{floors[n + 1]}')"
        )
    # Jobs whose ids some clock put into the future: each to where it belongs. Normally none.
    names = OVER if table == "deliveries" else EVENT
    op.execute(
        f"""
        WITH ahead AS (DELETE FROM {table}_{first:%Y%m%d} WHERE job_id >= '{floors[0]}' RETURNING {names})
        INSERT INTO {table} ({names}) SELECT {names} FROM ahead
        """
    )
    op.execute(
        f"ALTER TABLE {table} ATTACH PARTITION {table}_{first:%Y%m%d} "
        f"FOR VALUES FROM (MINVALUE) TO ('{floors[0]}')"
    )


def downgrade() -> None:
    """Copies both tables: one cannot be made of several. What belongs to no job any more stays behind."""
    for table in ("events", "deliveries", "outbox"):
        op.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
    op.execute("CREATE TABLE all_events (LIKE events INCLUDING DEFAULTS INCLUDING STORAGE)")
    op.execute(
        f"INSERT INTO all_events ({EVENT}) SELECT {EVENT} FROM events e "
        "WHERE EXISTS (SELECT 1 FROM jobs WHERE id = e.job_id)"
    )
    op.create_table(
        "all_deliveries",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False, server_default=sa.text("'pending'")),
        sa.Column("tries", sa.Integer, nullable=False, server_default=ZERO),
        sa.Column("last_status", sa.Integer),
        sa.Column("last_error", sa.Text),
        sa.Column("created_at", TIME, nullable=False, server_default=NOW),
        sa.Column("next_try_at", TIME, nullable=False, server_default=NOW),
        sa.Column("delivered_at", TIME),
        sa.Column("host", sa.Text, nullable=False, server_default=BLANK),
        sa.Column("leased_until", TIME),
    )
    op.execute(
        f"""
        INSERT INTO all_deliveries ({OVER})
        SELECT {OVER} FROM deliveries d WHERE EXISTS (SELECT 1 FROM jobs WHERE id = d.job_id)
        """
    )
    op.execute(f"INSERT INTO all_deliveries ({PENDING}) SELECT {PENDING} FROM outbox")
    for table in ("events", "deliveries"):
        op.drop_table(table)
        op.execute(f"ALTER TABLE all_{table} RENAME TO {table}")
        rename_constraints(f"all_{table}", table)
        op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {table}_pkey PRIMARY KEY (job_id, seq)")
    op.drop_table("outbox")
    op.execute(f"ALTER TABLE events SET ({PRUNED})")
    op.execute(f"ALTER TABLE deliveries SET ({BUSY})")
    for name, definition in (
        ("deliveries_due", "(host, next_try_at) WHERE state = 'pending' AND host >= ''"),
        ("deliveries_pending_by_job", "(job_id, seq) WHERE state = 'pending' AND seq >= 0"),
        ("deliveries_troubled", "(job_id, seq) WHERE state IN ('given_up', 'refused')"),
    ):
        op.execute(f"CREATE INDEX {name} ON deliveries {definition}")
