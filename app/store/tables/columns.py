"""How columns are declared."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlmodel import Field

NOW = sa.text("now()")
EMPTY = sa.text("'{}'::jsonb")
BLANK = sa.text("''")
# Ids are ULIDs: byte order is time order, so the C collation is both right and fast.
ID = sa.Text(collation="C")
TIME = sa.DateTime(timezone=True)


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a new row's value comes from; the statement that inserts it is made of these (see enqueue.py)."""

    # The attribute of `NewJob`, if it is not called as the column is.
    source: str = ""
    # What a job has that says nothing of it: not sent at all where no job of a batch has anything else.
    usual: int | bool | None = None
    # The same for most jobs of a batch, and then sent once instead of once per row.
    shared: bool = False


def index(name: str, columns: str, where: str | None = None, **more: Any) -> sa.Index:
    """Its columns as they stand in SQL; with `where`, only of such rows."""
    of = [sa.text(each) if " " in each else each for each in columns.split(", ")]
    return sa.Index(name, *of, postgresql_where=None if where is None else sa.text(where), **more)


def column(kind: Any, *, null: bool = True, sent: Sent | None = None, **more: Any) -> Any:
    info = {} if sent is None else {"sent": sent}
    return Field(default=None, sa_column=sa.Column(kind, nullable=null, info=info, **more))


def primary(kind: Any = sa.Text, *, sent: Sent | None = None, **more: Any) -> Any:
    more = {"autoincrement": False, **more} if kind is sa.Integer else more
    info = {} if sent is None else {"sent": sent}
    return Field(sa_column=sa.Column(kind, primary_key=True, info=info, **more))


def text(*, null: bool = True, sent: Sent | None = None, **more: Any) -> Any:
    return column(sa.Text, null=null, sent=sent, **more)


def time(*, null: bool = True, sent: Sent | None = None, **more: Any) -> Any:
    return column(TIME, null=null, sent=sent, **more)


def count(default: int = 0, kind: Any = sa.Integer, *, sent: Sent | None = None) -> Any:
    return column(kind, null=False, sent=sent, server_default=sa.text(str(default)))


def flag(*, sent: Sent | None = None) -> Any:
    return column(sa.Boolean, null=False, sent=sent, server_default=sa.text("false"))


def seconds(*, null: bool = True, sent: Sent | None = None) -> Any:
    more = {} if null else {"server_default": sa.text("0")}
    return column(sa.Float, null=null, sent=sent, **more)
