"""Who calls, who works, and where models run."""

from datetime import date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlmodel import Field, SQLModel

from app.store.tables.columns import EMPTY, ID, NOW, column, count, flag, primary, seconds, text, time


class Tenant(SQLModel, table=True):
    __tablename__ = "tenants"

    name: str = primary()
    created_at: datetime = time(null=False, server_default=NOW)


class ApiKey(SQLModel, table=True):
    """A key is kept as its SHA-256 only."""

    __tablename__ = "api_keys"

    id: str = primary(ID)
    tenant: str = Field(sa_column=sa.Column(sa.Text, sa.ForeignKey("tenants.name"), nullable=False))
    name: str = text(null=False)
    hash: bytes = Field(sa_column=sa.Column(sa.LargeBinary, nullable=False, unique=True))
    scopes: list[str] = column(ARRAY(sa.Text), null=False)
    limits: dict[str, Any] = column(JSONB, null=False, server_default=EMPTY)
    created_at: datetime = time(null=False, server_default=NOW)
    expires_at: datetime | None = time()
    last_used_at: datetime | None = time()
    # It stays, so that it is not taken for a new one when it comes once more from a file.
    revoked_at: datetime | None = time()


class KeyJob(SQLModel, table=True):
    """A job of a key that may have only so many: it has not ended, or nobody had to know since."""

    __tablename__ = "key_jobs"

    key_id: str = Field(
        sa_column=sa.Column(ID, sa.ForeignKey("api_keys.id", ondelete="CASCADE"), primary_key=True)
    )
    job_id: str = primary(ID)


class Session(SQLModel, table=True):
    """A person signed in to the dashboard with a key. The cookie is kept as its SHA-256 only."""

    __tablename__ = "sessions"

    hash: bytes = primary(sa.LargeBinary)
    key_id: str = Field(
        sa_column=sa.Column(ID, sa.ForeignKey("api_keys.id", ondelete="CASCADE"), nullable=False)
    )
    created_at: datetime = time(null=False, server_default=NOW)
    expires_at: datetime = time(null=False)


class Target(SQLModel, table=True):
    """A target, and what was last known of it. `settings` is NULL for one that the environment makes."""

    __tablename__ = "targets"

    name: str = primary()
    settings: dict[str, Any] | None = column(JSONB)
    token: bytes | None = column(sa.LargeBinary)
    inventory: dict[str, Any] | None = column(JSONB)
    answered_at: datetime | None = time()
    asleep_since: datetime | None = time()
    warning: str | None = text()
    # The affinity key of what was loaded last.
    resident: str | None = text()
    woken_at: datetime | None = time()
    wake_tries: int = count()
    created_at: datetime = time(null=False, server_default=NOW)
    updated_at: datetime = time(null=False, server_default=NOW)
    # What `settings` has no `url` in its `wake` for: it often has a token in it, and is sealed.
    wake_url: bytes | None = column(sa.LargeBinary)


class TargetHolding(SQLModel, table=True):
    """How many of a target's slots a process holds; their sum never exceeds what the target has."""

    __tablename__ = "target_holdings"

    target: str = primary()
    holder: str = primary()
    slots: int = column(sa.Integer, null=False)
    expires_at: datetime = time(null=False)
    wanted: bool = flag()


class UsageDay(SQLModel, table=True):
    """The ledger: what each caller used of each model on each day (UTC)."""

    __tablename__ = "usage_days"

    tenant: str = primary()
    model: str = primary()
    day: date = Field(sa_column=sa.Column(sa.Date, primary_key=True))
    jobs: int = count(kind=sa.BigInteger)
    prompt_tokens: int = count(kind=sa.BigInteger)
    completion_tokens: int = count(kind=sa.BigInteger)
    load_seconds: float = seconds(null=False)
    prefill_seconds: float = seconds(null=False)
    decode_seconds: float = seconds(null=False)


class KeyUsageDay(SQLModel, table=True):
    """The same ledger by key, for jobs that one submitted."""

    __tablename__ = "key_usage_days"

    tenant: str = primary()
    key_id: str = primary(ID)
    model: str = primary()
    day: date = Field(sa_column=sa.Column(sa.Date, primary_key=True))
    jobs: int = count(kind=sa.BigInteger)
    prompt_tokens: int = count(kind=sa.BigInteger)
    completion_tokens: int = count(kind=sa.BigInteger)
    load_seconds: float = seconds(null=False)
    prefill_seconds: float = seconds(null=False)
    decode_seconds: float = seconds(null=False)


class KnownWorker(SQLModel, table=True):
    """Who is about; for operators only, never for correctness."""

    __tablename__ = "workers"

    tenant: str = primary()
    name: str = primary()
    queues: list[str] = column(ARRAY(sa.Text), null=False)
    kinds: list[str] = column(ARRAY(sa.Text), null=False)
    concurrency: int = count()
    version: str | None = text()
    started_at: datetime = time(null=False, server_default=NOW)
    last_seen_at: datetime = time(null=False, server_default=NOW)
