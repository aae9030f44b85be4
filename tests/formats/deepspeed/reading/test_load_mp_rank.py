"""Experts that DeepSpeed saved before it listed their parameters in the model file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.formats.deepspeed.reading.test_golden import truth
from tests.golden_files import GOLDEN
from tests.layouts import load
from zerotools.core.errors import BadFile
from zerotools.formats import read

CASE = GOLDEN / "deepspeed-0.18.9" / "experts-z1-fp32-w4-round-robin"


@pytest.fixture
def tag(tmp_path: Path) -> Path:
    shutil.copytree(CASE / "checkpoint", tmp_path / "saved")
    return tmp_path / "saved" / "global_step2"


def test_an_optimizer_file_that_names_what_no_other_does(tag: Path) -> None:
    (tag / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(BadFile, match="the optimizer file of partition 1 of group 0 is missing"):
        read(tag)


def test_an_expert_whose_file_is_lost_has_the_shapes_of_the_others(tag: Path) -> None:
    (tag / "layer_1_expert_1_mp_rank_00_model_states.pt").unlink()
    found = read(tag)
    assert [problem.file for problem in found.problems] == [
        "layer_1_expert_1_mp_rank_00_model_states.pt"
    ]
    for key, values in truth(CASE):
        assert load(found, key).tobytes() == values.tobytes(), key


def test_a_weight_that_no_file_has(tag: Path) -> None:
    for path in tag.glob("layer_1_*"):
        path.unlink()
    with pytest.raises(BadFile, match="copy the missing model, layer or expert file back"):
        read(tag)
