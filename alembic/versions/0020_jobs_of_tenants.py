"""The jobs of one tenant in the order of their ids, however many others have. The default tenant, which is
mostly the only one, is found by the ids themselves and pays nothing for it."""

from app.store.migrate import build_index, drop_index

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    build_index("jobs_of_tenant", "jobs (tenant, id) WHERE tenant <> 'default'")


def downgrade() -> None:
    drop_index("jobs_of_tenant")
