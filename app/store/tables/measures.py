"""How the fleet has fared over time, for the charts: coarse, small, and forgotten after a while."""

from datetime import date, datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Field, SQLModel

from app.store.tables.columns import ID, TIME, column, count, primary


class Sample(SQLModel, table=True):
    """What one process saw within `step` seconds from `at` on; the fleet is the sum over its processes."""

    __tablename__ = "samples"

    step: int = primary(sa.Integer)
    at: datetime = primary(TIME)
    process: str = primary(ID)
    enqueued: int = count(kind=sa.BigInteger)
    done: int = count(kind=sa.BigInteger)
    failed: int = count(kind=sa.BigInteger)
    # In any other way.
    ended: int = count(kind=sa.BigInteger)
    prompt_tokens: int = count(kind=sa.BigInteger)
    completion_tokens: int = count(kind=sa.BigInteger)
    # How many jobs waited, and ran, for about how long: the counts of a histogram's buckets.
    wait: list[int] = column(ARRAY(sa.BigInteger), null=False)
    run: list[int] = column(ARRAY(sa.BigInteger), null=False)


class QueueSample(SQLModel, table=True):
    """The most jobs of a queue that waited, and ran, whenever somebody looked within `step` seconds from `at` on."""

    __tablename__ = "queue_samples"

    step: int = primary(sa.Integer)
    at: datetime = primary(TIME)
    queue: str = primary()
    waiting: int = count(kind=sa.BigInteger)
    running: int = count(kind=sa.BigInteger)


class DailyCount(SQLModel, table=True):
    """How often something happened on a day (UTC): of a target or a receiver, by its name."""

    __tablename__ = "daily_counts"

    day: date = Field(sa_column=sa.Column(sa.Date, primary_key=True))
    of: str = primary()
    name: str = primary()
    what: str = primary()
    count: int = count(kind=sa.BigInteger)
