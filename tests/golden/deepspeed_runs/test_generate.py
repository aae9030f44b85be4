"""Regenerating a committed case gives the committed one, with the values of this processor."""

from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED
from tests.regenerated import differences

from .launch import launch

pytestmark = pytest.mark.deepspeed


@pytest.mark.parametrize("name", ["z2-fp32-w2", "z3-bf16-w2"])
def test_a_regenerated_case_is_the_committed_one(name: str, tmp_path: Path) -> None:
    from .cases import CASES  # imports torch, which only marked tests may
    from .generate import generate

    assert differences(generate(CASES[name], tmp_path), DEEPSPEED / name) == []


def test_every_case_is_committed() -> None:
    from .cases import CASES

    assert {path.name for path in DEEPSPEED.iterdir()} == set(CASES)


def test_a_failing_rank_is_reported_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no-such-case"):
        launch("tests.golden.deepspeed_runs.rank", ["no-such-case"], 1, tmp_path)
