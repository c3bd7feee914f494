"""Nobody outside app/dialects asks which dialect it has at hand."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.dialects import DIALECTS

APP = Path(__file__).parents[2] / "app"


def constants(node: ast.AST) -> set[object]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}


def questions(source: str) -> Iterator[int]:
    """The lines that compare with the name of a dialect, match it, or choose by it."""
    for node in ast.walk(ast.parse(source)):
        # A table by name decides as an `if` does.
        asking: list[ast.AST] = [each for each in node.keys if each] if isinstance(node, ast.Dict) else []
        if isinstance(node, ast.Compare | ast.MatchValue):
            asking = [node]
        if any(constants(each) & DIALECTS.keys() for each in asking):
            yield getattr(node, "lineno", 0)


def test_no_comparison_with_the_name_of_a_dialect_stands_outside() -> None:
    found = [
        f"{path.relative_to(APP.parent)}:{line}"
        for path in sorted(APP.rglob("*.py"))
        if APP / "dialects" not in path.parents
        for line in questions(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        'if dialect == "openai": pass',
        'sse = dialect != "ollama"',
        'known = name in {"ollama", "openai"}',
        'match name:\n    case "ollama" | "x": pass',
        'TYPES = {"ollama": 1, "openai": 2}',
    ],
)
def test_the_ways_to_compare_are_seen(source: str) -> None:
    assert list(questions(source))


@pytest.mark.parametrize("source", ['OWN = DIALECTS["ollama"]', 'def f(dialect="ollama"): pass'])
def test_a_declaration_is_no_comparison(source: str) -> None:
    assert list(questions(source)) == []
