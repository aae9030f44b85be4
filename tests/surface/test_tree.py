"""The rules of ARCHITECTURE about names, sizes and places, which no import contract can state."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = [ROOT / "zerotools", ROOT / "daemon/zerotoolsd"]
OURS = [*SHIPPED, ROOT / "harness", ROOT / "benchmarks", ROOT / "scripts"]
ADVISED_SIBLINGS = 25
ADVISED_LINES = 600

ROLES = {
    # what each format has
    "file_names",
    "format",
    "kept_for_writer",
    "lay_out",
    "lay_out_converted",
    "lay_out_resharded",
    "read",
    "training_state",
    # what each package or process has
    "__init__",
    "engine",
    "entry",
    # a command, and what it does below the command line
    "consolidate",
    "convert",
    "inspect",
    "reshard",
    "thin",
    "verify",
}
"""File names that say a role: wherever they stand they mean the same."""
TABLES = ROOT / "zerotools/jobs/jobfile_tables"
"""One module for each table of the job file, under the table's name."""
COMMANDS = ROOT / "zerotools/cli/commands"
"""One module for each command, under the command's name."""
SAME_CLASS = {"ZerotoolsCallback": "the callback of zerotools, for two trainers of other libraries"}
"""Public classes that stand twice, and why: two halves of one thing on both sides of a process."""
PUBLIC_CLASS = re.compile(r"^class ([^\W_]\w*)", re.MULTILINE)
IMPORTS_TESTS = re.compile(r"\bimport\b.*\btests\b|\bfrom tests\b")
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc"}


def modules(*roots: Path) -> list[Path]:
    return [path for root in roots for path in sorted(root.rglob("*.py"))]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(path: Path) -> set[str]:
    """The modules that a file imports by absolute names, anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    plain = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    return plain | {
        node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }


def tree_of(path: Path) -> str:
    """Which program a module is part of. They share no floors, so that each may have its `main`."""
    parts = path.relative_to(ROOT).parts
    return "trainer" if "trainer" in parts else parts[0]


def test_no_public_class_is_defined_twice() -> None:
    places = defaultdict(list)
    for path in modules(*SHIPPED):
        for name in PUBLIC_CLASS.findall(path.read_text("utf-8")):
            places[name].append(named(path))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in SAME_CLASS} == {}
    assert SAME_CLASS.keys() <= twice.keys(), "take what is no longer there twice off the list"


def test_a_file_name_means_one_thing_in_a_tree() -> None:
    places = defaultdict(list)
    for path in modules(*SHIPPED):
        if path.parent != TABLES:
            places[tree_of(path), path.stem].append(named(path))
    twice = {stem: where for (_, stem), where in places.items() if len(where) > 1}
    assert {stem: where for stem, where in twice.items() if stem not in ROLES} == {}
    assert twice.keys() >= ROLES, "take what is no longer there twice off the list"


def advice(roots: Iterable[Path] = OURS) -> Iterator[str]:
    """What `scripts/check` prints: files and folders that may hold more than one idea."""
    siblings = defaultdict(list)
    for path in modules(*roots):
        siblings[path.parent].append(path.stem)
        if (lines := len(path.read_text("utf-8").splitlines())) > ADVISED_LINES:
            yield f"{path}: {lines} lines; about {ADVISED_LINES} hold one idea"
    for folder, stems in siblings.items():
        count = len(set(stems) - {"__init__", "__main__"})
        if count > ADVISED_SIBLINGS and folder not in (TABLES, COMMANDS):
            yield f"{folder}: {count} modules; a reader takes in about {ADVISED_SIBLINGS}"


def test_advice_names_long_files_and_full_folders(tmp_path: Path) -> None:
    for number in range(ADVISED_SIBLINGS + 1):
        (tmp_path / f"m{number}.py").write_text("\n" * (ADVISED_LINES + (number == 3)))
    long, full = advice([tmp_path])
    assert long.startswith(f"{tmp_path / 'm3.py'}: {ADVISED_LINES + 1} lines")
    assert full.startswith(f"{tmp_path}: {ADVISED_SIBLINGS + 1} modules")


def files_of_tests() -> list[Path]:
    return [path for path in modules(ROOT / "tests") if "golden" not in path.parts]


def test_a_module_is_named_by_what_it_holds() -> None:
    everywhere = [*modules(*OURS), *files_of_tests()]
    assert [named(path) for path in everywhere if path.stem in VAGUE] == []


def test_nothing_outside_of_tests_imports_from_them() -> None:
    found = {
        named(path): name
        for path in modules(*OURS)
        if IMPORTS_TESTS.search(path.read_text("utf-8"))  # the others are not parsed
        for name in imported(path)
        if name.split(".")[0] == "tests"
    }
    assert found == {}


def test_the_index_of_a_package_names_modules_that_exist() -> None:
    stale = [
        f"{named(path)}: {name}"
        for path in modules(*SHIPPED)
        if path.name == "__init__.py"
        for line in (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").splitlines()
        if (row := re.match(r"(?: {4})?([a-z][a-z0-9_]*(?:, [a-z][a-z0-9_]*)*) {2,}\S", line))
        for name in row[1].split(", ")
        if not (path.parent / name).is_dir() and not (path.parent / f"{name}.py").is_file()
    ]
    assert stale == []


def test_core_is_values_alone() -> None:
    """Standard library only, and of that nothing that opens a file or a process."""
    doing = {"asyncio", "io", "mmap", "os", "shutil", "socket", "sqlite3", "subprocess", "tempfile"}
    for path in modules(ROOT / "zerotools/core"):
        names = {name.split(".")[0] for name in imported(path)}
        assert names - {"zerotools"} <= sys.stdlib_module_names - doing, named(path)
        assert not re.search(r"\bopen\(|\.read_(?:text|bytes)\(", path.read_text("utf-8"))


def test_every_rule_of_the_architecture_names_what_enforces_it() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    section = text.split("## What enforces each rule")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 20
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    contracts = {contract["name"] for contract in linter["contracts"]}
    for rule, *checks in rows:
        assert len(checks) == 1, rule
        named_contracts = re.findall(r'"([^"]+)"', checks[0])
        files = re.findall(r"`(tests/[^`]+)`", checks[0])
        assert named_contracts or files, rule
        assert set(named_contracts) <= contracts, rule
        assert [each for each in files if not (ROOT / each).exists()] == [], rule


def test_the_glossary_names_what_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    section = text.split("## Glossary")[1].split("\n## ")[0]
    places = [
        quoted
        for line in section.splitlines()
        if line.startswith("| ")
        for quoted in re.findall(r"`([^`]+)`", line.split(" | ")[-1])
    ]
    roots = [ROOT / "zerotools", ROOT / "zerotools/formats", *SHIPPED]
    code = "\n".join(path.read_text("utf-8") for path in modules(*SHIPPED))
    for place in places:
        if "/" in place:
            assert any((r / f"{place}.py").exists() or (r / place).is_dir() for r in roots), place
        else:
            assert re.search(rf"^class {place}\b", code, re.MULTILINE), place


if __name__ == "__main__":
    print(*advice(), sep="\n")
