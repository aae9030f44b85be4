"""The docstring of each package of `formats` lists its modules, all of them and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from zerotools import formats

ROOT = Path(formats.__file__).parent
PACKAGES = sorted(
    path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("*/**/__init__.py")
)
_ENTRY = re.compile(r"^(\w+)  +\S.*$", re.MULTILINE)


def test_there_are_rooms() -> None:
    assert {"deepspeed", "deepspeed/schema", "megatron/legacy_ranks"} <= {*PACKAGES}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_lists_its_modules(package: str) -> None:
    folder = ROOT / package
    document = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert sorted(_ENTRY.findall(document)) == sorted(files | rooms)
