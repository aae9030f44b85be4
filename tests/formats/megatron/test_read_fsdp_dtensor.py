"""Megatron-FSDP's checkpoints, of data, tensor and expert parallelism."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.formats.megatron.golden import cases, read_case, read_digests, run_of, truth_of
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile
from zerotools.formats import training_of
from zerotools.io.files.tolerated_damage import tolerating_damage
from zerotools.ops.conversions import consolidate, convert
from zerotools.ops.conversions.conversion import Conversion, perform_conversion, prove_coverage
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.inspect import inspect

CASE = "megatron-core-0.16.1/fsdp-dtensor-dp2"
GROUPED = "megatron-core-0.16.1/fsdp-dtensor-grouped-ep2-edp2"
TIED = "megatron-core-0.16.1/fsdp-dtensor-tp2-dp2"
CASES = [*cases("fsdp-dtensor-*"), *cases("hub-fsdp-*")]
SAID = {
    "fsdp-dtensor-dp2": "saved with TP 1, PP 1, ETP 1, DP 2",
    "fsdp-dtensor-tp2-dp2": "saved with TP 2, PP 1, ETP 2, DP 2",
    "fsdp-dtensor-moe-ep2-etp2": "saved with TP 2, PP 1, EP 2, ETP 2, DP 2",
    "fsdp-dtensor-grouped-ep2-edp2": "saved with TP 1, PP 1, EP 2, ETP 1, DP 4",
    "hub-fsdp-qwen3-moe": "saved with TP 2, PP 1, EP 2, ETP 1, DP 2",
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_the_live_program_held(case: str) -> None:
    checkpoint = read_case(case)
    found = read_digests(checkpoint)
    assert {key: d for key, d in found.items() if key.role != "step"} == truth_of(case)
    assert inspect(checkpoint).problems == ()
    origin = checkpoint.origin
    assert (origin.title, origin.step) == ("Megatron fsdp_dtensor", 10)
    assert str(origin.precision) == "bfloat16"
    assert SAID[case.partition("/")[2]] in origin.notes


def test_a_tied_output_layer_is_an_alias() -> None:
    assert read_case(TIED).aliases == {"output_layer.weight": "embedding.word_embeddings.weight"}


@pytest.mark.parametrize("case", CASES)
def test_groups_and_steps_are_of_whole_parameters(case: str) -> None:
    checkpoint = read_case(case)
    training = training_of(checkpoint)
    weights = {key.name for key in checkpoint.tensors if key.role == "param"}
    assert {name for group in training.groups for name in group.params} == weights
    assert {key.name for key in training.scalars} == weights
    assert {step.value for step in training.scalars.values()} == {2.0}
    assert sorted(group.options["wd_mult"] for group in training.groups) == [0.0, 1.0]


def test_its_optimizer_is_converted(tmp_path: Path) -> None:
    done = convert.prepare_convert(run_of(GROUPED), tmp_path / "out", "dcp", {})
    assert isinstance(done, Conversion)
    perform_conversion(done, budget=MemoryBudget(), overwrite=False, verify=True)
    there = formats.read(tmp_path / "out")
    of_source = read_case(GROUPED)
    assert read_digests(there) == read_digests(of_source)
    assert Key("decoder.layers.0.mlp.experts.local_experts.3.linear_fc1.weight", "exp_avg") in (
        there.tensors
    )
    groups = {frozenset(group.params) for group in training_of(of_source).groups}
    assert {frozenset(group.params) for group in training_of(there).groups} == groups


@pytest.mark.torch
def test_options_that_are_no_plain_values_are_refused(tmp_path: Path) -> None:
    """Lists within lists take long to compare: they may share their parts."""
    deep: list[object] = []
    for _ in range(8):
        deep = [deep, deep]
    run = _saved(tmp_path, {"args": Namespace()}, {"lr": deep})
    with pytest.raises(BadFile, match=r"the option lr of a\.weight is not a number, a text"):
        training_of(formats.read(run))


def _saved(tmp_path: Path, values: dict[str, object], options: dict[str, object]) -> Path:
    """A run of Megatron-FSDP's with these values."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import DefaultSavePlanner

    run = tmp_path / "run"
    run.mkdir(parents=True)
    shutil.copy(run_of(CASE) / "latest_checkpointed_iteration.txt", run)
    meta = {f"optimizer.param_to_group_meta.module.a.weight.{n}": v for n, v in options.items()}
    state = {**values, "iteration": 10, **meta}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planner = DefaultSavePlanner(flatten_state_dict=False)
        dcp.save(state, checkpoint_id=run / "iter_0000010", planner=planner, no_dist=True)
    return run


def _consolidate(run: Path, out: Path) -> None:
    done = consolidate.prepare_export(run, out, consolidate.Options())
    perform_conversion(done, budget=MemoryBudget(), overwrite=False)


def _with_weights(tmp_path: Path, args: dict[str, object], names: Sequence[str]) -> Path:
    """A run of Megatron-FSDP's with weights of one element under these names."""
    import torch

    named = {f"model.module.{name}": torch.ones(1) for name in names}
    return _saved(tmp_path, {"args": Namespace(**args), **named}, {"lr": 0.1})


@pytest.mark.parametrize(("number", "what"), [(0, "args"), (1, "checkpoint_version")])
def test_what_is_in_other_files_is_read_where_values_of_the_run_are_lost(
    number: int, what: str, tmp_path: Path
) -> None:
    run = shutil.copytree(run_of(CASES[-1]), tmp_path / "run")
    whole = formats.read(run)
    lost = next(run.rglob(f"__{number}_0.distcp"))
    lost.unlink()
    problems = [problem for problem in formats.read(run).problems if problem.file == lost.name]
    assert {problem.prevents_output for problem in problems} == {what == "args"}
    with tolerating_damage() as damage:
        left = formats.read(run)
    assert left.tensors.keys() == whole.tensors.keys()
    assert list(damage.faults) == [lost]
    assert list(damage.unnamed) == ([lost] if what == "args" else [])


@pytest.mark.torch
def test_a_run_that_saved_no_optimizer_is_known_by_its_halves(tmp_path: Path) -> None:
    import torch

    layer = "decoder.layers.0.mlp.linear_fc1.weight"
    halves = {f"model.module.{layer}_{half}": torch.ones(2, 3) for half in "wv"}
    checkpoint = formats.read(_saved(tmp_path, {"args": Namespace(), **halves}, {}))
    assert checkpoint.tensors[Key(layer, "param")].shape == (4, 3)
    assert checkpoint.origin.title == "Megatron fsdp_dtensor"


@pytest.mark.torch
def test_stages_that_saved_layers_under_one_name_are_a_loss(tmp_path: Path) -> None:
    """What Megatron's own writer would leave of two stages of two layers."""
    names = [f"decoder.layers.{layer}.input_layernorm.weight" for layer in range(2)]
    args: dict[str, object] = {"pipeline_model_parallel_size": 2, "num_layers": 4}
    run = _with_weights(tmp_path, args, names)
    said = r"has 2 of 4 layers \(num_layers\).*without pipeline parallelism"
    assert re.search(said, str(inspect(formats.read(run)).problems))
    with pytest.raises(BadFile, match=said):
        _consolidate(run, tmp_path / "out")


@pytest.mark.torch
def test_experts_that_ranks_saved_under_one_name_are_a_loss(tmp_path: Path) -> None:
    """Megatron gives numbers over all ranks to weights of grouped experts, not to biases."""
    experts = "decoder.layers.0.mlp.experts.linear_fc1"
    names = [f"{experts}.weight{n}_{half}" for n in range(4) for half in "wv"]
    biases = [f"{experts}.bias{n}_{half}" for n in range(2) for half in "wv"]
    args: dict[str, object] = {"expert_model_parallel_size": 2, "num_experts": 4}
    whole = formats.read(_with_weights(tmp_path / "whole", args, names))
    assert inspect(whole).problems == ()
    _consolidate(tmp_path / "whole" / "run", tmp_path / "exported")
    run = _with_weights(tmp_path / "lost", args, [*names, *biases])
    said = r"local_experts\.\{0\.\.1\}\.linear_fc1\.bias for 2 of 4 experts"
    with pytest.raises(BadFile, match=said):
        _consolidate(run, tmp_path / "out")


@pytest.mark.parametrize("number", range(4))
def test_a_file_that_is_missing_is_named_whatever_values_it_has(
    number: int, tmp_path: Path
) -> None:
    """The arguments lie in the first, the iteration in the third."""
    run = Path(shutil.copytree(run_of(TIED), tmp_path / "run"))
    file = run / "iter_0000010" / f"__{number}_0.distcp"
    file.unlink()
    checkpoint = formats.read(run)
    assert checkpoint.origin.step == 10
    (problem,) = checkpoint.problems
    assert (problem.message, problem.file) == (
        f"{file} is missing, but the metadata lists it; copy or download it again",
        file.name,
    )
    assert problem.prevents_output is (number == 0)
    found = inspect(checkpoint)
    assert found.incomplete
    assert problem in found.problems
    with pytest.raises(BadFile, match=rf"{re.escape(str(file))} is missing"):
        prove_coverage(consolidate.prepare_export(run, tmp_path / "out", consolidate.Options()))


def test_arguments_behind_the_end_of_a_file_are_lost(tmp_path: Path) -> None:
    run = Path(shutil.copytree(run_of(TIED), tmp_path / "run"))
    file = run / "iter_0000010" / "__0_0.distcp"
    os.truncate(file, 100)
    (problem,) = formats.read(run).problems
    assert "it is truncated" in problem.message
    assert problem.prevents_output
