"""Legacy rank files, put together: as the live program held them, and what is refused."""

from __future__ import annotations

import hashlib
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.formats.megatron.golden import cases, read_case, read_digests, run_of, truth_of
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, Unsupported
from zerotools.ops.conversions.conversion import refuse_blocked
from zerotools.ops.inspection.inspect import inspect

PLAIN = "megatron-core-0.16.1/legacy-tp2-pp2"
DISTRIBUTED = "megatron-core-0.16.1/legacy-tp2-dp2-distributed"


@pytest.mark.parametrize("case", cases("legacy-*"))
def test_it_is_what_the_live_program_held(case: str) -> None:
    checkpoint = read_case(case)
    assert read_digests(checkpoint) == truth_of(case)
    found = inspect(checkpoint)
    assert (found.problems, found.incomplete, found.step) == ((), (), 10)
    training = found.run.training
    trained = {key.name for key in checkpoint.tensors if key.role == "exp_avg"}
    assert {name for group in training.groups for name in group.params} == trained
    assert {step.value for step in training.scalars.values()} <= {2}
    assert len(training.scalars) == len(trained)


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    def copy(case: str) -> Path:
        return Path(shutil.copytree(run_of(case), tmp_path / "run")) / "iter_0000010"

    return copy


def _blocked(path: Path) -> str:
    with pytest.raises(BadFile) as refused:
        refuse_blocked(formats.read(path))
    return str(refused.value)


@pytest.mark.parametrize("lost", ["mp_rank_01_001", "mp_rank_00_000"])
def test_a_missing_rank_is_named(copied: Callable[[str], Path], lost: str) -> None:
    path = copied(PLAIN)
    shutil.rmtree(path / lost)
    assert f"{lost}/model_optim_rng.pt is missing: with TP 2 x PP 2 there are 4" in _blocked(path)
    assert inspect(formats.read(path)).problems


def test_a_missing_optimizer_of_one_rank_is_named(copied: Callable[[str], Path]) -> None:
    path = copied(DISTRIBUTED)
    (path / "mp_rank_01" / "distrib_optim.pt").unlink()
    assert "mp_rank_01/distrib_optim.pt is missing, but other ranks have one" in _blocked(path)


def test_optimizers_that_are_all_lost_are_said(copied: Callable[[str], Path]) -> None:
    path = copied(DISTRIBUTED)
    for each in path.glob("*/distrib_optim.pt"):
        each.unlink()
    (problem,) = inspect(formats.read(path)).problems
    assert (
        "mp_rank_00/distrib_optim.pt is missing: no other file has the masters" in problem.message
    )


def _change(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    import torch

    tree = torch.load(path, weights_only=False)
    change(tree)
    torch.save(tree, path)


def _rank(path: Path, stage: int, model: dict[str, Any], *, virtual: int = 1, **args: Any) -> None:
    """A rank of a synthetic run of one tensor-parallel rank."""
    import torch

    directory = path / f"mp_rank_00_{stage:03d}"
    directory.mkdir(parents=True)
    said = Namespace(tensor_model_parallel_size=1, **args)
    parts = {"model": model} if virtual == 1 else {f"model{n}": model[n] for n in model}
    torch.save({"args": said, "iteration": 10, **parts}, directory / "model_optim_rng.pt")


@pytest.mark.torch
def test_layers_of_virtual_stages_are_counted_over_all_stages(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "iter_0000010"
    for stage in range(2):
        parts: dict[Any, Any] = {
            part: {"decoder.layers.0.mlp.linear_fc2.weight": torch.full((2, 2), 2.0 * part + stage)}
            for part in range(2)
        }
        _rank(path, stage, parts, virtual=2, pipeline_model_parallel_size=2, num_layers=4)
    found = read_digests(formats.read(path))
    for layer in range(4):
        data = torch.full((2, 2), float(layer)).numpy().tobytes()
        key = Key(f"decoder.layers.{layer}.mlp.linear_fc2.weight", "param")
        assert found[key][2] == hashlib.sha256(data).hexdigest()


@pytest.mark.torch
def test_experts_of_transformer_engine_are_counted_over_all_ranks(tmp_path: Path) -> None:
    """Grouped experts have their number behind the name."""
    import torch

    path = tmp_path / "iter_0000010"
    for rank in range(2):
        name = "decoder.layers.0.mlp.experts.linear_fc1"
        model = {f"{name}.weight{n}": torch.full((2, 2), 2.0 * rank + n) for n in range(2)} | {
            f"{name}._extra_state": torch.ones(4, dtype=torch.uint8)
        }
        _rank(path, rank, model, expert_model_parallel_size=2, num_experts=4, num_layers=1)
    checkpoint = formats.read(path)
    assert "2 extra states of parallel layers, which are not weights" in checkpoint.origin.notes
    found = read_digests(checkpoint)
    assert len(found) == 4
    for expert in range(4):
        key = Key(f"decoder.layers.0.mlp.experts.local_experts.{expert}.linear_fc1.weight", "param")
        data = torch.full((2, 2), float(expert)).numpy().tobytes()
        assert found[key][2] == hashlib.sha256(data).hexdigest()


@pytest.mark.torch
def test_ranks_of_two_iterations_are_refused(tmp_path: Path) -> None:
    from tests.formats.megatron.layouts import legacy

    path = legacy(tmp_path / "iter_0000010", 10)
    _change(path / "mp_rank_01_000/model_optim_rng.pt", lambda tree: tree.update(iteration=20))
    assert "mp_rank_01_000/model_optim_rng.pt is of iteration 20, but" in _blocked(path)


@pytest.mark.torch
def test_ranks_that_disagree_on_a_shape_are_refused(tmp_path: Path) -> None:
    import torch

    from tests.formats.megatron.layouts import legacy

    path = legacy(tmp_path / "iter_0000010", 10)
    name = "decoder.layers.0.self_attention.linear_qkv.weight"
    where = path / "mp_rank_01_000/model_optim_rng.pt"
    _change(where, lambda tree: tree["model"].update({name: torch.ones(6, 8).bfloat16()}))
    for each in path.glob("*/distrib_optim.pt"):
        each.unlink()
    with pytest.raises(BadFile, match=r"mp_rank_01_000.* of shape \(6, 8\), but .*\(12, 8\)"):
        formats.read(path)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("decoder.layers.0.mlp.something.weight", "something.weight is split .* is not known"),
        ("decoder.layers.0.mlp.linear_fc1.weight", "depends on args.swiglu"),
        ("language_model", r"a dict \(Megatron-LM before Megatron-Core\)"),
        ("decoder.layers.0.mlp.experts.weight1", "moe_use_legacy_grouped_gemm"),
        ("decoder.layers.0.self_attention.linear_q_down_proj.weight", "is not known"),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path: Path, name: str, said: str) -> None:
    import torch

    from tests.formats.megatron.layouts import legacy

    path = legacy(tmp_path / "iter_0000010", 10)
    for each in path.glob("*/distrib_optim.pt"):
        each.unlink()
    for each in path.glob("*/model_optim_rng.pt"):
        value: Any = {} if name == "language_model" else torch.ones(6, 8)
        _change(each, lambda tree, value=value: tree["model"].update({name: value}))
    with pytest.raises(Unsupported, match=said):
        formats.read(path)


@pytest.mark.torch
def test_state_that_does_not_fit_the_weights_is_left_out_and_said(tmp_path: Path) -> None:
    from tests.formats.megatron.layouts import legacy

    path = legacy(tmp_path / "iter_0000010", 10)

    def longer(tree: dict[Any, Any]) -> None:
        next(iter(tree[0].values()))["numel_unpadded"] = 128

    _change(path / "mp_rank_01_001/distrib_optim.pt", longer)
    checkpoint = formats.read(path)
    assert {key.role for key in checkpoint.tensors} == {"param"}
    (note,) = (note for note in checkpoint.origin.notes if "left out" in note)
    assert "a flat buffer ends at element 128, but its parameters end at 96" in note
    (dropped,) = formats.format_of(checkpoint).never_written(checkpoint)
    assert dropped.why == note
