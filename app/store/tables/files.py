"""Files that callers keep here, and the batches that are made of them."""

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import SQLModel

from app.store.tables.columns import ID, NOW, column, index, primary, text, time


class File(SQLModel, table=True):
    """Bytes of a caller's, or what a batch came to. They lie where artifacts do, and end in the same trash."""

    __tablename__ = "files"
    __table_args__ = (
        index("files_of_tenant", "tenant, id"),
        index("files_expiry", "expires_at", "expires_at IS NOT NULL"),
    )

    id: str = primary(ID)
    tenant: str = text(null=False)
    filename: str = text(null=False)
    purpose: str = text(null=False)
    size: int = column(sa.BigInteger, null=False)
    location: str = text(null=False)
    created_at: datetime = time(null=False, server_default=NOW)
    expires_at: datetime | None = time()


class Batch(SQLModel, table=True):
    """A batch is a job, and its lines are that job's children. Here stands what a job has no column for."""

    __tablename__ = "batches"
    __table_args__ = (
        index("batches_of_tenant", "tenant, job_id"),
        index("batches_open", "job_id", "finalized_at IS NULL"),
        # A file that a batch still reads cannot be deleted.
        index("batches_input", "input_file_id", "finalized_at IS NULL"),
    )

    job_id: str = primary(ID)
    tenant: str = text(null=False)
    input_file_id: str = column(ID, null=False)
    endpoint: str = text(null=False)
    completion_window: str = text(null=False)
    # How many lines it has; NULL until they were checked.
    total: int | None = column(sa.Integer)
    # What is wrong with the lines of one that failed, as JSON.
    errors: str | None = text()
    in_progress_at: datetime | None = time()
    finalizing_at: datetime | None = time()
    # Its files are written: from here on nothing of it changes.
    finalized_at: datetime | None = time()
    output_file_id: str | None = column(ID)
    error_file_id: str | None = column(ID)
    # How many lines did well and how many did not, once all of them have ended.
    completed: int | None = column(sa.Integer)
    failed: int | None = column(sa.Integer)
