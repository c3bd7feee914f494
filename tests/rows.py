"""Rows of the store for tests that need no database: what a test does not say is as empty as its type allows."""

from datetime import UTC, datetime
from typing import Any, TypeVar, get_type_hints

import msgspec

Row = TypeVar("Row", bound=msgspec.Struct)

_EMPTY: dict[Any, Any] = {
    str: "",
    int: 0,
    float: 0.0,
    bool: False,
    datetime: datetime(2030, 1, 1, tzinfo=UTC),
}


def made_up(row: type[Row], **fields: Any) -> Row:
    hints = get_type_hints(row)
    # Every other type is one that may be None.
    return row(**{name: _EMPTY.get(hints[name]) for name in row.__struct_fields__} | fields)
