"""Print the small changes of a module that its tests do not notice.

`scripts/mutants.py zerotools/core/boxes.py tests/core/test_boxes.py` changes one operator or one
constant of the module at a time, and runs the tests with it. Nothing is written: the changed module
takes the place of the real one in a forked process. A change after which the tests do not end in
`SECONDS` is noticed, too. Not every change that survives is a defect of the tests: `a < b` and
`a <= b` are the same where a and b are never equal.
"""

from __future__ import annotations

import ast
import copy
import importlib.abc
import importlib.util
import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 60.0
OPTIONS = ("-xq", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
"""The last, because hypothesis is imported before pytest could rewrite its asserts."""
OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
"""The operator that takes the place of another."""


def changed(node: ast.AST) -> str | None:
    """Change one node, and return what was done, or None if there is nothing to change in it."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        before = node.value
        node.value = not before if isinstance(before, bool) else before + 1
        return f"{before} -> {node.value}"
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        field, operator = "ops", node.ops[0]
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        field, operator = "op", node.op
    else:
        return None
    if (other := OTHER.get(type(operator))) is None:
        return None
    setattr(node, field, [other()] if field == "ops" else other())
    return f"{type(operator).__name__} -> {other.__name__}"


def mutants(tree: ast.Module) -> Iterator[tuple[int, str, ast.Module]]:
    """Yield the line, the change and the changed module, for each change."""
    for number, node in enumerate(ast.walk(tree)):
        if not hasattr(node, "lineno"):
            continue
        mutant = copy.deepcopy(tree)
        target = next(each for place, each in enumerate(ast.walk(mutant)) if place == number)
        if (what := changed(target)) is not None:
            yield node.lineno, what, mutant


class Replacement(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from changed code."""

    def __init__(self, name: str, path: Path, code: CodeType) -> None:
        self._name, self._path, self._code = name, path, code

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Return the spec of the changed module, and None for others."""
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed code."""
        exec(self._code, module.__dict__)


def is_noticed(finder: Replacement | None, tests: Sequence[str]) -> bool:
    """Run the tests in a forked process, and return whether they fail or take too long."""
    import pytest

    if (pid := os.fork()) == 0:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        if finder is not None:
            sys.meta_path.insert(0, finder)
        os._exit(int(pytest.main([*OPTIONS, *tests])))
    end = os.pidfd_open(pid)
    if not select.select([end], [], [], SECONDS)[0]:
        os.killpg(pid, signal.SIGKILL)
    os.close(end)
    return os.waitpid(pid, 0)[1] != 0


def main(module: str, *tests: str) -> None:
    """Print each change that is not noticed, and their number."""
    import hypothesis  # noqa: F401  # imported once, for all forks

    sys.path[:0] = [str(ROOT), str(ROOT / "daemon")]
    path = Path(module).resolve()
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("daemon.")
    if is_noticed(None, tests):
        sys.exit("the tests fail without any change")
    source = path.read_text("utf-8")
    total = survived = 0
    for line, what, mutant in mutants(ast.parse(source)):
        total += 1
        code = compile(ast.fix_missing_locations(mutant), str(path), "exec")
        if not is_noticed(Replacement(name, path, code), tests):
            survived += 1
            print(f"{module}:{line}: {what}: {source.splitlines()[line - 1].strip()}", flush=True)
    print(f"{survived} of {total} changes of {module} survived {' '.join(tests)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
