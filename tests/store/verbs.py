"""The verbs of the store, found in its source: which functions change what somebody else must hear of."""

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

APP = Path(__file__).resolve().parents[2] / "app"
STORE = APP / "store"

# What somebody is told of: a job whose log or whose place in the line moves, and what loops sleep over.
_TOLD = (
    # What ANNOUNCED writes: the statement puts something into the log of jobs.
    r"INSERT INTO announcements",
    r"INSERT INTO jobs\b",
    r"DELETE FROM jobs\b",
    r"UPDATE jobs( AS j)? SET\b[^;]*?\b(state|ready_at|gate) =",
    r"(INSERT INTO|UPDATE) queues\b[^;]*\b(settings|paused_at)\b",
    r"(INSERT INTO|UPDATE|DELETE FROM) schedules\b",
    r"(INSERT INTO|UPDATE) bulk_operations\b",
    r"UPDATE outbox\b[^;]*\bnext_try_at =",
)
MOVES = re.compile("|".join(_TOLD), re.DOTALL)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """One file: its functions by name (a method as `Class.name`), and what its names stand for."""

    path: Path
    functions: dict[str, Function] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return ".".join(self.path.relative_to(APP.parent).with_suffix("").parts)

    def used(self, name: str) -> set[str]:
        """What the function refers to, by full names."""
        found = set()
        owner = name.rpartition(".")[0]
        for node in ast.walk(self.functions[name]):
            if isinstance(node, ast.Name):
                found.add(self.imported.get(node.id, f"{self.name}.{node.id}"))
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                base = node.value.id
                prefix = f"{self.name}.{owner}" if base == "self" else self.imported.get(base, base)
                found.add(f"{prefix}.{node.attr}")
        return found


def modules(folder: Path = APP) -> Iterator[Module]:
    for path in sorted(folder.rglob("*.py")):
        module = Module(path)
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for each in node.names:
                    module.imported[each.asname or each.name] = f"{node.module}.{each.name}"
        for statement in tree.body:
            if isinstance(statement, Function):
                module.functions[statement.name] = statement
            elif isinstance(statement, ast.ClassDef):
                for member in statement.body:
                    if isinstance(member, Function):
                        module.functions[f"{statement.name}.{member.name}"] = member
        yield module


def movers() -> dict[str, Function]:
    """The public async functions of the store that move something, themselves or through another."""
    functions: dict[str, Function] = {}
    uses: dict[str, set[str]] = {}
    moving: set[str] = set()
    for module in modules(STORE):
        for name in module.functions:
            functions[f"{module.name}.{name}"] = module.functions[name]
            uses[f"{module.name}.{name}"] = module.used(name)
        for name, value in vars(importlib.import_module(module.name)).items():
            # A statement, or several to choose from.
            texts = value.values() if isinstance(value, dict) else [value]
            moves = any(isinstance(text, str) and MOVES.search(text) for text in texts)
            if moves and not name.startswith("__"):
                moving.add(f"{module.name}.{name}")
    while found := {name for name, used in uses.items() if name not in moving and used & moving}:
        moving |= found
    return {
        name: function
        for name, function in functions.items()
        if name in moving and isinstance(function, ast.AsyncFunctionDef) and not function.name.startswith("_")
    }


def returned(function: Function) -> str:
    return ast.unparse(function.returns) if function.returns else ""
