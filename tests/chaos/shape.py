"""What a cluster consists of, and the rules of its queues, which the checker knows as well."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

TARGET_SLOTS = 4
MAX_RUNNING = 5
RATE = {"limit": 40, "per_seconds": 1}
QUEUES: dict[str, dict[str, Any]] = {
    "keyed": {"key": ["/customer"], "max_active": 1, "max_queued": 50},
    "limited": {"max_running": MAX_RUNNING},
    "rated": {"rate": RATE},
}
SCHEDULE_SECONDS = 2


@dataclass(frozen=True)
class Shape:
    """What a cluster consists of."""

    replicas: Sequence[tuple[str, str]] = (
        ("api-1", "api"),
        ("api-2", "api"),
        ("worker-1", "worker"),
        ("worker-2", "worker"),
        ("all-1", "all"),
    )
    standby: bool = True
    small_disk: bool = True
    # The last replica goes through it, where it is installed.
    pgbouncer: bool = True
    receivers: Sequence[str] = ("ok", "flaky", "drip", "bomb")
    lease_seconds: float = 4.0
    sweep_seconds: float = 1.0
    poll_seconds: float = 0.5
    worker_processes: int = 2
    # The name of a bug that the servers are started with.
    planted: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
