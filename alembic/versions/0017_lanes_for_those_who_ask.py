"""The order of a lane only for those who ask for it: values of a fair queue were picked out of all that had
waited in their lane, once PostgreSQL had counted few jobs among very many that are gone."""

from app.store.migrate import build_index, drop_index

revision = "0017"
down_revision = "0016"

LANES = "queued (queue, lane, rank DESC, ready_at, id) WHERE ready_at IS NOT NULL AND"


def upgrade() -> None:
    build_index("queued_in_lanes", f"{LANES} rank >= -32768")
    drop_index("queued_by_lane")


def downgrade() -> None:
    build_index("queued_by_lane", f"{LANES} lane IS NOT NULL")
    drop_index("queued_in_lanes")
