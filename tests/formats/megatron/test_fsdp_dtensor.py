"""Megatron-FSDP's checkpoints, of data parallelism alone."""

from __future__ import annotations

import shutil
import warnings
from argparse import Namespace
from pathlib import Path

import pytest

from tests.formats.megatron.golden import read_case, read_digests, run_of, truth_of
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats import training_of
from zerotools.ops.conversions import convert
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.inspection.inspect import inspect

CASE = "megatron-core-0.16.1/fsdp-dtensor-dp2"


def test_it_is_what_the_live_program_held() -> None:
    checkpoint = read_case(CASE)
    found = read_digests(checkpoint)
    assert {key: d for key, d in found.items() if key.role != "step"} == truth_of(CASE)
    assert inspect(checkpoint).problems == ()
    origin = checkpoint.origin
    assert (origin.title, origin.step, origin.world_size) == ("Megatron fsdp_dtensor", 10, 2)
    assert str(origin.precision) == "bfloat16"


def test_groups_and_steps_are_of_whole_parameters() -> None:
    checkpoint = read_case(CASE)
    training = training_of(checkpoint)
    weights = {key.name for key in checkpoint.tensors if key.role == "param"}
    assert {name for group in training.groups for name in group.params} == weights
    assert {key.name for key in training.scalars} == weights
    assert {step.value for step in training.scalars.values()} == {2.0}
    assert sorted(group.options["wd_mult"] for group in training.groups) == [0.0, 1.0]


def test_its_optimizer_is_converted(tmp_path: Path) -> None:
    done = convert.prepare(run_of(CASE), tmp_path / "out", "dcp", {})
    assert isinstance(done, Conversion)
    made = done.target.checkpoint.tensors
    assert Key("decoder.layers.1.mlp.linear_fc1.weight", "exp_avg_sq") in made


@pytest.mark.torch
def test_options_that_are_no_plain_values_are_refused(tmp_path: Path) -> None:
    """Lists within lists take long to compare: they may share their parts."""
    deep: list[object] = []
    for _ in range(8):
        deep = [deep, deep]
    run = _saved(tmp_path, {}, {"lr": deep})
    with pytest.raises(BadFile, match=r"the option lr of a\.weight is no plain value"):
        training_of(formats.read(run))


def _saved(tmp_path: Path, args: dict[str, object], options: dict[str, object]) -> Path:
    """A run of Megatron-FSDP's without weights."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import DefaultSavePlanner

    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(run_of(CASE) / "latest_checkpointed_iteration.txt", run)
    meta = {f"optimizer.param_to_group_meta.module.a.weight.{n}": v for n, v in options.items()}
    state = {"args": Namespace(**args), "iteration": 10, **meta}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planner = DefaultSavePlanner(flatten_state_dict=False)
        dcp.save(state, checkpoint_id=run / "iter_0000010", planner=planner, no_dist=True)
    return run


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["tensor", "pipeline", "expert"])
def test_other_parallelism_is_refused(tmp_path: Path, kind: str) -> None:
    run = _saved(tmp_path, {f"{kind}_model_parallel_size": 2}, {"lr": 0.1})
    said = f"of iteration 10, .*of Megatron-FSDP with {kind[0].upper()}P 2 nothing is known"
    with pytest.raises(Unsupported, match=said):
        formats.read(run)
