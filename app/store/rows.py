"""Rows as they leave the store: structs, so that no record of the driver does; and as they come in: arrays for unnest.

A row is declared once, beside the function that reads it, and the columns of its statement are made from its fields.
So a record fits its struct by position, which is the fastest way to build one.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

Row = TypeVar("Row", bound=msgspec.Struct)


def columns(row: type[msgspec.Struct], alias: str | None = None, **instead: str) -> str:
    """What a statement returns for such a row, by name; `instead` has the expressions of what is no column.

    Never `*` there: a column that a newer version adds would change the result, and PostgreSQL then refuses the
    statements that were prepared before; in a transaction the driver cannot prepare them anew.
    """
    prefix = "" if alias is None else f"{alias}."
    return ", ".join(
        f"{instead[name]} AS {name}" if name in instead else prefix + name for name in row.__struct_fields__
    )


def looked_up(names: str, values: str) -> str:
    """That these columns (a name, or several in brackets) have those values of another part of the statement, as a range
    of one: which only a look-up by their index can find out.

    With `=` the planner may as well join by walking the whole table. While there are few rows that is even cheaper;
    but plans are kept, until the rows are counted again, and then they may be millions.
    """
    return f"{names} >= {values} AND {names} <= {values}"


def as_rows(row: type[Row], records: Iterable[Any]) -> list[Row]:
    """One of each record, whose columns are those of `columns`."""
    return [row(*record) for record in records]


def as_row(row: type[Row], record: Any | None) -> Row | None:
    """The same of a single record, where there is one."""
    return None if record is None else row(*record)


def first_and_last(ids: Iterable[str]) -> tuple[str, str]:
    """Of the ids that a statement is about, in their order: see effects.span."""
    known = list(ids)
    return min(known, default=""), max(known, default="")


def arrays(things: Iterable[Any], *names: str) -> list[tuple[Any, ...]]:
    """What unnest is given of them: for each of the attributes (two or more), its values."""
    return list(zip(*map(attrgetter(*names), things), strict=True)) or [()] * len(names)


def padded_arrays(things: Iterable[Any], *names: str) -> list[tuple[Any, ...]]:
    """The same for a single unnest of all of them, which fills up with NULL what is shorter than the rest: an
    attribute that nobody has is sent as nothing at all. The driver looks at each value, so that saves much.
    """
    return [() if values.count(None) == len(values) else values for values in arrays(things, *names)]
