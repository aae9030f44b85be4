"""Files that the sources name by their place, to start them as programs, exist."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def named_files(path: Path) -> Iterator[Path]:
    """The Python files below the place of `path` that its expressions name: `Path(__file__)`,
    then `parent`, `parents[N]`, `resolve()`, `with_name("x.py")` and `/ "name"`."""
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text if "__file__" in text else "")):
        if isinstance(node, ast.BinOp | ast.Call):
            found = place_of(node, path)
            if found is not None and found.suffix == ".py":
                yield found


def place_of(node: ast.expr, path: Path) -> Path | None:
    """The path that an expression has in the file `path`, if it is one of those."""
    match node:
        case ast.Call(func=ast.Name("Path"), args=[ast.Name("__file__")]):
            return path
        case ast.Call(func=ast.Attribute(value=inner, attr="resolve")):
            return place_of(inner, path)
        case ast.Call(func=ast.Attribute(inner, "with_name"), args=[ast.Constant(str(name))]):
            found = place_of(inner, path)
            return found and found.with_name(name)
        case ast.Attribute(value=inner, attr="parent"):
            found = place_of(inner, path)
            return found and found.parent
        case ast.Subscript(value=ast.Attribute(inner, "parents"), slice=ast.Constant(int(number))):
            found = place_of(inner, path)
            return found and found.parents[number]
        case ast.BinOp(left=inner, op=ast.Div(), right=ast.Constant(str(name))):
            found = place_of(inner, path)
            return found and found / name
    return None


def test_files_named_by_their_place_exist() -> None:
    named = {
        (str(path.relative_to(ROOT)), str(found.relative_to(ROOT)))
        for folder in ("zerotools", "daemon/zerotoolsd", "harness", "tests", "scripts")
        for path in (ROOT / folder).rglob("*.py")
        if "golden" not in path.parts
        for found in named_files(path)
    }
    started = "daemon/zerotoolsd/service/admission/run_rank_checks.py"
    assert (started, "daemon/zerotoolsd/trainer/preflight_model_and_data.py") in named
    assert len(named) > 20
    assert [pair for pair in sorted(named) if not (ROOT / pair[1]).is_file()] == []
