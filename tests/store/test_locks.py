"""Each kind of work that one replica does at a time has a lock of its own."""

import re
from pathlib import Path

import app.store
from app.store import locks

NUMBERS = {name: value for name, value in vars(locks).items() if isinstance(value, int)}


def test_no_two_kinds_of_work_share_a_number() -> None:
    assert len(set(NUMBERS.values())) == len(NUMBERS)


def test_numbers_of_locks_are_declared_in_one_place() -> None:
    sources = {path.name: path.read_text() for path in Path(app.store.__path__[0]).glob("*.py")}
    numbered = {name for name, text in sources.items() if re.search(r"advisory\w*lock\(\d{8,}", text)}
    assert numbered == set()
    for name in NUMBERS:
        users = [path for path, text in sources.items() if f"locks.{name}" in text]
        assert len(users) == 1, (name, users)
