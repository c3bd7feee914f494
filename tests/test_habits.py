"""Habits of the tests themselves that no linter knows."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Where a test process may sleep, and why there.
MAY_SLEEP = {
    "patience.py": "the one place: looks at a condition with a deadline, and sleeps that say what they stand for",
}


def sleeps(source: str) -> Iterator[int]:
    """The lines with a call of `sleep`, whoever's, and with an import that hides one behind another name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name == "sleep":
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and any(each.name == "sleep" for each in node.names):
            yield node.lineno


def test_nobody_waits_for_a_while_and_hopes() -> None:
    """Wait on a condition (`until`, `wait_until`) or on an event instead."""
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if str(path.relative_to(TESTS)) not in MAY_SLEEP
        for line in sleeps(path.read_text())
    ]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "time.sleep(1)",
        "await asyncio.sleep(0)",
        "async def wait():\n    await trio.sleep(1)",
        "from time import sleep",
        "from asyncio import sleep as nap",
        "sleep(2)",
    ],
)
def test_every_way_to_sleep_is_seen(source: str) -> None:
    assert list(sleeps(source))


@pytest.mark.parametrize("source", ["task(asyncio.sleep)", "async def sleep(): ...", "'time.sleep(1)'"])
def test_what_only_names_it_is_no_sleep(source: str) -> None:
    assert not list(sleeps(source))


def test_whoever_may_sleep_does() -> None:
    """An exception that nobody needs any more is none."""
    assert all(list(sleeps((TESTS / name).read_text())) for name in MAY_SLEEP)
