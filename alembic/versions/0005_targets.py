"""Targets: where models run, what they last said of themselves, and the ledger of what was used."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"

TIME = sa.DateTime(timezone=True)
NOW = sa.text("now()")
ZERO = sa.text("0")

ASLEEP = "state = 'queued' AND ready_at IS NULL AND reason = 'target_asleep'"
UNBOOKED = "usage IS NOT NULL AND NOT usage_booked AND completed_at IS NOT NULL"


def upgrade() -> None:
    op.create_table(
        "targets",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("settings", JSONB),
        sa.Column("token", sa.LargeBinary),
        sa.Column("inventory", JSONB),
        sa.Column("answered_at", TIME),
        sa.Column("asleep_since", TIME),
        sa.Column("warning", sa.Text),
        sa.Column("resident", sa.Text),
        sa.Column("woken_at", TIME),
        sa.Column("wake_tries", sa.Integer, nullable=False, server_default=ZERO),
        sa.Column("created_at", TIME, nullable=False, server_default=NOW),
        sa.Column("updated_at", TIME, nullable=False, server_default=NOW),
    )
    op.create_table(
        "target_holdings",
        sa.Column("target", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, primary_key=True),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("wanted", sa.Boolean, nullable=False, server_default=sa.text("false")),
    )
    op.create_table(
        "usage_days",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("jobs", sa.BigInteger, nullable=False, server_default=ZERO),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False, server_default=ZERO),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False, server_default=ZERO),
        sa.Column("load_seconds", sa.Float, nullable=False, server_default=ZERO),
        sa.Column("prefill_seconds", sa.Float, nullable=False, server_default=ZERO),
        sa.Column("decode_seconds", sa.Float, nullable=False, server_default=ZERO),
    )
    op.add_column("jobs", sa.Column("dialect", sa.Text, nullable=False, server_default=sa.text("'ollama'")))
    op.add_column(
        "jobs", sa.Column("usage_booked", sa.Boolean, nullable=False, server_default=sa.text("false"))
    )
    op.create_index("jobs_asleep", "jobs", ["id"], postgresql_where=sa.text(ASLEEP))
    op.create_index("jobs_unbooked", "jobs", ["completed_at"], postgresql_where=sa.text(UNBOOKED))


def downgrade() -> None:
    for index in ("jobs_unbooked", "jobs_asleep"):
        op.drop_index(index, "jobs")
    op.drop_column("jobs", "usage_booked")
    op.drop_column("jobs", "dialect")
    op.drop_table("usage_days")
    op.drop_table("target_holdings")
    op.drop_table("targets")
