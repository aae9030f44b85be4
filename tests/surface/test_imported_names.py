"""What a file imports from ours is there: mypy does not read tests and benchmarks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOTTED = re.compile(r"(?:zerotoolsd?|harness|benchmarks|tests)(?:\.[a-z_]\w*[a-z0-9]){2,}")
"""A string that may be the name of a module of ours, or of something in one."""
IMPORTED = re.compile(r"\bfrom ((?:zerotoolsd?|harness|benchmarks|tests)[\w.]*) import ([\w, ]+)")
"""An import in the text of a program that a test or a benchmark starts."""
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


@dataclass
class Names:
    """What a file defines or imports anywhere, and by line what it imports from which module, and
    what its strings name."""

    there: set[str] = field(default_factory=set)
    taken: list[tuple[int, str, list[str]]] = field(default_factory=list)
    dotted: list[tuple[int, str]] = field(default_factory=list)


def names_of(source: str | bytes) -> Names:
    """Of a file's text. Its tree is not kept: of two thousand, the collector looks for garbage in
    millions of nodes."""
    found = Names()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                found.there.add(node.id)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                found.taken += imports_in(node.value, node.lineno)
                if DOTTED.fullmatch(node.value):
                    found.dotted.append((node.lineno, node.value))
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.there.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
            found.there.update(names)
            if isinstance(node, ast.ImportFrom) and not node.level and node.module is not None:
                wanted = [alias.name for alias in node.names]
                found.taken.append((node.lineno, node.module, wanted))
    return found


def imports_in(text: str, line: int) -> Iterator[tuple[int, str, list[str]]]:
    """What a program in a string imports from ours."""
    for module, names in IMPORTED.findall(text):
        yield line, module, [name.split()[0] for name in names.split(",") if name.strip()]


def lost(files: dict[str, Names]) -> Iterator[str]:
    """The imports of ours that name what is not there."""
    roots = {name.partition(".")[0] for name in files}
    for name, names in files.items():
        for line, module, wanted in names.taken:
            if module.partition(".")[0] not in roots:
                continue
            there = files[module].there if module in files else set()
            for each in wanted:
                if each not in there and f"{module}.{each}" not in files:
                    yield f"{name}:{line}: {module}.{each}"


def lost_in_strings(files: dict[str, Names]) -> Iterator[str]:
    """Strings that begin with a package of ours and name no module, and nothing in one."""
    for name, names in files.items():
        for line, dotted in names.dotted:
            parts = dotted.split(".")
            prefixes = [".".join(parts[:end]) for end in range(2, len(parts))]
            known = [prefix for prefix in prefixes if prefix in files]
            if dotted in files or not known:
                continue
            if parts[len(known[-1].split("."))] not in files[known[-1]].there:
                yield f"{name}:{line}: {dotted}"


def test_every_imported_name_is_there() -> None:
    names = {name: names_of(path.read_bytes()) for name, path in files().items()}
    assert len(names) > 900
    assert list(lost(names)) == []
    assert list(lost_in_strings(names)) == []


def test_a_lost_name_is_found() -> None:
    sources = {"a": "def f(): ...", "b": "from a import f, g\nimport os"}
    names = {name: names_of(source) for name, source in sources.items()}
    assert list(lost(names)) == ["b:1: a.g"]


def test_a_lost_name_of_a_program_in_a_string_is_found() -> None:
    program = f"import os; from {'harness.bb'} import ff, gg as hh\\nfrom os import path"
    sources = {"harness.a": f"PROGRAM = '{program}'", "harness.bb": "def ff(): ..."}
    names = {name: names_of(source) for name, source in sources.items()}
    assert list(lost(names)) == ["harness.a:1: harness.bb.gg"]


def test_a_name_that_is_lost_in_a_string_is_found() -> None:
    sources = {
        "harness.a": "['harness.bb.ff', 'harness.bb.ff.xx', 'harness.bb.gg', 'harness.cc.dd']",
        "harness.bb": "def ff(): ...",
    }
    names = {name: names_of(source) for name, source in sources.items()}
    assert list(lost_in_strings(names)) == ["harness.a:1: harness.bb.gg"]
