"""The packages of the daemon are few, and few of them import each other."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "daemon/zerotoolsd"
MOST_ENTRIES = 18
MOST_ARROWS = 68
"""Ceilings. They only go down: a change that needs fewer lowers them."""


def entries() -> list[str]:
    found = (path.name for path in PACKAGE.iterdir() if path.name != "__pycache__")
    return sorted(found)


def arrows() -> set[tuple[str, str]]:
    """Return the pairs of entries of which the first imports the second."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        importer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            elif isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            else:
                continue
            split = [name.split(".") for name in names]
            found |= {(importer, each[1]) for each in split if each[0] == PACKAGE.name and each[1:]}
    known = {name.removesuffix(".py") for name in entries()}
    return {(a, b) for a, b in found if a != b and b in known}


def test_the_daemon_has_few_entries() -> None:
    assert len(entries()) <= 20
    assert len(entries()) == MOST_ENTRIES, "if it is lower now, lower the ceiling"


def test_few_packages_of_the_daemon_import_each_other() -> None:
    assert len(arrows()) == MOST_ARROWS, "if it is lower now, lower the ceiling"
