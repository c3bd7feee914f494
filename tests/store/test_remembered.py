"""A memory with an end."""

from app.store.remembered import Remembered


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    memory: Remembered[str, int] = Remembered(most=3)
    for number, name in enumerate("abc"):
        memory.put(name, number)
    assert memory.get("a") == 0
    memory.put("d", 3)
    assert list(memory) == ["c", "a", "d"]
    assert memory.get("b") is None


def test_what_is_put_anew_counts_as_used() -> None:
    memory: Remembered[str, int] = Remembered(most=2)
    memory.put("a", 1)
    memory.put("b", 2)
    memory.put("a", 3)
    memory.put("c", 4)
    assert (memory.get("a"), "b" in memory, len(memory)) == (3, False, 2)


def test_forgetting_what_is_not_known_is_no_error() -> None:
    memory: Remembered[str, int] = Remembered()
    memory.forget("a")
    memory.put("a", 1)
    memory.forget("a")
    assert list(memory) == []
