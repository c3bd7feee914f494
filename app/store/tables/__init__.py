"""The tables, declared once. Alembic makes them; the hot path reads and writes them with its own SQL."""

from sqlmodel import SQLModel

# Imported for what they declare.
from app.store.tables import files, job, live, log, measures, others, queue  # noqa: F401

METADATA = SQLModel.metadata
