"""Outside its own folder a format is asked by the members of `Format`, and never by its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from zerotools.formats import FORMATS
from zerotools.formats.format import format_option

ROOT = Path(__file__).parents[2]
FORMATS_ROOT = ROOT / "zerotools" / "formats"
NAMES = {*FORMATS} | {format_option(form) for form in FORMATS.values()}
ASKED = re.compile(r"FORMATS|\.format\b")
KEPT = re.compile(r"\.(?:native|details)\b")
"""A file without such words is not parsed, which takes seconds for all."""
MODULES = [
    path
    for root in (ROOT / "zerotools", ROOT / "daemon" / "zerotoolsd")
    for path in sorted(root.rglob("*.py"))
]


def _folder(path: Path) -> Path | None:
    """The folder of a format that a module lies in."""
    inside = path.is_relative_to(FORMATS_ROOT) and path.parent != FORMATS_ROOT
    return FORMATS_ROOT / path.relative_to(FORMATS_ROOT).parts[0] if inside else None


def _own_names(path: Path) -> set[str]:
    folder = _folder(path)
    modules = {name: type(form).__module__.split(".") for name, form in FORMATS.items()}
    return {name for name, parts in modules.items() if folder and parts[2] == folder.name}


def _is_format(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "format"


def _is_table(node: ast.expr) -> bool:
    named = (getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(node))
    return any("FORMATS" in name for name in named)


def compared_names(tree: ast.AST) -> Iterator[str]:
    """Names that an attribute `format` is compared with, or that a table is asked for by."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(_is_format, (node.left, *node.comparators))):
            every = (part for side in (node.left, *node.comparators) for part in ast.walk(side))
        elif isinstance(node, ast.Match) and _is_format(node.subject):
            every = ast.walk(node)
        elif isinstance(node, ast.Subscript) and _is_table(node.value):
            every = ast.walk(node.slice)
        else:
            continue
        for part in every:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def test_no_format_is_known_by_its_name_elsewhere() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in MODULES
        if ASKED.search(text := path.read_text())
        for name in compared_names(ast.parse(text))
        if name in NAMES and name not in _own_names(path)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        'if c.origin.format == "dcp": pass',
        'if c.origin.format in ("deepspeed", "universal"): pass',
        'x = FORMATS["dcp"]',
        'match c.format:\n    case "dcp": pass',
    ],
)
def test_the_check_finds_each_way_to_ask_by_name(text: str) -> None:
    assert {*compared_names(ast.parse(text))} & NAMES


def test_every_folder_of_formats_is_in_the_table() -> None:
    folders = {path.name for path in FORMATS_ROOT.iterdir() if (path / "__init__.py").exists()}
    assert {type(form).__module__.split(".")[2] for form in FORMATS.values()} == folders


def imported_formats(tree: ast.AST) -> set[str]:
    """The folders of `formats` that a module imports from, anywhere in it."""
    names = {
        f"{node.module}.{alias.name}" if node.module == "zerotools.formats" else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    parts = [name.split(".") for name in names]
    inside = {each[2] for each in parts if each[:2] == ["zerotools", "formats"] and len(each) > 2}
    return {name for name in inside if (FORMATS_ROOT / name / "__init__.py").exists()}


def test_formats_do_not_import_each_other() -> None:
    """Nor does a module that several formats share import one of them."""
    table = FORMATS_ROOT / "__init__.py"
    wrong = {
        str(path.relative_to(ROOT)): others
        for path in FORMATS_ROOT.rglob("*.py")
        if path != table
        and (others := imported_formats(ast.parse(path.read_text())) - {path.parent.name})
        and not any(others == {folder.name} for folder in path.parents)
    }
    assert wrong == {}
    for text in (
        "from zerotools.formats.dcp.read import read",
        "import zerotools.formats.dcp.read",
        "def f():\n    from zerotools.formats import dcp",
    ):
        assert imported_formats(ast.parse(text)) == {"dcp"}, text


def opened_natives(tree: ast.AST) -> Iterator[str]:
    """Where something is taken out of an attribute `native`, or it is asked of what class it is;
    and every `details`, which had facts by words."""
    for node in ast.walk(tree):
        inner: ast.AST | None = None
        if isinstance(node, ast.Attribute | ast.Subscript):
            inner = node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "isinstance"):
            inner = node.args[0]
        if isinstance(inner, ast.Attribute) and inner.attr == "native":
            yield ast.unparse(node)
        if isinstance(node, ast.Attribute) and node.attr == "details":
            yield ast.unparse(node)


def test_what_a_format_keeps_for_itself_no_other_code_opens() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {what}"
        for path in MODULES
        if _folder(path) is None and KEPT.search(text := path.read_text())
        for what in opened_natives(ast.parse(text))
    ]
    assert found == []
    for text in ("c.native.job", "c.native['job']", "getattr(c.native, 'job', 0)", "o.details"):
        assert [*opened_natives(ast.parse(text))], text
    assert "native: object" in (ROOT / "zerotools" / "core" / "checkpoint.py").read_text()
