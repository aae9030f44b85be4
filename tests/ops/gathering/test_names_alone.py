from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden_files import every_checkpoint
from zerotools.ops.gathering.names_alone import doubt
from zerotools.ops.gathering.node_survey import LARGEST_TEXT, may_name_one

OUT = Path("/data/out")


DIRECTORIES = [path for path in every_checkpoint() if path.is_dir()]


@pytest.mark.parametrize("path", DIRECTORIES, ids=lambda path: str(path)[-60:])
def test_a_checkpoint_is_not_doubted(path: Path) -> None:
    files = [each for each in path.rglob("*") if each.is_file()]
    names = {each.relative_to(path).as_posix(): each for each in files}
    sizes = {name: each.stat().st_size for name, each in names.items() if may_name_one(name)}
    named = {name: names[name] for name, size in sizes.items() if 0 < size <= LARGEST_TEXT}
    texts = {name: each.read_text(errors="replace") for name, each in named.items()}
    assert doubt(names, texts, OUT) is None


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["__0_0.distcp", "__1_0.distcp"], "/data/out has .distcp files and no .metadata"),
        (["job.json", "dcp/__0_0.distcp"], "/data/out has job.json and no MANIFEST.json"),
        (["notes.txt"], "/data/out is not a checkpoint: it has no"),
    ],
)
def test_what_is_no_checkpoint(names: list[str], why: str) -> None:
    assert (doubt(names, {}, OUT) or "").startswith(why)
