"""The indexes of `jobs` on what changes: the small tables have taken their place (0009), and without them an
update of a job stays on its page."""

from app.store.migrate import build_index, drop_index

revision = "0010"
down_revision = "0009"

QUEUED = "state = 'queued'"
CLAIMABLE = f"{QUEUED} AND ready_at IS NOT NULL"
ASLEEP = f"{QUEUED} AND ready_at IS NULL AND reason = 'target_asleep'"
LIVE = "state IN ('loading', 'queued', 'working')"
KEYED = "concurrency_key IS NOT NULL"

GONE = {
    "jobs_claimable": f"jobs (queue, lane, rank DESC, ready_at, id) WHERE {CLAIMABLE}",
    "jobs_waiting": f"jobs (queue, run_at) WHERE {QUEUED} AND ready_at IS NULL AND gate IS NULL",
    "jobs_gated": f"jobs (queue, gate, concurrency_key, rank DESC, id) WHERE {QUEUED} AND gate IS NOT NULL",
    "jobs_key_holders": "jobs (queue, concurrency_key) "
    f"WHERE {KEYED} AND (state IN ('loading', 'working') OR ({CLAIMABLE}))",
    "jobs_stale_by_key": f"jobs (queue, concurrency_key) WHERE state = 'stale' AND {KEYED}",
    "jobs_fair": "jobs (queue, lane, rank DESC, fair_value, ready_at, id) "
    f"WHERE {CLAIMABLE} AND fair_value IS NOT NULL",
    "jobs_live": f"jobs (state, id) WHERE {LIVE}",
    "jobs_troubled": "jobs (state, id) "
    "WHERE state IN ('cancelled', 'dismissed', 'expired', 'failed', 'skipped', 'stale')",
    "jobs_deadlines": f"jobs (queue, deadline) WHERE deadline IS NOT NULL AND {LIVE}",
    "jobs_concurrency_key": f"jobs (queue, concurrency_key) WHERE {KEYED} AND {LIVE}",
    "jobs_asleep": f"jobs (id) WHERE {ASLEEP}",
    "jobs_asleep_lanes": f"jobs (lane) WHERE {ASLEEP}",
    "jobs_unbooked": "jobs (completed_at) "
    "WHERE usage IS NOT NULL AND NOT usage_booked AND completed_at IS NOT NULL",
}


def upgrade() -> None:
    for name in GONE:
        drop_index(name)


def downgrade() -> None:
    for name, definition in GONE.items():
        build_index(name, definition)
