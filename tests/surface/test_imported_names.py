"""What a file imports from ours is there: mypy does not read tests and benchmarks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("zerotools", "daemon", "harness", "benchmarks", "scripts", "tests")


def files() -> dict[str, Path]:
    """Every file of ours by the name under which it is imported."""
    found = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts[1:] if parts[0] == "daemon" else parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def names_of(tree: ast.AST) -> set[str]:
    """The names that a file defines or imports anywhere."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return found


def lost(trees: dict[str, ast.Module]) -> Iterator[str]:
    """The imports of ours that name what is not there."""
    names = {name: names_of(tree) for name, tree in trees.items()}
    roots = {name.partition(".")[0] for name in trees}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
                continue
            if node.module.partition(".")[0] not in roots:
                continue
            there = names.get(node.module, set())
            for alias in node.names:
                if alias.name not in there and f"{node.module}.{alias.name}" not in names:
                    yield f"{name}:{node.lineno}: {node.module}.{alias.name}"


def test_every_imported_name_is_there() -> None:
    trees = {name: ast.parse(path.read_bytes()) for name, path in files().items()}
    assert len(trees) > 900
    assert list(lost(trees)) == []


def test_a_lost_name_is_found() -> None:
    trees = {"a": ast.parse("def f(): ..."), "b": ast.parse("from a import f, g\nimport os")}
    assert list(lost(trees)) == ["b:1: a.g"]
