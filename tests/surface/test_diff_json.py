"""docs/reference/diff-json.md says what `zerotools diff --json` prints, key by key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden_files import DEEPSPEED
from tests.ops.exports import model, noise
from zerotools.ops.comparison.checkpoint_diff import DiffOptions, diff
from zerotools.ops.comparison.diff_result import SCHEMA

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/diff-json.md"
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "list": (list,),
    "object": (dict,),
    "null": (type(None),),
    "any": (object,),
}


def documented() -> dict[str, dict[str, str]]:
    """For each section, the keys and their types."""
    text = PAGE.read_text()
    assert f"`{SCHEMA}`" in text
    sections = re.split(r"^## `(.*)`$", text, flags=re.MULTILINE)
    parts = {"": sections[0], **dict(zip(sections[1::2], sections[2::2], strict=True))}
    row = re.compile(r"^\| `(\w+)` \| ([\w ]+) \|", re.MULTILINE)
    return {name: dict(row.findall(part)) for name, part in parts.items()}


def objects(tree: dict[str, Any], section: str) -> list[dict[str, Any]]:
    """The objects that a section such as `run.differences[]` is about; `b` is as `a`."""
    found: list[Any] = [tree]
    for step in filter(None, section.split(".")):
        names = ("a", "b") if step == "a" else (step.removesuffix("[]"),)
        found = [each.get(name) for each in found for name in names]
        if step.endswith("[]"):
            found = [part for each in found for part in each or ()]
        found = [each for each in found if each is not None]
    return found


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Differences that have something of every kind."""
    root = tmp_path_factory.mktemp("diff")
    a = model(root / "a", {"w": noise(4), "n": np.float32([np.nan, 1]), "module.x": noise(5)})
    b = model(root / "b", {"w": noise(4, seed=1), "n": np.float32([1, 1]), "x": noise(5)})
    z3, z2 = (DEEPSPEED / f"{stage}-bf16-w2/checkpoint" for stage in ("z3", "z2"))
    found = [
        diff(a, b, DiffOptions(changes=True)),
        diff(z3, z2, DiffOptions()),
        diff(z3, z2, DiffOptions(roles=["param"], tolerance="ulp=2")),
    ]
    return [json.loads(json.dumps(each.to_json(), allow_nan=False)) for each in found]


def mismatches(tree: dict[str, Any]) -> Iterator[object]:
    for section, keys in documented().items():
        for found in objects(tree, section):
            if list(found) != list(keys):
                yield section, list(found)
            for key, value in found.items():
                allowed = [kind for word in keys[key].split(" or ") for kind in TYPES[word]]
                if not isinstance(value, tuple(allowed)):
                    yield section, key, value


def test_the_page_lists_every_key_and_its_type(trees: list[dict[str, Any]]) -> None:
    assert [found for tree in trees for found in mismatches(tree)] == []


def test_every_section_is_met(trees: list[dict[str, Any]]) -> None:
    met = {name for name in documented() for tree in trees if objects(tree, name)}
    assert documented().keys() == met
