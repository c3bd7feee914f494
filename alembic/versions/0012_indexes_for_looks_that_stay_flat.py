"""The jobs of a key by number (0011), deadlines by time alone: a look begins where the last one ended."""

from app.store.migrate import build_index, drop_index

revision = "0012"
down_revision = "0011"

KEYED = "concurrency_key IS NOT NULL"
BY_NUMBER = "(queue, concurrency_key, key_number)"
LATE = "deadline IS NOT NULL"

NEW = {
    "queued_key_places": f"queued {BY_NUMBER} WHERE {KEYED} AND ready_at IS NOT NULL",
    "queued_key_waiting": f"queued {BY_NUMBER} WHERE {KEYED} AND ready_at IS NULL",
    "running_key_places": f"running {BY_NUMBER} WHERE {KEYED}",
    "queued_late": f"queued (deadline) WHERE {LATE}",
    "running_late": f"running (deadline) WHERE {LATE}",
}
GONE = {
    "queued_key_holders": f"queued (queue, concurrency_key) WHERE {KEYED} AND ready_at IS NOT NULL",
    "queued_keys": f"queued (queue, concurrency_key, id) WHERE {KEYED}",
    "running_keys": f"running (queue, concurrency_key) WHERE {KEYED}",
}


def upgrade() -> None:
    for name, definition in NEW.items():
        build_index(name, definition)
    for name in GONE:
        drop_index(name)


def downgrade() -> None:
    for name, definition in GONE.items():
        build_index(name, definition)
    for name in NEW:
        drop_index(name)
