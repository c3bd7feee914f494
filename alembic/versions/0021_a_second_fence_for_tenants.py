"""A role that sees one tenant's rows only, by row-level security: what is read for a caller can be read as it
(FOREMAN_ROW_SECURITY). For everybody else, the owner and whoever reads the tables, nothing changes. Where the
role that migrates may not make roles, there is no such fence, and the server says so."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"

ROLE = "foreman_tenant"
TENANT = "current_setting('foreman.tenant', true)"
OWN = f"tenant = {TENANT}"
# Of what has no tenant itself, what belongs to a job that is seen.
OF_JOB = "EXISTS (SELECT 1 FROM jobs WHERE jobs.id = job_id)"
FENCED = {
    "jobs": OWN,
    "schedules": OWN,
    "bulk_operations": OWN,
    "usage_days": OWN,
    "workers": OWN,
    "artifacts": OF_JOB,
    "deliveries": OF_JOB,
    "outbox": OF_JOB,
}
# Ids and little else, needed to find the rest.
OPEN = ("running", "unbooked_usage")

# Other databases of the same server may have made it; and two of them at the same time.
MAKE_ROLE = f"""
DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '{ROLE}') THEN
        CREATE ROLE {ROLE} NOLOGIN NOINHERIT;
    END IF;
    EXECUTE format('GRANT {ROLE} TO %I', current_user);
EXCEPTION
    WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
END $$
"""
EXISTS = f"SELECT 1 FROM pg_roles WHERE rolname = '{ROLE}'"


def upgrade() -> None:
    op.execute(MAKE_ROLE)
    if not op.get_bind().execute(sa.text(EXISTS)).scalar():
        return
    for table, condition in FENCED.items():
        op.execute(f"GRANT SELECT ON {table} TO {ROLE}")
        op.execute(f"CREATE POLICY everybody_else ON {table} USING (true) WITH CHECK (true)")
        op.execute(
            f"CREATE POLICY one_tenant ON {table} AS RESTRICTIVE FOR SELECT TO {ROLE} USING ({condition})"
        )
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    for table in OPEN:
        op.execute(f"GRANT SELECT ON {table} TO {ROLE}")


# The role stays: another database of the same server may need it.
def downgrade() -> None:
    for table in FENCED:
        op.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
        op.execute(f"DROP POLICY IF EXISTS one_tenant ON {table}")
        op.execute(f"DROP POLICY IF EXISTS everybody_else ON {table}")
    if op.get_bind().execute(sa.text(EXISTS)).scalar():
        for table in (*FENCED, *OPEN):
            op.execute(f"REVOKE ALL ON {table} FROM {ROLE}")
