"""What happened to jobs, and who is told: append-heavy, on the same statement as the state change they tell of."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Field, SQLModel

from app.store.tables.columns import BLANK, ID, NOW, TIME, column, count, index, primary, text, time


class Event(SQLModel, table=True):
    """The append-only log of a job; `seq` is given out under the job row's lock, so it has no gaps.

    By the day of the job, which its id tells: a day goes whole when its jobs are gone (see partitions.py). Rows of jobs
    that retention has removed are there until then: read it through the job, always."""

    __tablename__ = "events"
    __table_args__ = ({"postgresql_partition_by": "RANGE (job_id)"},)

    job_id: str = primary(ID)
    seq: int = primary(sa.Integer)
    type: str = text(null=False)
    state: str = text(null=False)
    reason: str | None = text()
    data: str | None = text()
    at: datetime = time(null=False, server_default=NOW)


class Chatter(SQLModel, table=True):
    """What runs say (output, progress, logs), by day: old days are dropped, whatever became of the job."""

    __tablename__ = "chatter"
    __table_args__ = ({"postgresql_partition_by": "RANGE (at)"},)

    job_id: str = primary(ID)
    seq: int = primary(sa.Integer)
    type: str = text(null=False)
    state: str = text(null=False)
    reason: str | None = text()
    data: str | None = text()
    at: datetime = primary(TIME, server_default=NOW)


ANNOUNCEMENT_IDS = sa.Sequence("announcements_id_seq", metadata=SQLModel.metadata)


class Announcement(SQLModel, table=True):
    """Which events one statement wrote, by its transaction: read in the order in which they became certain."""

    __tablename__ = "announcements"
    __table_args__ = ({"postgresql_partition_by": "RANGE (at)"},)

    xid: int = Field(
        sa_column=sa.Column(
            sa.BigInteger, primary_key=True, server_default=sa.text("pg_current_xact_id()::text::bigint")
        )
    )
    id: int = Field(
        sa_column=sa.Column(
            sa.BigInteger, ANNOUNCEMENT_IDS, primary_key=True, server_default=ANNOUNCEMENT_IDS.next_value()
        )
    )
    job_ids: list[str] = column(ARRAY(ID), null=False)
    seqs: list[int] = column(ARRAY(sa.Integer), null=False)
    at: datetime = primary(TIME, server_default=NOW)
    # How many events of each of the jobs, of which these seqs are the last.
    events: int = count(1, sa.SmallInteger)


class Outbox(SQLModel, table=True):
    """The webhooks that are still to be sent: written in the same commit as the state change."""

    __tablename__ = "outbox"
    # One receiver's part of the index at a time: a backlog of one never stands in another's way.
    __table_args__ = (index("outbox_due", "host, next_try_at"),)

    job_id: str = primary(ID)
    seq: int = primary(sa.Integer)
    type: str = text(null=False)
    tries: int = count()
    last_status: int | None = column(sa.Integer)
    last_error: str | None = text()
    created_at: datetime = time(null=False, server_default=NOW)
    next_try_at: datetime = time(null=False, server_default=NOW)
    # Host and port of the receiver, as they stand in the job's URL.
    host: str = text(null=False, server_default=BLANK)
    # Being sent now, by a process that renews this; no index knows it, so claiming stays on the row's page.
    leased_until: datetime | None = time()


class Delivery(SQLModel, table=True):
    """The webhooks that are over, one way or the other: the record of them. By day, as `events` are."""

    __tablename__ = "deliveries"
    __table_args__ = (
        index("deliveries_troubled", "job_id, seq", "state IN ('given_up', 'refused')"),
        {"postgresql_partition_by": "RANGE (job_id)"},
    )

    job_id: str = primary(ID)
    seq: int = primary(sa.Integer)
    type: str = text(null=False)
    # Without a default: a server of a version that had what is pending in here cannot write what nobody would send.
    state: str = text(null=False)
    tries: int = column(sa.Integer, null=False)
    last_status: int | None = column(sa.Integer)
    last_error: str | None = text()
    created_at: datetime = time(null=False)
    delivered_at: datetime | None = time()
    host: str = text(null=False)


class Artifact(SQLModel, table=True):
    __tablename__ = "artifacts"

    job_id: str = primary(ID)
    name: str = primary()
    content_type: str = text(null=False)
    size: int = column(sa.BigInteger, null=False)
    # Small ones lie here: text as `content`, so that the job's document can show it, the rest as `data`.
    data: bytes | None = column(sa.LargeBinary)
    location: str | None = text()
    created_at: datetime = time(null=False, server_default=NOW)
    content: str | None = text()
    etag: str | None = text()


class ArtifactChunk(SQLModel, table=True):
    """The bytes of larger artifacts, where no folder or bucket is configured for them."""

    __tablename__ = "artifact_chunks"

    upload_id: str = primary(ID)
    number: int = primary(sa.Integer)
    data: bytes = column(sa.LargeBinary, null=False)


class ArtifactTrash(SQLModel, table=True):
    """Bytes that nothing refers to: to be removed when due. An upload begins here and is taken out at its end."""

    __tablename__ = "artifact_trash"
    __table_args__ = (index("artifact_trash_due", "due_at"),)

    location: str = primary()
    due_at: datetime = time(null=False, server_default=NOW)
