"""Regenerating a committed case gives the committed truth, bit for bit."""

import json
from pathlib import Path

import pytest

from ..golden_files import DEEPSPEED, digests
from .launch import launch

pytestmark = pytest.mark.deepspeed


def names_below(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.mark.parametrize("name", ["z2-fp32-w2", "z3-bf16-w2"])
def test_a_regenerated_case_has_the_committed_truth(name: str, tmp_path: Path) -> None:
    from .cases import CASES  # imports torch, which only marked tests may
    from .generate import generate

    again, committed = generate(CASES[name], tmp_path), DEEPSPEED / name
    assert digests(again / "truth.safetensors") == digests(committed / "truth.safetensors")
    expected = json.loads((committed / "truth.json").read_text())
    assert json.loads((again / "truth.json").read_text()) == expected
    assert names_below(again) == names_below(committed)


def test_every_case_is_committed() -> None:
    from .cases import CASES

    assert {path.name for path in DEEPSPEED.iterdir()} == set(CASES)


def test_a_failing_rank_is_reported_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no-such-case"):
        launch("tests.deepspeed_runs.rank", ["no-such-case"], 1, tmp_path)
