"""A memory with an end: hints by name, of which the longest unused are forgotten first.

Callers name queues, lanes and workers as they like. What one process remembers of each of them must not
grow with all that were ever named.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

Name = TypeVar("Name")
Hint = TypeVar("Hint")

MOST = 10_000


class Remembered(Generic[Name, Hint]):
    """Only for what costs little when it is forgotten."""

    __slots__ = ("_hints", "_most")

    def __init__(self, most: int = MOST) -> None:
        self._hints: dict[Name, Hint] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._hints)

    def __iter__(self) -> Iterator[Name]:
        return iter(self._hints)

    def __contains__(self, name: object) -> bool:
        return name in self._hints

    def get(self, name: Name) -> Hint | None:
        """What is known of it; it was used just now."""
        hints = self._hints
        if name not in hints:
            return None
        hint = hints[name] = hints.pop(name)
        return hint

    def peek(self, name: Name) -> Hint | None:
        """What is known of it, by somebody who does not use it."""
        return self._hints.get(name)

    def put(self, name: Name, hint: Hint) -> None:
        self._hints.pop(name, None)
        self._hints[name] = hint
        if len(self._hints) > self._most:
            del self._hints[next(iter(self._hints))]

    def forget(self, name: Name) -> None:
        self._hints.pop(name, None)
