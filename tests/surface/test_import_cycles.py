"""No module imports itself by way of others: import-linter looks at rooms, this at every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "zerotools", ROOT / "daemon" / "zerotoolsd")

Graph = Mapping[str, set[str]]


def modules(packages: tuple[Path, ...]) -> dict[str, Path]:
    """Every module by its dotted name; a package is its `__init__.py`."""
    found = {}
    for package in packages:
        for path in package.rglob("*.py"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.AST, names: frozenset[str]) -> Iterator[str]:
    """Which of the modules `names` a module imports, in functions too; but not for a type checker
    alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from imports(ast.Module([other], []), names)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import: write the whole name"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield from [whole] if whole in names else {node.module or ""} & names
        yield from imports(node, names)


def graph_of(packages: tuple[Path, ...]) -> Graph:
    paths = modules(packages)
    names = frozenset(paths)
    return {name: set(imports(ast.parse(p.read_bytes()), names)) for name, p in paths.items()}


def cycle(graph: Graph) -> list[str]:
    """The modules of a cycle, the first again at its end; [] if there is none."""
    done: set[str] = set()
    for first in sorted(graph):
        path: list[str] = []
        waiting = [iter([first])]
        while waiting:
            name = next(waiting[-1], None)
            if name is None:
                waiting.pop()
                if path:
                    done.add(path.pop())
            elif name in path:
                return [*path[path.index(name) :], name]
            elif name not in done:
                path.append(name)
                waiting.append(iter(sorted(graph[name])))
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = graph_of(PACKAGES)
    assert len(graph) > 400
    assert "zerotools.core.boxes" in graph["zerotools.core.checkpoint"]
    assert cycle(graph) == []


def test_a_cycle_is_found_in_functions_too_and_not_under_type_checking(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from shop.b import thing\n")
    (package / "b.py").write_text("def late():\n    from shop import c\n")
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import shop.a\n"
    (package / "c.py").write_text(hidden)
    assert cycle(graph_of((package,))) == []
    (package / "c.py").write_text(f"{hidden}else:\n    import shop.a\n")
    assert cycle(graph_of((package,))) == ["shop.a", "shop.b", "shop.c", "shop.a"]
