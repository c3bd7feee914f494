"""The tables, declared once. Alembic makes them; the hot path reads and writes them with its own SQL."""

from sqlmodel import SQLModel

from app.store.tables.job import Dependency, IdempotencyKey, Job
from app.store.tables.log import (
    Announcement,
    Artifact,
    ArtifactChunk,
    ArtifactTrash,
    Chatter,
    Delivery,
    Event,
)
from app.store.tables.others import ApiKey, Target, TargetHolding, Tenant, UsageDay, WorkerPresence
from app.store.tables.queue import (
    BulkOperation,
    DepthReservation,
    Queue,
    QueueLimit,
    QueueTotal,
    RetentionWalk,
    Schedule,
)

METADATA = SQLModel.metadata

__all__ = [
    "METADATA",
    "Announcement",
    "ApiKey",
    "Artifact",
    "ArtifactChunk",
    "ArtifactTrash",
    "BulkOperation",
    "Chatter",
    "Delivery",
    "Dependency",
    "DepthReservation",
    "Event",
    "IdempotencyKey",
    "Job",
    "Queue",
    "QueueLimit",
    "QueueTotal",
    "RetentionWalk",
    "Schedule",
    "Target",
    "TargetHolding",
    "Tenant",
    "UsageDay",
    "WorkerPresence",
]
