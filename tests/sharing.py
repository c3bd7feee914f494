"""What the tests of a folder share, until a test of another folder is next.

A fixture of the whole session would live on to its end: a server that idles takes a hundredth of a core, and a dozen of
them slow down all that comes after.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

Value = TypeVar("Value")


class FolderShare:
    def __init__(self) -> None:
        self._stack = ExitStack()
        self._values: dict[str, Any] = {}

    def get(self, name: str, make: Callable[[], AbstractContextManager[Value]]) -> Value:
        """The one that is there, or one made now."""
        if name not in self._values:
            self._values[name] = self._stack.enter_context(make())
        value: Value = self._values[name]
        return value

    def close(self) -> None:
        self._values.clear()
        self._stack.close()


folder_share = FolderShare()
