"""docs/reference/inspect-json.md says what `zerotools inspect --json` prints, key by key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import zerotools
from tests.golden_files import GOLDEN, JOB
from zerotools.ops.inspection.inspect import SCHEMA

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/inspect-json.md"
CHECKPOINTS = [
    JOB,
    GOLDEN / "deepspeed-0.19.8/z2-fp16-w2/checkpoint",
    GOLDEN / "deepspeed-0.19.8/universal-z2-bf16-w3/checkpoint",
    GOLDEN / "torch-2.13.0/fsdp2-torchtitan-w2/checkpoint",
    GOLDEN / "bitsandbytes-0.50.2/nf4/model",
    GOLDEN / "verl-0.9.1/fsdp2-w2/checkpoint",
]
TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "list": list,
    "object": dict,
    "null": type(None),
}


def documented() -> dict[str, dict[str, str]]:
    """For each section, the keys and their types."""
    text = PAGE.read_text()
    assert f"`{SCHEMA}`" in text
    sections = re.split(r"^## `(.*)`$", text, flags=re.MULTILINE)
    parts = {"": sections[0], **dict(zip(sections[1::2], sections[2::2], strict=True))}
    row = re.compile(r"^\| `(\w+)` \| ([\w ]+) \|", re.MULTILINE)
    return {name: dict(row.findall(part)) for name, part in parts.items()}


def described(path: Path) -> dict[str, Any]:
    """What the command prints of a checkpoint with all that it can add."""
    return zerotools.inspect(path, stats=True).to_json(chunks=True)


def objects(tree: dict[str, Any], section: str) -> list[dict[str, Any]]:
    """The objects that a section such as `tensors[].chunks[]` is about."""
    found: list[Any] = [tree]
    for step in filter(None, section.split(".")):
        found = [each.get(step.removesuffix("[]")) for each in found]
        if step.endswith("[]"):
            found = [part for each in found for part in each or ()]
    return [each for each in found if each is not None]


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.parent.name)
def test_the_page_lists_every_key_and_its_type(path: Path) -> None:
    tree = described(path)
    for section, keys in documented().items():
        for found in objects(tree, section):
            assert list(found) == list(keys), section
            for key, value in found.items():
                allowed = tuple(TYPES[word] for word in keys[key].split(" or "))
                assert isinstance(value, allowed), (section, key, value)


def test_every_section_is_met() -> None:
    trees = [described(path) for path in CHECKPOINTS]
    met = {name for name in documented() for tree in trees if objects(tree, name)}
    assert documented().keys() - met == {"problems[]"}
