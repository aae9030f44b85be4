"""The drawing in the docstring, and momenta that are whole however a group is cut."""

from __future__ import annotations

import shutil
from math import prod
from pathlib import Path

import pytest

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents
from tests.golden_files import DEEPSPEED
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadFile
from zerotools.formats import read
from zerotools.formats.deepspeed.partitioning.flat_layout import FlatLayout, partition_size
from zerotools.formats.deepspeed.partitioning.whole_parameters import WholeParameters, is_of_muon
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings
from zerotools.formats.deepspeed.schema.flat_partition import FlatPartition
from zerotools.formats.deepspeed.writing.lay_out import lay_out
from zerotools.ops.inspection.inspect import inspect

SHAPES = {"w": (2, 3), "b": (3, 1), "v": (5, 1)}


def over(ranks: int) -> WholeParameters:
    total = sum(map(prod, SHAPES.values()))
    return WholeParameters(FlatLayout(SHAPES, (), ranks, partition_size(total, ranks)))


def test_a_rank_has_all_that_its_partition_touches() -> None:
    assert [[name for name, _, _ in over(2).of_rank(rank)] for rank in (0, 1)] == [
        ["w", "b"],
        ["b", "v"],
    ]
    assert [over(2).numel(rank) for rank in (0, 1)] == [9, 8]
    assert over(1).numel(0) == 14
    assert [over(9).numel(rank) for rank in range(9)] == [6, 6, 6, 3, 8, 5, 5, 0, 0]


def test_what_two_ranks_have_is_replicated() -> None:
    buffers = [FlatPartition(f"rank {rank}", 100, over(2).numel(rank), FLOAT32) for rank in (0, 1)]
    tensors = dict(over(2).tensors(FLOAT32, buffers))
    assert [(chunk.file, chunk.offset) for chunk in tensors["b"].chunks] == [
        ("rank 0", 100 + 6 * 4),
        ("rank 1", 100),
    ]
    assert [chunk.file for chunk in tensors["w"].chunks] == ["rank 0"]
    lost = dict(over(2).tensors(FLOAT32, [None, buffers[1]]))
    assert [len(lost[name].chunks) for name in SHAPES] == [0, 1, 1]


def test_momentum_of_another_optimizer_is_a_partition() -> None:
    assert is_of_muon("momentum_buffer", {"use_muon": True})
    assert not is_of_muon("momentum_buffer", {"momentum": 0.9})
    assert not is_of_muon("momentum_buffer", None)
    assert not is_of_muon("exp_avg", {"use_muon": True})


@pytest.mark.parametrize("ranks", [1, 3, 4, 9, 40])
@pytest.mark.parametrize("offload", [False, True])
def test_any_number_of_ranks_and_back(ranks: int, offload: bool, tmp_path: Path) -> None:
    source = read(DEEPSPEED / "z2-fp32-w2-muon" / "checkpoint")
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu" if offload else "none"}}
    settings = ZeroSettings(ds_config={"zero_optimization": zero})
    there = read(
        write(source, lay_out(source, tmp_path / "there", world_size=ranks, settings=settings))
    )
    assert not inspect(there).problems
    assert contents(there) == contents(source)
    back = read(write(there, lay_out(there, tmp_path / "back", world_size=2)))
    assert contents(back) == contents(source)


def test_a_lost_rank_leaves_the_momenta_that_another_has(tmp_path: Path) -> None:
    shutil.copytree(DEEPSPEED / "z2-fp32-w2-muon" / "checkpoint", tmp_path / "run")
    next((tmp_path / "run").rglob("zero_pp_rank_1_*_optim_states.pt")).unlink()
    found = inspect(read(tmp_path / "run"))
    whole = {key.name for key in found.checkpoint.tensors if key.role == "momentum_buffer"}
    lost = {key.name for key in found.incomplete if key.role == "momentum_buffer"}
    assert whole - lost
    assert lost < whole


def test_momenta_of_neither_length_are_refused(tmp_path: Path) -> None:
    source = read(DEEPSPEED / "z2-fp32-w2-muon" / "checkpoint")
    write(source, lay_out(source, tmp_path / "three", world_size=3))
    shutil.copytree(DEEPSPEED / "z2-fp32-w2-muon" / "checkpoint", tmp_path / "run")
    tag = next((tmp_path / "run").glob("global_step*"))
    three = next((tmp_path / "three").glob("global_step*"))
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    shutil.copy(three / name, tag / name)
    with pytest.raises(BadFile, match=r"zero_pp_rank_\d_"):
        inspect(read(tmp_path / "run"))
