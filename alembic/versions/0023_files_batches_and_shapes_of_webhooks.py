"""OpenAI's files and batches, and the shape that a job's webhooks have. New tables, and a column without a
value on one that is there: nothing is rewritten."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"

ID = sa.Text(collation="C")
TIME = sa.DateTime(timezone=True)
NOW = sa.text("now()")

ROLE = "foreman_tenant"
ROLE_EXISTS = f"SELECT 1 FROM pg_roles WHERE rolname = '{ROLE}'"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("webhook_shape", sa.Text))
    op.create_table(
        "files",
        sa.Column("id", ID, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("location", sa.Text, nullable=False),
        sa.Column("created_at", TIME, nullable=False, server_default=NOW),
        sa.Column("expires_at", TIME),
    )
    op.create_index("files_of_tenant", "files", ["tenant", "id"])
    op.create_index(
        "files_expiry", "files", ["expires_at"], postgresql_where=sa.text("expires_at IS NOT NULL")
    )
    op.create_table(
        "batches",
        sa.Column("job_id", ID, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("input_file_id", ID, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("completion_window", sa.Text, nullable=False),
        sa.Column("total", sa.Integer),
        sa.Column("errors", sa.Text),
        sa.Column("in_progress_at", TIME),
        sa.Column("finalizing_at", TIME),
        sa.Column("finalized_at", TIME),
        sa.Column("output_file_id", ID),
        sa.Column("error_file_id", ID),
        sa.Column("completed", sa.Integer),
        sa.Column("failed", sa.Integer),
    )
    op.create_index("batches_of_tenant", "batches", ["tenant", "job_id"])
    op.create_index(
        "batches_open",
        "batches",
        ["job_id"],
        postgresql_where=sa.text("finalized_at IS NULL"),
    )
    op.create_index(
        "batches_input",
        "batches",
        ["input_file_id"],
        postgresql_where=sa.text("finalized_at IS NULL"),
    )
    if op.get_bind().execute(sa.text(ROLE_EXISTS)).scalar():
        for table in ("files", "batches"):
            op.execute(f"GRANT SELECT ON {table} TO {ROLE}")
            op.execute(f"CREATE POLICY everybody_else ON {table} USING (true) WITH CHECK (true)")
            op.execute(
                f"CREATE POLICY one_tenant ON {table} AS RESTRICTIVE FOR SELECT TO {ROLE}"
                " USING (tenant = current_setting('foreman.tenant', true))"
            )
            op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")


def downgrade() -> None:
    op.drop_table("batches")
    op.drop_table("files")
    op.drop_column("jobs", "webhook_shape")
