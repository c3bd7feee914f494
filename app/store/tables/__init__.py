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
    "columns_of",
]


def columns_of(table: type[SQLModel], alias: str | None = None) -> str:
    """The columns that this version knows, by name, for what a statement returns.

    Never `*` there: a column that a newer version adds would change the result, and PostgreSQL then refuses the
    statements that were prepared before; in a transaction the driver cannot prepare them anew.
    """
    names = [column.name for column in METADATA.tables[str(table.__tablename__)].columns]
    return ", ".join(names if alias is None else [f"{alias}.{name}" for name in names])
